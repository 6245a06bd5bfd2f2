"""Records -> tables, pictures and `results/README.md`.

A table is a `grid`: markdown, a terminal's or CSV.

- A run: `comparison` puts it beside what was published and simulated, `run` prints that,
  `throughput` likewise for models by name; `collective` has one op, with its `closed_forms`;
  `matrix` what verification measured; `sweep` a grid of networks; `schedule` what a search for
  placements found.
- `results/README.md`: `readme` puts together `tables` of the `published` figures, `anomalies` in
  them, `simulated` beside them, `predictions`, `layouts` and `scaling`. `fidelity` writes
  `results/fidelity.md`.
- Pictures: `plots` of a run, `region_map` of a scenario, `placement_map` of ranks on it,
  `convergence` of searches, `timeline` of an iteration, `trace_diff` of two (its tables too),
  `scatter` and `scaling_plot` of all. `picture` has what they share.
"""
