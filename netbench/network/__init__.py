"""Make a real network behave like a scenario's, and prove that it does.

`program` compiles a network into one `tc` program per node (pure); `apply` loads it, reads it
back and takes it away; `measure` runs `probe` on the nodes; `verify` says which links to measure
and whether the figures are those of the scenario (pure). `command` reaches many nodes at once.
"""
