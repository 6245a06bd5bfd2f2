"""Ranks that may leave and join while others continue, for systems that support it.

The pool decides who is a member. When all members have reported on a round, it decides whether the
round counts or the remaining members repeat it (`netbench.trainers.protocol`). A central decision
spares the peers from having to agree. A rank whose process has ended is left out. Before the next
iteration another one starts in its place and gets the parameters of the others. `interruptions`
ends ranks on purpose.
"""

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from netbench.errors import TestbedError
from netbench.plan.experiment import Experiment, experiment_hash, experiment_to_json, is_elastic
from netbench.testbed.interface import Testbed
from netbench.testbed.ranks.failures import failure_of
from netbench.testbed.ranks.pool import Message, RankPool, allowance_s


class PeerPool(RankPool):
    """A `RankPool` that continues without lost ranks if the plan's system is elastic."""

    def __init__(self, testbed: Testbed, plan: Experiment) -> None:
        super().__init__(testbed, plan)
        self._elastic = is_elastic(plan)
        self._addresses: dict[int, str] = {}
        self._connected: frozenset[int] = frozenset()
        self._epoch = 0
        self._gone: list[str] = []
        self._interrupted: set[int] = set()

    def prepare(self) -> list[Message]:
        """Prepare the plan, and connect the peers of an elastic system with each other."""
        prepared = super().prepare()
        if self._elastic:
            self._addresses = {answer["rank"]: answer["address"] for answer in prepared}
            self._meet()
        return prepared

    def run(self, iteration: int, start_at_s: float, trace: bool = False) -> list[Message]:
        """Run an iteration. In an elastic system only the remaining ranks answer."""
        if not self._elastic:
            return super().run(iteration, start_at_s, trace)
        if self._connected != self._present:
            self._meet()
        self._order_run(iteration, start_at_s, trace=trace, elastic=True)
        return self._follow_rounds(self._doing(iteration), allowance_s(self._plan))

    def _follow_rounds(self, doing: str, allowed_s: float) -> list[Message]:
        """Decide about rounds until every remaining rank has ended its iteration."""
        answers: dict[int, Message] = {}
        complete: dict[int, bool] = {}
        watch = self._watch(allowed_s)
        while missing := sorted(self._present - answers.keys()):
            rank, message = self._hear(missing, doing, watch)
            failure = failure_of(rank, message)
            if message is None:
                self._leave(rank, doing)
            elif message["event"] == "ended":
                if rank not in self._interrupted:
                    self._gone.append(f"{self._name(rank)} {failure.what if failure else 'ended'}")
            elif failure is not None:
                raise TestbedError(self._explain(failure, doing))
            elif message["event"] == "round":
                complete[rank] = message["complete"]
            elif message["event"] == "iteration":
                answers[rank] = message
            if complete and self._present <= complete.keys():
                self._decide(all(complete[rank] for rank in self._present))
                complete.clear()
        return self._by_our_clock([answers[rank] for rank in sorted(answers)])

    def _leave(self, rank: int, doing: str) -> None:
        self._present.discard(rank)
        if not self._present and rank in self._interrupted:
            raise TestbedError(
                f"all machines are away in {doing}, and with them the model; let fewer go at a time"
            )
        if rank not in self._interrupted and not any(
            text.startswith(f"{self._name(rank)} ") for text in self._gone
        ):
            self._gone.append(f"{self._name(rank)} ended without a message")
        if not self._present:
            raise TestbedError(f"no peer is left in {doing}: {'; '.join(self._gone)}")

    def _decide(self, complete: bool) -> None:
        self._connected = frozenset(self._present)
        self._epoch += not complete
        self._order(op="round", members=self._members(), again=not complete, epoch=self._epoch)

    def _meet(self, new: Collection[int] = ()) -> None:
        """Connect the present ranks; `new` ones get the state of the others."""
        self._connected, self._epoch = frozenset(self._present), self._epoch + 1
        self._order(
            op="meet",
            plan_hash=experiment_hash(self._plan),
            members=self._members(),
            epoch=self._epoch,
            new=sorted(new),
        )
        self._collect("met", "the rendezvous of peers")

    def _members(self) -> dict[str, str]:
        """Return the addresses of the present ranks, by rank as text."""
        return {str(rank): self._addresses[rank] for rank in sorted(self._present)}

    def interrupt(self, node: int) -> None:
        """End the ranks of a node of this machine: its machine goes. They are not failures."""
        for rank, place in enumerate(self._rank_nodes):
            if place == node and rank in self._present:
                self._interrupted.add(rank)
                with suppress(ProcessLookupError):
                    os.kill(self._pids[rank], signal.SIGKILL)

    def readmit(self, away: Collection[int] = ()) -> dict[int, int]:
        """Replace every rank that left by a new one, and let it join: rank -> process.

        away: nodes whose ranks stay away.
        """
        left = set(range(len(self._channels))) - self._present if self._elastic else set()
        joined = sorted(rank for rank in left if self._rank_nodes[rank] not in away)
        for rank in joined:
            self._interrupted.discard(rank)
            self._join(rank)
        if joined:
            self._meet(joined)
        return {rank: self._pids[rank] for rank in joined}

    def take_gone(self) -> list[str]:
        """Return which ranks left since the last call, and how."""
        gone, self._gone = self._gone, []
        return gone

    def _join(self, rank: int) -> None:
        self._channels[rank].close()
        self._channels[rank] = self._testbed.start_rank(self._rank_nodes[rank], rank)
        self._follow(rank)
        node = self._nodes[self._rank_nodes[rank]]
        self._pids[rank] = self._process(rank, self._answer(rank, "started"))
        size = len(self._channels)
        self._send(rank, op="join", rank=rank, world_size=size, address=node.address)
        self._answer(rank, "ready")
        self._send(rank, op="prepare", plan=experiment_to_json(self._plan))
        self._addresses[rank] = self._answer(rank, "prepared")["address"]

    def _answer(self, rank: int, event: str) -> Message:
        """Return the answer of one rank while the others are silent."""
        doing = f"the return of {self._name(rank)}"
        while True:
            heard, message = self._next([rank], doing, self._watch(0.0))
            if (heard, message["event"]) == (rank, event):
                return message
