"""Tables for a terminal, markdown and CSV (`grid`).

- `run` is a run's table; `comparison` its rows beside published and simulated times; `throughput`
  the same for models by name.
- `collective` is operations beside their closed forms; `matrix` is a verified network.
- `sweep` is a grid of networks; `schedule` shows the results of placement searches.
"""
