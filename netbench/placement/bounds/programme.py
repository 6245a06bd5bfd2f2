"""The integer programme of a bound: can devices be placed with these hops and sets of sites?"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from netbench.placement.problem import Floats, Grid

PATIENCE_S = 2.0
"""Time limit of one integer programme; without a proof by then, a solution is assumed."""

_INFEASIBLE = 2
"""Status of `scipy.optimize.milp`."""


class DeviceProgramme:
    """Integer programme over numbers of devices by stage, site and next site, (pp - 1, S, S); for
    one stage (1, S, S), on the diagonal. A stage has one group per tensor-parallel rank; each has
    its members inside one of the allowed sets of sites, and the number of groups per set is a
    variable too."""

    def __init__(self, depth: int, members: int, tp: int, sizes: Grid) -> None:
        self._depth, self._sizes, self._num_groups = depth, sizes, tp
        self._lanes, self._room = members * tp, np.minimum(members, sizes)
        num_sites, num_hops = len(sizes), max(1, depth - 1)
        hops = np.arange(num_hops * num_sites**2).reshape(num_hops, num_sites, num_sites)
        self._count = hops.size
        at = np.zeros((depth, num_sites, hops.size))  # devices of a stage at a site
        for stage in range(depth):
            for site in range(num_sites):
                to = hops[stage, site] if stage < num_hops else hops[stage - 1, :, site]
                at[stage, site, to] = 1
        flow = np.zeros((max(0, depth - 2), num_sites, hops.size))
        for stage in range(1, depth - 1):
            for site in range(num_sites):
                flow[stage - 1, site, hops[stage - 1, :, site]] += 1
                flow[stage - 1, site, hops[stage, site]] -= 1
        self._at, self._flow = at, flow.reshape(-1, hops.size)

    def possible(self, usable: NDArray[np.bool_], sets: list[list[int]], seconds: float) -> bool:
        """Return whether devices can be placed so; True if the solver does not decide in time."""
        if not all(sets):
            return False
        constraints = self._placed() + self._grouped(sets)
        num_sets = sum(map(len, sets))
        most = [np.where(usable.ravel(), self._lanes, 0), np.full(num_sets, self._num_groups)]
        # Constraints on devices alone have no columns of sets.
        matrix = np.vstack(
            [
                np.pad(one.matrix, ((0, 0), (0, self._count + num_sets - one.matrix.shape[1])))
                for one in constraints
            ]
        )
        solution = milp(
            np.zeros(self._count + num_sets),
            integrality=np.ones(self._count + num_sets),
            bounds=Bounds(0, np.concatenate(most)),
            constraints=LinearConstraint(
                coo_array(matrix).tocsr(),
                np.concatenate([np.broadcast_to(c.low, len(c.matrix)) for c in constraints]),
                np.concatenate([np.broadcast_to(c.high, len(c.matrix)) for c in constraints]),
            ),
            options={"time_limit": min(seconds, PATIENCE_S)},
        )
        return bool(solution.status != _INFEASIBLE)

    def _placed(self) -> "list[_Constraint]":
        """Constrain flow: arrivals equal departures, every lane has a site, sites have a size."""
        return [
            _Constraint(self._flow, 0, 0),
            _Constraint(self._at[0].sum(axis=0)[None], self._lanes, self._lanes),
            _Constraint(self._at.sum(axis=0), 0, self._sizes),
        ]

    def _grouped(self, sets: list[list[int]]) -> "list[_Constraint]":
        """Constrain groups: each has one set, and a stage has no more members at a site than the
        sets of its groups allow."""
        num_sites = len(self._sizes)
        numbers = np.concatenate([np.asarray(some) for some in sets])
        of_stage = np.repeat(np.arange(self._depth), [len(some) for some in sets])
        chosen = np.equal.outer(np.arange(self._depth), of_stage).astype(float)
        none = np.zeros((self._depth, self._count))
        constraints = [_Constraint(np.hstack([none, chosen]), self._num_groups, self._num_groups)]
        inside = numbers >> np.arange(num_sites)[:, None] & 1
        for stage, some in enumerate(sets):
            if (1 << num_sites) - 1 in some:
                continue
            room = inside * chosen[stage] * self._room[:, None]
            constraints.append(_Constraint(np.hstack([self._at[stage], -room]), -np.inf, 0))
        return constraints


class _Constraint(NamedTuple):
    """Rows of a constraint matrix, and their lower and upper limits."""

    matrix: Floats
    low: float
    high: float | Grid


def largest_sets(allowed: NDArray[np.bool_]) -> list[int]:
    """Return the allowed sets of sites that no other contains; subsets of them are allowed too."""
    numbers = np.flatnonzero(allowed)
    largest: list[int] = []
    for number in sorted(numbers.tolist(), key=int.bit_count, reverse=True):
        if number and not any(number & other == number for other in largest):
            largest.append(number)
    return largest
