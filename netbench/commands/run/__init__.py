"""`netbench run`: run a scenario on a testbed or in the simulator.

- `command` defines the options; `selection` turns them into plans.
- `placed` implements `--placement`, `target` defines `--inventory`.
- `observer` shows the progress; `simulation` writes timelines of simulated plans.
"""
