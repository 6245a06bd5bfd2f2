"""Pictures, drawn with matplotlib in one `style`.

- `run` draws the iteration times of a run, `residuals` and `scaling` the published results.
- `region_map` draws a scenario, `placement_map` the ranks on it, `convergence` searches.
- `timeline` draws an iteration, `trace_diff` two.
"""
