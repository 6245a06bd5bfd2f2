"""Give real machines a scenario's network, and prove that they have it.

- `shaping/` compiles a network into one tc configuration per node, applies it and reads it back.
- `probing/` measures delay, jitter, loss and throughput between nodes and judges them.
- `remote/` shapes machines over SSH: all of them or none, with a timer that restores each.
- `traces/` describes links that change over time, and replays them.
- `nodes` runs a command on many nodes at once.
"""
