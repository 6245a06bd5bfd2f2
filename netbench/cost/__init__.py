"""Cost of a plan in dollars: machines, traffic that leaves them, and training data.

- `traffic` counts the bytes between machines, of any system.
- `bill` prices them, with the prices of a scenario.
- `offers` lists the sets of machines that one could rent, and `front` finds the best of them.
- `churn` makes spot machines go and come.
"""
