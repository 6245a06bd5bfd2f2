"""Hivemind on rented machines, on virtual devices: accumulate, find a group, average in lock-step.

What the peers of `hivemind-swarm` do over real connections (`systems.swarm`):

- A peer takes step after step. After each it tells the others how many samples it has, over
  connections of their own, as Hivemind's DHT does. It stops at the end of the step in which it
  believes that all together have the target batch size; what others have done since they last told
  is estimated from their speed.
- The first step of a round is up to half a step shorter or longer, drawn from the seed. Steps on
  machines vary, so peers do not end theirs at the same moment.
- A round begins a matchmaking time after the last, or later. The first peer is the leader: others
  join, it accepts them, they report that they are ready, it begins. Then each pair opens its
  streams. These are the three round trips of `systems.rounds.HANDSHAKES`.
- They average in lock-step, piece by piece (`communication.lock_step`), and update.

The CPU of a machine is one, and sleeps as long as `systems.rounds` says that work takes.

With machines that go and come (`Plan.churn`), peers that are left accumulate what is missing. If
one goes while they average, they average again without it, over new connections.
"""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from netbench.errors import TestbedError
from netbench.plan.model import AVERAGING, UPDATE, Plan
from netbench.systems.rounds import EXCHANGE_S, GROUP_S, PARAMETER_S, peer_rates, tensors_s
from netbench.trainers.communication.lock_step import (
    HostCosts,
    Kind,
    LockStep,
    Share,
    largest_payload_bytes,
)
from netbench.trainers.communication.peers import Decide, PeerLost, Peers, RoundOutcome, agree
from netbench.trainers.communication.streams import StreamMessage, Streams
from netbench.trainers.communication.world import TAG_COLLECTIVE, World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.virtual import compute, sleep_until

ADDRESS_BYTES = 128
"""Room for two of "host:port"."""

CONVERSIONS = 4
"""Conversions of `EXCHANGE_S`: a peer serialises and deserialises pieces, and their averages."""

PROGRESS, ROUND = 1, 2
"""Kinds of messages beside the averaging: how many samples a peer has (`value`) in a round
(`index`), and the next round, for a new peer."""


class SwarmRank:
    """One peer; its rank is its place in the plan's placement. samples: of its last round.

    With `Plan.churn`, `meet` comes before the first iteration, and `decide` is as in
    `hivemind.HivemindRank`.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self._plan, self._rank = plan, plan.placement.index(world.rank)
        kind = plan.device_types[world.rank] if plan.device_types else 0
        (self._cost,) = plan.stages_on(world.rank)
        self._rates = peer_rates(plan).tolist()
        self._steps = plan.type_steps[kind]
        self._step_samples = plan.workload.micro_batch * self._steps
        self._host_factor = plan.host_factors[kind]
        self._round = 0
        # A peer averages over one connection, and tells its progress over another.
        self._links = Peers(self._rank, world.address), Peers(self._rank, world.address)
        self._averaging = self._progress = Streams({}, 0)
        self._members: Sequence[int] = ()
        self._early: list[StreamMessage] = []
        if not plan.churn:
            self._meet_all(world)
        self._background = ThreadPoolExecutor(max_workers=1)
        self._update: Future[float] | None = None
        self._is_first = True
        self.decide: Decide | None = None
        self.samples = 0

    @property
    def address(self) -> str:
        """Addresses of this peer, for others."""
        return " ".join(link.address for link in self._links)

    def peers(self) -> set[int]:
        """Return no processes: peers have their own connections."""
        return set()

    def meet(self, members: Mapping[int, str], epoch: int, new: Sequence[int]) -> None:
        """Connect to these peers. The first that is not new tells new ones the round. They need no
        other state: pieces have no values.

        Raises TestbedError if a peer cannot be reached.
        """
        places, joining = self._places(members), {self._plan.placement.index(n) for n in new}
        try:
            self._connect(places, epoch)
        except PeerLost as error:
            raise TestbedError(f"peers did not meet: {error}") from error
        giver = min(places.keys() - joining, default=self._rank)
        if self._rank == giver:
            for peer in joining - {giver}:
                self._progress.send(peer, ROUND, self._round)
        elif self._rank in joining:
            while not (told := [m for m in self._progress.poll(None) if m.kind == ROUND]):
                if giver in self._progress.lost:
                    raise TestbedError(f"peers did not meet: rank {giver} has gone")
            self._round = told[0].index

    def take_loss(self) -> None:
        """Return None: nothing was learnt."""

    def iterate(self) -> dict[str, float]:
        """Run a round."""
        started_s = time.monotonic()
        plan, beside = self._plan, self._plan.beside
        averaging: Future[float] | None = None
        if beside == AVERAGING and not self._is_first:
            averaging = self._background.submit(self._average_and_update)
        computed_s = self._accumulate(started_s)
        sleep_until(started_s + plan.matchmaking_s)
        optimizer_s = 0.0
        if beside == AVERAGING:
            if averaging is not None:
                averaging.result()
        else:
            with RECORDER.span("collective", name="butterfly"):
                self._average()
            if beside == UPDATE:
                if self._update is not None:
                    self._update.result()
                self._update = self._background.submit(self._step)
            else:
                optimizer_s = self._step()
        self._is_first = False
        self._round += 1
        part = self._cost.forward_s / (self._cost.forward_s + self._cost.backward_s)
        return {
            "forward_s": part * computed_s,
            "backward_s": (1 - part) * computed_s,
            "sync_s": time.monotonic() - started_s - computed_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _meet_all(self, world: World) -> None:
        """Connect to all peers. A world has no addresses, so they tell each other theirs."""
        places = range(self._plan.layout.num_ranks)
        others = {peer: self._plan.placement[peer] for peer in places if peer != self._rank}
        world.warm(others.values())
        mine = torch.zeros(ADDRESS_BYTES, dtype=torch.uint8)
        text = self.address.encode()
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        addresses = {peer: torch.zeros_like(mine) for peer in others}
        works = []
        for peer, process in others.items():
            works.append(world.receive(addresses[peer], process, TAG_COLLECTIVE))
            works.append(world.send(mine, process, TAG_COLLECTIVE))
        for work in works:
            work.wait()
        members = {peer: _text(address) for peer, address in addresses.items()}
        try:
            self._connect({**members, self._rank: self.address}, epoch=0)
        except PeerLost as error:
            raise TestbedError(f"peers did not meet: {error}") from error

    def _places(self, members: Mapping[int, str]) -> dict[int, str]:
        """Return addresses by place instead of by process."""
        return {self._plan.placement.index(process): text for process, text in members.items()}

    def _connect(self, members: Mapping[int, str], epoch: int) -> None:
        """Replace all connections by ones to these peers. Raises PeerLost."""
        self._averaging.close()
        self._progress.close()
        for index, link in enumerate(self._links):
            link.connect({peer: text.split()[index] for peer, text in members.items()}, epoch)
        averaging, progress = self._links
        self._averaging = Streams(averaging.connections, largest_payload_bytes(self._plan.scale))
        self._progress = Streams(progress.connections, 0, survives=bool(self._plan.churn))
        self._members, self._early = sorted(members), []

    def _accumulate(self, started_s: float) -> float:
        """Take steps until all have the target; return the seconds."""
        rates, batch = self._rates, self._plan.workload.batch
        told = {peer: (0.0, started_s) for peer in self._members if peer != self._rank}
        draw = random.Random(f"{self._plan.seed} {self._round} {self._rank}").random()
        step_s = self._step_samples / rates[self._rank]
        self.samples, seconds = 0, step_s * (0.5 + draw)
        with RECORDER.span("forward"):
            while True:
                compute(seconds)
                seconds = step_s
                self.samples += self._step_samples
                for peer in told:
                    self._progress.send(peer, PROGRESS, self._round, value=self.samples)
                now_s = time.monotonic()
                for message in self._progress.poll():
                    if message.kind == PROGRESS and message.index == self._round:
                        told[message.peer] = (message.value, now_s)
                for peer in self._progress.lost & told.keys():
                    del told[peer]
                estimate = self.samples + sum(
                    value + rates[peer] * (now_s - at_s) for peer, (value, at_s) in told.items()
                )
                if estimate >= batch:
                    return time.monotonic() - started_s

    def _average_and_update(self) -> float:
        self._average()
        return self._step()

    def _step(self) -> float:
        """Update the parameters; return the seconds."""
        started_s = time.monotonic()
        compute(self._cost.optimizer_s)
        return time.monotonic() - started_s

    def _average(self) -> None:
        """Average, again if a peer is lost."""

        def attempt(anew: RoundOutcome | None) -> None:
            if anew is not None:
                self._connect(self._places(anew.members), anew.epoch)
            elif gone := self._progress.lost & set(self._members):
                raise PeerLost(f"rank {min(gone)} has gone")
            self._average_once()

        # The other connections stay: who still accumulates must not take this peer for lost.
        averaging, _ = self._links
        outcome = agree(attempt, averaging.close, self.decide)
        if outcome is not None:
            for peer in set(self._members) - self._places(outcome.members).keys():
                self._averaging.drop(peer)
                self._progress.drop(peer)

    def _average_once(self) -> None:
        """Average with all members. Raises PeerLost."""
        plan, count = self._plan, len(self._members)
        if count == 1:
            return
        (stage,) = plan.stages
        share = Share(
            rank=self._rank,
            members=self._members,
            parameters=stage.parameters / count,
            scale=plan.scale,
        )
        costs = HostCosts(
            add_s=self._host_factor * PARAMETER_S,
            convert_s=self._host_factor * EXCHANGE_S / CONVERSIONS,
        )
        self._form_group()
        compute(self._host_factor * tensors_s(plan))
        self._open()
        self._early = LockStep(self._averaging, share, costs).run(self._early)

    def _form_group(self) -> None:
        """Wait until all peers are ready, in two round trips to the leader."""
        leader, *others = self._members
        if self._rank == leader:
            ready: set[int] = set()
            arrived, self._early = self._early, []
            while len(ready) < len(others):
                for message in arrived or self._averaging.poll(None):
                    if message.kind == Kind.JOIN:
                        self._averaging.send(message.peer, Kind.ACCEPTED)
                    elif message.kind == Kind.READY:
                        ready.add(message.peer)
                arrived = []
            compute(GROUP_S)
            for peer in others:
                self._averaging.send(peer, Kind.BEGIN)
            return
        for request, answer in ((Kind.JOIN, Kind.ACCEPTED), (Kind.READY, Kind.BEGIN)):
            self._averaging.send(leader, request)
            is_answered = False
            while not is_answered:
                for message in self._averaging.poll(None):
                    if message.kind == answer:
                        is_answered = True
                    else:
                        self._early.append(message)

    def _open(self) -> None:
        """Open the streams of all pairs, in a round trip; keep the pieces that come meanwhile."""
        others = set(self._members) - {self._rank}
        for peer in others:
            self._averaging.send(peer, Kind.OPEN)
        arrived, self._early = self._early, []
        missing = {(peer, kind) for peer in others for kind in (Kind.OPEN, Kind.OPENED)}
        while missing:
            for message in arrived or self._averaging.poll(None):
                if message.kind == Kind.OPEN:
                    self._averaging.send(message.peer, Kind.OPENED)
                if message.kind in (Kind.OPEN, Kind.OPENED):
                    missing.discard((message.peer, Kind(message.kind)))
                else:
                    self._early.append(message)
            arrived = []


def _text(address: torch.Tensor) -> str:
    return bytes(address.tolist()).rstrip(b"\0").decode()
