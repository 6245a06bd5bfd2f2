"""Predict and measure how fast distributed training runs on a network you do not have.

The pipeline, in order, is the layout of the package:

1. `netbench.scenario` reads `scenarios/*.yaml` into a `Scenario`: regions, nodes, devices, links.
2. `netbench.workload` turns a model and a device profile into FLOPs, bytes and seconds.
3. `netbench.transport` holds the constants of communication libraries, each with its source.
4. `netbench.systems` has a module per training system; `netbench.plan` resolves all of it into a
   `Plan`: pure, serialised, hashed.
5. `netbench.simulator` times a plan without executing it; `netbench.explain` says where the time
   goes.
6. `netbench.placement` searches which rank runs on which device (`placement.schedulers`).
7. `netbench.network` gives machines the plan's network with tc, verifies it and restores them.
8. `netbench.testbed` finds a place to run a plan, starts its ranks, and decides whether what they
   measure can be trusted (`testbed.runs.controller`).
9. `netbench.distributed` runs plans and searches on the workers of a Dask cluster.
10. `netbench.trainers` runs on the nodes; it is the only package that imports torch.
11. `netbench.records` keeps every finished iteration on disk, and resumes.
12. `netbench.report` turns records into tables, pictures and the pages of `results/`.

`netbench.cli` and `netbench.commands` parse, call and print; `netbench.pool` is the interface of
places where cells of work run; `netbench.units` and `netbench.errors` are beneath everything.
`netbench.testing` has doubles for tests. The docstring of each package lists its modules. `docs/`
has one page per task; `benchmarks/` fits the constants and compares with other tools.
"""

__version__ = "0.1.0"
