"""One module per `netbench` command: parse, call, print, return the exit code; no logic.

`netbench.cli` imports a command only when it is called (`lazy`). `run/`, `reproduce/`, `explore/`
(sweep, require, explain), `net/` and `schedule/` are commands of several modules. `options` has
shared options and types of values, `files` checks output files, `console` shapes the output.
"""
