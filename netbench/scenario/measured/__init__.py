"""Turn measurements of networks into scenarios.

- `readings` parses the output of iperf3 and ping, and tables in CSV, into `matrices`.
- `export` writes a matrix as CSV or as a scenario. `replay` writes a scenario that repeats a run on
  the network that the run measured.
"""
