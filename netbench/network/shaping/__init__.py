"""Compile a network into tc configurations, apply them, and compare with what the kernel holds.

- `program` compiles one `tc -batch` text per node, for the queues of `scenario.sharing`.
- `tc` formats classes, netem leaves and filters; `batch` is what the agent of a host needs of it.
- `limits` reports what netem will not deliver.
- `update` turns one configuration into another without a gap; `readback` parses `tc ... show`.
- `apply` loads and removes them on nodes of this machine; `netlink` asks the kernel.
"""
