"""DT-FM's scheduler and communication cost (Yuan et al., NeurIPS 2022).

- `scheduler` is the published evolutionary search.
- `cost` is the cost that it minimises, DP + 2 PP.
- `units` reduces a problem to the devices and links that the cost looks at.
"""
