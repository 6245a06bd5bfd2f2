"""Iterations as pure data: what one rank computes, what it communicates, and what waits for what.

For systems whose ranks all do the same, so that one rank stands for all. An iteration is a sequence
of segments. A segment is a graph of tasks, and an iteration repeats it `repeat` times on average.
The simulator times segments (`simulator.segments`); `explain` adds up the bytes of their calls.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from netbench.plan.model import Plan

FORWARD, BACKWARD, OPTIMIZER, COLLECTIVE, WAIT = (
    "forward", "backward", "optimizer", "collective", "wait",
)  # fmt: skip
"""Kinds of tasks. wait: takes no time, joins lanes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call of a collective, by every group of ranks at once.

    op, library: of `plan.collectives.COLLECTIVES`. size_bytes: as the op defines it. group_size:
    ranks of a group, neighbours in the order of ranks. across: groups are formed of the i-th ranks
    of each group instead. host_s: seconds that a call costs the host beside its bytes.
    """

    op: str
    size_bytes: float
    group_size: int
    across: bool = False
    library: str = "nccl"
    host_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A piece of work of one rank. seconds: of compute. calls: made one after the other, each as
    fast as if it were alone on the network. after: indices of tasks that must have ended. label:
    micro-batch or bucket, -1 = none."""

    kind: str
    seconds: float = 0.0
    calls: tuple[Call, ...] = ()
    after: tuple[int, ...] = ()
    label: int = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Tasks in an order in which each comes after those it waits for."""

    name: str
    repeat: float
    tasks: tuple[Task, ...]


class SegmentBuilder:
    """Collects the tasks of a segment by lane. Tasks of a lane run one after the other."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._last: dict[str, int] = {}

    def add(
        self,
        lane: str,
        kind: str,
        seconds: float = 0.0,
        *,
        calls: Iterable[Call] = (),
        after: Iterable[int] = (),
        label: int = -1,
    ) -> int:
        """Append a task to `lane`, and return its index. after: tasks of other lanes."""
        before = dict.fromkeys((*self.last(lane), *after))
        task = Task(
            kind=kind, seconds=seconds, calls=tuple(calls), after=tuple(before), label=label
        )
        self._tasks.append(task)
        self._last[lane] = len(self._tasks) - 1
        return self._last[lane]

    def last(self, *lanes: str) -> tuple[int, ...]:
        """The last task of each of `lanes` that has one."""
        return tuple(self._last[lane] for lane in lanes if lane in self._last)

    def build(self, name: str, repeat: float = 1.0) -> Segment:
        """The segment."""
        return Segment(name=name, repeat=repeat, tasks=tuple(self._tasks))


def add_micro_batches(builder: SegmentBuilder, plan: Plan) -> int:
    """Append the forward and backward passes of an iteration; return the last backward pass."""
    (stage,), last = plan.stages, -1
    for index in range(plan.num_micro_batches):
        builder.add("device", FORWARD, stage.forward_s, label=index)
        last = builder.add("device", BACKWARD, stage.backward_s, label=index)
    return last
