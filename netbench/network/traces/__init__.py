"""Links that change over time.

- `trace` is the file format and the steps of each node; `patterns` generates traces by rule.
- `replay` plays a trace on machines by one clock, the controller's.
"""
