"""Which rank sits on which device: `placement[rank]` is the device.

- `maps` looks at no network: identity, and the published random maps.
- `problem` is what a scheduler is given (`Problem`), and what it answers (`Answer`).
- `schedulers` has them by name: `SCHEDULERS`. They are loaded when something is to be placed.
"""

from netbench.placement.maps import MAPS, NUM_SEEDS, SEEDED, UNSEEDED, identity, random

__all__ = ["MAPS", "NUM_SEEDS", "SEEDED", "UNSEEDED", "identity", "random"]
