"""The interface of a scheduler: `Scheduler`, `Problem`, `Budget` and `Answer`.

A grid, (dp * tp, pp), is the device of every lane and stage. Lane l is tensor-parallel index
l % tp of pipeline l // tp, as in the rows of `systems.rank_lanes`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from netbench.placement.bounds.floors import Floors

Floats = NDArray[np.float64]
Grid = NDArray[np.int64]


class Objective(Protocol):
    """Simulated seconds of iterations and of their parts; `placement.objective` implements it.

    divisible: pipelines and groups can be timed alone, because there are stages and tp = 1.
    independent: on any grid, no two pipelines and no two data-parallel groups share a resource or
    wait for each other. The time of an iteration then follows from the times of its parts.
    """

    divisible: bool
    independent: bool

    def times_s(self, grids: Grid) -> Floats:
        """Simulate whole iterations: grids (n, dp * tp, pp) -> (n,)."""

    def composed_s(self, grids: Grid) -> Floats:
        """Estimate whole iterations from their parts: grids (n, dp, pp) -> (n,). tp = 1 only.

        Far cheaper than `times_s` for parts that were simulated before. For new parts, many grids
        in one call are several times cheaper than one by one.
        """

    def pipelines_s(self, pipelines: Grid) -> Floats:
        """Simulate pipelines alone: (n, pp) -> (n, 2), before and after the barrier that follows
        the forward passes. Without such a barrier the first is 0. tp = 1 only."""

    def groups_s(self, stage: int, groups: Grid) -> Floats:
        """Simulate synchronisation and update of a stage's group alone: (n, dp) -> (n,). tp = 1
        only."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """Place dp pipelines of pp stages, each stage on tp devices.

    delay_s, bandwidth_bps: (num_devices, num_devices), one way, [src][dst], before protocol
        overhead; between devices of one node 0 s and the node's internal bandwidth.
    node, region, kind: (num_devices,), indices; devices of one kind have the same type.
    nic_bps: (num_devices,), of the node's NIC if the network shares NICs, else inf.
    host_bps: (num_devices,), limit of the node's sockets, inf = none.
    stage_s: (num_kinds, pp), seconds of a micro-batch, forward and backward; inf where the stage
        does not fit the device's memory.
    message_bytes: of one micro-batch between stages.
    num_micro_batches: of one pipeline in an iteration.
    gradient_bytes: (pp,), synchronised by a group in an iteration.
    ranks: (dp * tp, pp), the rank of each cell of a grid.
    stage_layers: (pp,), number of layers.
    with_layers: returns the same problem with other layers; None = they are fixed.
    forward_fraction: fraction of stage_s in the forward pass.
    sharing: key of `scenario.sharing.SHARING`.
    floors: least times of any grid, for `bounds`; None = not known.

    There may be more than dp * tp * pp devices; the others stay idle.
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
    host_bps: Floats
    stage_s: Floats
    message_bytes: float
    num_micro_batches: int
    gradient_bytes: Floats
    ranks: Grid
    objective: Objective
    stage_layers: tuple[int, ...] = ()
    with_layers: "Callable[[tuple[int, ...]], Problem] | None" = None
    forward_fraction: float = 0.25
    sharing: str = "pair"
    floors: "Floors | None" = None

    @property
    def num_devices(self) -> int:
        return len(self.node)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of a grid."""
        return self.dp * self.tp, self.pp

    def fits(self, grid: Grid) -> NDArray[np.bool_]:
        """Return whether each cell's device has memory for its stage, for one grid or grids
        (n, dp * tp, pp)."""
        return np.isfinite(self.stage_s[self.kind[grid], np.arange(self.pp)])

    def compute_s(self, grids: Grid) -> Floats:
        """Return the compute of the slowest device, a lower bound of the iteration: grids
        (n, dp * tp, pp) -> (n,), seconds; inf where a stage does not fit."""
        slowest_s: Floats = self.stage_s[self.kind[grids], np.arange(self.pp)].max(axis=(1, 2))
        return slowest_s * self.num_micro_batches


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Improvement:
    """A grid that is better than all before it in a search.

    elapsed_s: since the search began. num_evaluated: candidates so far. value: minimised by the
    scheduler; simulated seconds of an iteration, or its own cost.
    """

    elapsed_s: float
    num_evaluated: int
    value: float
    grid: Grid
    stage_layers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits of a search. Time only truncates it: the seed decides the sequence of candidates.

    seconds, evaluations: of the whole search. progress: called with each improvement.
    interrupted: returns whether to end now with the best so far.
    """

    seconds: float = math.inf
    evaluations: float = math.inf
    progress: Callable[[Improvement], None] | None = None
    interrupted: Callable[[], bool] = lambda: False

    def over(self, elapsed_s: float, num_evaluated: int) -> bool:
        """Return whether a search of this time and number of candidates has to end."""
        used = elapsed_s >= self.seconds or num_evaluated >= self.evaluations
        return used or self.interrupted()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answer:
    """The best grid of a search. num_evaluated: candidates. elapsed_s: of the search."""

    grid: Grid
    stage_layers: tuple[int, ...]
    improvements: tuple[Improvement, ...] = ()
    num_evaluated: int = 1
    elapsed_s: float = 0.0


Scheduler = Callable[[Problem, int, Budget], Answer]
"""(problem, seed, budget) -> answer. Raises PlanError where no placement fits the devices."""
