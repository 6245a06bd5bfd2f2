"""`netbench run`: run a scenario on a testbed or in the simulator.

- `command` defines the options; `selection` turns them into plans.
- `placed` implements `--placement`, `script` checks `--command`.
- `execution` runs the plans and records them; `simulation` does so for `--testbed sim`.
- `observer` shows the progress.
"""
