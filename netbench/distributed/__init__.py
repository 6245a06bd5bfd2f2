"""Run cells on the workers of a Dask cluster (`--dask`), the optional extra `.[cluster]`.

A cell is a process in its own session on a worker. The parts, from the client down to the cell:

- `client` submits cells and receives messages and results: `DaskPool`, a `netbench.pool.Pool`.
- `token` tells workers whether the client is there, and which cells it has cancelled.
- `connect` finds or starts the cluster, and compares it with this machine (`versions`). `hosts`
  starts workers on the hosts of an inventory.
- `worker` runs in the threads of Dask's workers: it watches one cell each.
- `cells` forks the cells, in a process of its own beneath each worker.
- `sessions` runs emulated plans as cells, `kernel` provides the guest kernel on their hosts.

Only this package imports dask, distributed and psutil.
"""
