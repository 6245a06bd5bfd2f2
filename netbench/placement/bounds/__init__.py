"""Prove lower bounds on the simulated iteration time of every placement of a problem.

- `bound` combines the floors into one bound, with the integer programme of `programme`.
- `floors` defines floors: the least times of messages, compute and collectives on any placement.
- `plan_floors` derives them from a plan; `pipeline_floors` and `group_floors` bound pipelines and
  groups with them.
"""
