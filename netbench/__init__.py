"""netbench tells how fast distributed training runs on a network you do not have.

The pipeline, in order, is the layout of the package:

1. `netbench.scenario` reads `scenarios/*.yaml` into a `Scenario`: regions, nodes, devices, links.
2. `netbench.workload` turns a model into FLOPs, bytes and, with a device profile, seconds.
3. `netbench.placement` says which rank sits on which device.
4. `netbench.plan` resolves all of it into a `Plan`: pure, serialised, hashed.
5. `netbench.network` compiles a plan's network into `tc` programs; applies, reads back, verifies.
6. `netbench.testbed` finds a place to run a plan (this kernel, a guest kernel), starts ranks, and
   decides whether what they measure can be trusted (`testbed.local`).
7. `netbench.trainers` is what runs on the nodes; the only package that imports torch.
8. `netbench.simulator` turns the same plan into the same records without running it, and says why.
9. `netbench.records` keeps every finished iteration on disk, and resumes.
10. `netbench.report` turns records into tables, pictures and `results/README.md`.

`netbench.cli` and `netbench.commands` parse, call and print; `netbench.units` and `netbench.errors`
are beneath everything. Each package's docstring says what its modules do. `docs/` has a page per
thing that a user does; `benchmarks/` what fits the constants, and compares with others.
"""

__version__ = "0.1.0"
