"""One module per `netbench` command: parse, call, print, return the exit code; no logic.

Each is loaded by `netbench.cli` only when it is the command asked for.
"""
