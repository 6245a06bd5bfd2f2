"""Doubles for tests of netbench, and of code that uses it. No network, no torch.

`nodes`: a node, a channel and a testbed; what `netbench doctor` could find on a machine.

Nothing else in the package imports it.
"""
