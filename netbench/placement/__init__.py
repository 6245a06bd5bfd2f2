"""Search which rank runs on which device: `placement[rank]` is the device.

- `problem` is the interface: a `Scheduler` is a function `(Problem, seed, Budget) -> Answer`.
- `schedulers` is the registry of schedulers by name; add a new one there.
- `plan_problem` states a plan as a `Problem`, and turns an `Answer` back into a plan.
- `search/` is netbench's scheduler (`search.scheduler`) and the simple ones it is compared with.
- `dtfm/` is DT-FM's published scheduler and its communication cost.
- `bounds/` proves how far an answer can be from the best.
- `objective` simulates placements; it reuses the `parts` of an iteration that placements share.
- `layouts` searches the plan as well as the placement; `recovery` repairs a placement after
  devices were lost.
- `file` reads and writes placement files.

Placements that ignore the network, identity and random, are in `plan.maps`.
"""
