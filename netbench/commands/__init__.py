"""One module per `netbench` command: parse, call, print, return the exit code; no logic.

Each is loaded by `netbench.cli` only when it is the command asked for (`lazy`); `net` and
`schedule` are groups of commands.

Parts of `run`: `placed` has `--placement`, `script` `--command`, `simulation` `--testbed sim`.
Parts of `reproduce`: `simulated` and `simulated_layouts`. `sweep` (`vary` reads its grid) and
`require` ask about a `base`. What several share: `live` shows progress, `quantity` reads values
with units, `files` refuses what cannot be written.
"""
