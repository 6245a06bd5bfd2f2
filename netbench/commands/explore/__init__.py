"""Questions to the simulator: `netbench sweep`, `require` and `explain`.

`options` are those that `sweep` and `require` share.
"""
