"""Measure the links between nodes, and compare them with a scenario.

- `samples` chooses links, concurrency and sizes; `measure` runs `probe` on the nodes.
- `verify` compares measurements with a scenario; `packet_trains` holds the statistics.
- `fidelity` states how closely each testbed delivers a network; `usage` reads link counters.
"""
