"""Schedulers that search by simulated time, and what they share.

- `scheduler` is netbench's: annealing on a surrogate; every improvement is simulated.
- `annealing` is its compiled inner loop; `surrogate` estimates iteration times in microseconds.
- `tiled` and `aligned` give starting points; `layers` lets stages have unequal layers.
- `exhaustive` lists every placement where there are few; `sampled` takes the best of many.
- `sites` joins devices that move together into blocks, and merges interchangeable ones.
- `incumbent` keeps the best placement so far and the budget.
- `repair` finds the best placement within reach after devices were lost or added.
"""
