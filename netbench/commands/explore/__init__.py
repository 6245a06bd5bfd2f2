"""Questions to the simulator: `netbench sweep`, `require` and `explain`.

`base` selects the plans that `sweep` and `require` start from; `vary` parses the grid of a sweep.
"""
