"""Doubles and builders for tests of netbench, and of code that uses it. No network, no torch.

- `networks`: links, and networks of one and two regions.
- `plans`: plans with closed-form times, and the smallest plan that ranks can run.
- `runs`: recorded runs with invented times.
- `nodes`: a node, a channel and a testbed; what `netbench doctor` could find on a machine.

Nothing else in the package imports it.
"""
