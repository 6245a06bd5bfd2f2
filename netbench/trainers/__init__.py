"""Execute a plan: the rank processes that run on the nodes. Only this package imports torch.

`python -m netbench.trainers` is one rank; with `--fork-server SOCKET` it imports torch once and
forks a rank per connection. No other package imports this one: a controller starts it and
exchanges JSON lines with it (`protocol`).

- `systems/` has one module per training system; `layers/` has the models; `communication/` moves
  tensors between ranks.
- `rank` is the main loop of one rank; `fork_server` forks many, each in its own namespace.
- `node_server` starts the ranks of a host in a cluster run.
- `calibrate` measures a device; `events` records the events of a traced iteration.
- `gloo_shim.c` is a preload library that spares gloo's event loop most of its system calls.
"""
