"""Ranks that may go and come while others go on, for the systems that are made for it.

The pool says who is a member and, when all members have reported on a round, whether it counts or
those who are left do it again (`netbench.trainers.protocol`): one place that knows, where peers by
themselves would have to agree. A rank whose process has ended is left out; at the next iteration
its node has started another in its place, which gets the parameters of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from netbench.errors import TestbedError
from netbench.plan.experiment import Experiment, experiment_hash, experiment_to_json
from netbench.testbed.activity import Sample, read_sample
from netbench.testbed.failures import complaint_of
from netbench.testbed.ranks import Message, RankPool, allowance_s
from netbench.testbed.transport import NodeAddress, Transport

ELASTIC = frozenset({"hivemind"})
"""Systems whose peers may go and come."""


@dataclass(slots=True)
class _Meeting:
    """The peers of one plan. addresses: of every rank. met: those who are connected with each
    other, since `epoch`."""

    addresses: dict[int, str]
    met: frozenset[int] = frozenset()
    epoch: int = 0

    def members(self, present: Collection[int]) -> dict[int, str]:
        return {rank: self.addresses[rank] for rank in sorted(present)}


class PeerPool(RankPool):
    """A `RankPool` that goes on without ranks where a plan's system is elastic."""

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        device_nodes: Sequence[int],
        read: Callable[[], Sample] = read_sample,
    ) -> None:
        super().__init__(nodes, device_nodes, read)
        self._transport: Transport | None = None
        self._meetings: dict[str, _Meeting] = {}
        self._gone: list[str] = []
        self._joined: set[int] = set()

    def start(self, transport: Transport, on_ready: Callable[[int], None]) -> list[Message]:
        """As `RankPool.start`."""
        self._transport = transport
        return super().start(transport, on_ready)

    def prepare(self, plan: Experiment) -> list[Message]:
        """As `RankPool.prepare`; peers are connected with each other."""
        prepared = super().prepare(plan)
        if plan.system in ELASTIC:
            addresses = {answer["rank"]: answer["address"] for answer in prepared}
            self._meetings[experiment_hash(plan)] = _Meeting(addresses=addresses)
            self._meet(experiment_hash(plan))
        return prepared

    def run(
        self, plan_hash: str, iteration: int, start_at_s: float, trace: bool = False
    ) -> list[Message]:
        """As `RankPool.run`; of an elastic system, the answers of those who are left."""
        meeting = self._meetings.get(plan_hash)
        doing = self._doing(plan_hash, iteration)
        if meeting is None and (self._joined or len(self._present) < len(self._channels)):
            raise TestbedError(f"{doing} needs the ranks that an earlier plan lost; run it alone")
        if meeting is None:
            return super().run(plan_hash, iteration, start_at_s, trace)
        if meeting.met != self._present:
            self._meet(plan_hash)
        order = {"plan_hash": plan_hash, "iteration": iteration, "start_at": start_at_s}
        self._order(op="run", **order, trace=trace, elastic=True)
        return self._follow_rounds(meeting, doing, allowance_s(self._plans[plan_hash]))

    def _follow_rounds(self, meeting: _Meeting, doing: str, allowed_s: float) -> list[Message]:
        """Decide about rounds until every rank that is left has ended its iteration."""
        answers: dict[int, Message] = {}
        complete: dict[int, bool] = {}
        watch = self._watch(allowed_s)
        while missing := sorted(self._present - answers.keys()):
            rank, message = self._hear(missing, doing, watch)
            complaint = complaint_of(rank, message)
            if message is None:
                self._leave(rank, doing)
            elif message["event"] == "ended":
                self._gone.append(f"{self._name(rank)} {complaint.what if complaint else 'ended'}")
            elif complaint is not None:
                raise TestbedError(self._explain(complaint, doing))
            elif message["event"] == "round":
                complete[rank] = message["complete"]
            elif message["event"] == "iteration":
                answers[rank] = message
            if complete and self._present <= complete.keys():
                self._decide(meeting, all(complete[rank] for rank in self._present))
                complete.clear()
        return [answers[rank] for rank in sorted(answers)]

    def _leave(self, rank: int, doing: str) -> None:
        """The end of a rank's channel."""
        self._present.discard(rank)
        if not any(text.startswith(f"{self._name(rank)} ") for text in self._gone):
            self._gone.append(f"{self._name(rank)} ended without a word")
        if not self._present:
            raise TestbedError(f"no peer is left in {doing}: {'; '.join(self._gone)}")

    def _decide(self, meeting: _Meeting, complete: bool) -> None:
        meeting.met = frozenset(self._present)
        meeting.epoch += not complete
        members = _with_text_keys(meeting.members(self._present))
        self._order(op="round", members=members, again=not complete, epoch=meeting.epoch)

    def _meet(self, plan_hash: str, new: Collection[int] = ()) -> None:
        """Connect those who are there; `new` ones get what the others know."""
        meeting = self._meetings[plan_hash]
        meeting.met, meeting.epoch = frozenset(self._present), meeting.epoch + 1
        members = _with_text_keys(meeting.members(self._present))
        self._order(
            op="meet", plan_hash=plan_hash, members=members, epoch=meeting.epoch, new=sorted(new)
        )
        self._collect("met", "the meeting of peers")

    def readmit(self) -> dict[int, int]:
        """Start a rank in the place of each that went, and let it join: their processes."""
        joined = sorted(set(range(len(self._channels))) - self._present)
        for rank in joined:
            self._join(rank)
        for plan_hash in self._meetings if joined else ():
            self._meet(plan_hash, joined)
        self._joined.update(joined)
        return {rank: self._pids[rank] for rank in joined}

    def plan(self, plan_hash: str) -> Experiment:
        """One that was prepared."""
        return self._plans[plan_hash]

    def take_gone(self) -> list[str]:
        """Which ranks went since this was last asked, and how."""
        gone, self._gone = self._gone, []
        return gone

    def _join(self, rank: int) -> None:
        """Start it, prepare its part of every elastic plan."""
        assert self._transport is not None
        self._channels[rank].close()
        self._channels[rank] = self._transport.start_rank(self._rank_nodes[rank], rank)
        self._follow(rank)
        node = self._nodes[self._rank_nodes[rank]]
        self._pids[rank] = self._answer(rank, "started").get("pid", 0)
        size = len(self._channels)
        self._send(rank, op="join", rank=rank, world_size=size, address=node.address)
        self._answer(rank, "ready")
        for plan_hash, meeting in self._meetings.items():
            self._send(rank, op="prepare", plan=experiment_to_json(self._plans[plan_hash]))
            meeting.addresses[rank] = self._answer(rank, "prepared")["address"]

    def _answer(self, rank: int, event: str) -> Message:
        """What one rank answers while the others have nothing to say."""
        doing = f"the return of {self._name(rank)}"
        while True:
            heard, message = self._next([rank], doing, self._watch(0.0))
            if (heard, message["event"]) == (rank, event):
                return message


def _with_text_keys(members: Mapping[int, str]) -> dict[str, str]:
    return {str(rank): address for rank, address in members.items()}
