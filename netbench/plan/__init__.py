"""Scenario + variant + setting -> Plan: the fully resolved experiment.

A plan is pure data: what is simulated, emulated on one machine or run on a cluster is the same
JSON, and its hash is the provenance of every record.

- `model` is the data, `serial` writes, reads and hashes it, `describe` puts it into a line.
- `build` makes plans, `scale` chooses the scale of an emulation, `checks` refuses what cannot be a
  plan, `replicas` sweeps named models, `maps` has the placements that need no search.
- `memory` checks that ranks fit their devices.
- The simulator and the trainers both follow `schedules` (what each stage of a pipeline does) and
  `tensor` (ranks that share a stage's layers).
- `benchmark` is the plan of one collective, `experiment` a plan of either kind, `what_if` changes
  the network of a plan.

`model`, `schedules`, `tensor` and other pure data are beneath `netbench.systems`; what resolves a
plan is above.
"""
