"""What a scheduler is given and what it answers.

A grid, (dp * tp, pp), is the device of every lane and stage. Lane l is tensor-parallel index
l % tp of pipeline l // tp: the rows of `simulator.simulate.rank_lanes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from netbench.placement.floors import Floors

Floats = NDArray[np.float64]
Grid = NDArray[np.int64]


class Objective(Protocol):
    """Seconds of iterations and of their parts, simulated; `simulator.objective` has it.

    divisible: pipelines and groups can be timed alone: there are stages, and tp = 1.
    independent: no two pipelines, and no two data-parallel groups, share a resource, whatever the
    grid: then an iteration is what its parts take, each begun when the parts before it let it.
    """

    divisible: bool
    independent: bool

    def times_s(self, grids: Grid) -> Floats:
        """Of whole iterations: grids (n, dp * tp, pp) -> (n,)."""
        ...

    def composed_s(self, grids: Grid) -> Floats:
        """Of whole iterations, estimated from parts alone: grids (n, dp, pp) -> (n,). tp = 1 only.

        Far cheaper than `times_s` where a search has met the parts before; and where it has not,
        many grids at once are several times cheaper than one by one.
        """
        ...

    def pipelines_s(self, pipelines: Grid) -> Floats:
        """Of pipelines alone: (n, pp) -> (n, 2), up to the barrier after the forward passes and
        from there; where the schedule has no such barrier, the first is 0. tp = 1 only."""
        ...

    def groups_s(self, stage: int, groups: Grid) -> Floats:
        """Of synchronising and updating a stage's group alone: (n, dp) -> (n,). tp = 1 only."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """Where to put dp pipelines of pp stages, each on tp devices.

    delay_s, bandwidth_bps: (num_devices, num_devices), one way, [src][dst], payload not yet taken
    off; between devices of one node 0 s and what joins them. node, region, kind: (num_devices,),
    indices; devices of one kind are of one type. nic_bps: (num_devices,), of the node's NIC where
    the network shares NICs, else inf.
    stage_s: (num_kinds, pp), seconds of a micro-batch, forward and backward; inf where the stage
    does not fit the device's memory. message_bytes: of one micro-batch between stages.
    num_micro_batches: of one pipeline in an iteration. gradient_bytes: (pp,), that a group
    synchronises in an iteration.
    ranks: (dp * tp, pp), the rank of each cell of a grid. stage_layers: of each stage.
    with_layers: the same problem with others, None = they are fixed.
    forward_share: of stage_s, what the forward pass takes. sharing: as in `scenario.model.Network`.
    floors: what no grid can go below, for `bound`; None = not known.
    There may be more devices than dp * tp * pp; those that are left over stay idle.
    """

    pp: int
    dp: int
    tp: int = 1
    delay_s: Floats
    bandwidth_bps: Floats
    node: Grid
    region: Grid
    kind: Grid
    nic_bps: Floats
    stage_s: Floats
    message_bytes: float
    num_micro_batches: int
    gradient_bytes: Floats
    ranks: Grid
    objective: Objective
    stage_layers: tuple[int, ...] = ()
    with_layers: Callable[[tuple[int, ...]], Problem] | None = None
    forward_share: float = 0.25
    sharing: str = "pair"
    floors: Floors | None = None

    @property
    def num_devices(self) -> int:
        return len(self.node)

    @property
    def shape(self) -> tuple[int, int]:
        """Of a grid."""
        return self.dp * self.tp, self.pp

    def fits(self, grid: Grid) -> NDArray[np.bool_]:
        """Of every cell of a grid, or of grids (n, dp * tp, pp): whether its device has memory for
        its stage."""
        fitting: NDArray[np.bool_] = np.isfinite(self.stage_s[self.kind[grid], np.arange(self.pp)])
        return fitting

    def compute_s(self, grids: Grid) -> Floats:
        """What the slowest device computes in an iteration, which takes no less: grids
        (n, dp * tp, pp) -> (n,), seconds; inf where a stage does not fit."""
        slowest_s: Floats = self.stage_s[self.kind[grids], np.arange(self.pp)].max(axis=(1, 2))
        return slowest_s * self.num_micro_batches


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Step:
    """A better grid than all before. elapsed_s: of search. num_evaluated: candidates so far.
    value: what the scheduler minimises; simulated seconds of an iteration, or its own cost."""

    elapsed_s: float
    num_evaluated: int
    value: float
    grid: Grid
    stage_layers: tuple[int, ...] = ()


def _never() -> bool:
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """When to stop, and whom to tell. The time only cuts a sequence short that the seed decides.

    interrupted: whether the search is to end now with the best that it has, whatever is left.
    """

    seconds: float = math.inf
    evaluations: float = math.inf
    progress: Callable[[Step], None] | None = None
    interrupted: Callable[[], bool] = _never

    def over(self, elapsed_s: float, num_evaluated: int) -> bool:
        """Whether it is used up by a search of so many seconds and candidates."""
        used = elapsed_s >= self.seconds or num_evaluated >= self.evaluations
        return used or self.interrupted()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answer:
    """The best grid, and how it was found. num_evaluated: candidates. elapsed_s: of search."""

    grid: Grid
    stage_layers: tuple[int, ...]
    steps: tuple[Step, ...] = field(default=())
    num_evaluated: int = 1
    elapsed_s: float = 0.0


Scheduler = Callable[[Problem, int, Budget], Answer]
"""(problem, seed, budget) -> answer. Raises PlanError where nothing fits."""
