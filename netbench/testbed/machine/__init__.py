"""Find out what this machine can do.

- `capabilities` probes kernel, privileges and tools; `doctor` turns them into advice.
- `choose` picks the testbed of a run; `packages` maps commands to Debian packages.
"""
