"""The ranks of a session: processes on nodes.

- `pool` connects them, prepares plans and runs iterations; `elastic` lets ranks leave and join.
- `scripts` runs a user's script as ranks; `reports` reads the iteration times it prints.
- `hangs` detects ranks that stopped making progress. `failures` names the rank that failed first.
"""
