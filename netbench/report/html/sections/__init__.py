"""The sections of a page. Each module has `build`, which returns a `Section` or None.

- `versus` compares runs; all others are about one run.
- `times`, `collectives` and `sweeps` show what was timed; `asked` and `verified` on which network.
- `breakdown`, `timelines` and `links` explain it by simulation.
- `provenance` and `downloads` say where the figures come from, and attach them.
"""
