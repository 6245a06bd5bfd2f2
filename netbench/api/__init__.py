"""The functions of a notebook or a script, which the command line calls too.

`import netbench as nb` has all of them, imported when they are first used:

- `scenarios` makes a scenario in code, without a file.
- `plans` selects plans of a scenario.
- `simulation` simulates plans; `explanation` says where the time of one iteration goes.
- `emulation` runs plans on a testbed or on hosts.
- `results` is what a simulation or an emulation returns: tables, pictures, HTML.
- `sweeps` simulates a grid of networks; `vary` parses its values.
- `placement` searches where to put the ranks.
"""
