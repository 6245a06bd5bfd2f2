"""Hivemind: peers accumulate gradients up to a target batch, average them and step, all alike.

Source: the Hivemind library (learning@home), `hivemind.Optimizer`, as "Training Transformers
Together" (Borzunov et al. 2022) ran it. Taken from there:

- Peers accumulate until all together have the target batch size, the plan's batch.
- Gradients are averaged, weighted by samples, by a butterfly: every peer averages one part of the
  vector. It gets that part from all and sends them the result; all send to all at once. Parts and
  results are fp16 on their way (`Plan.compression`), out-of-range values clamped; sums are not.
- Delayed parameter updates (`Plan.staleness` 1; Ren et al. 2021, ZeRO-Offload): gradients of an
  iteration are averaged, and the optimizer, on the CPU, steps on them, while the next iteration
  accumulates. Its result is used from the iteration after that on. Without: one after the other.
- A peer that goes does not stop the others: they do the round again among those left, and share
  its part of later batches. One that comes is given parameters and moments.

Not taken: the DHT and matchmaking (all peers are one group, known to the controller, which also
decides when a round was complete: `protocol`), averaging of states now and then (nothing drifts:
all peers take the same result, where Hivemind's keep what rounding leaves), peers at a pace of
their own, and relays.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from netbench.errors import TestbedError
from netbench.plan import Plan
from netbench.trainers.events import RECORDER
from netbench.trainers.layers import DTYPES
from netbench.trainers.peers import PeerLost, Peers, share
from netbench.trainers.stage import Part, build_optimizer, build_stage, run_micro_batches
from netbench.trainers.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of a round. members: who is left, with their addresses. again: those are to do
    the round once more, under this epoch."""

    members: Mapping[int, str]
    again: bool
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulated:
    """The mean gradient of some samples, (elements,), and their share of the target batch."""

    gradient: torch.Tensor
    weight: float


class Hivemind:
    """One peer, with the whole model. `meet` comes before the first iteration.

    decide: told whether this peer has the result of a round, says what becomes of it; None: nobody
    may go, and losing one is an error.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self._rank = world.rank
        self._total = plan.layout.dp * plan.num_rounds * plan.num_micro_batches
        self._wire = DTYPES.get(plan.compression)
        dtype = torch.promote_types(DTYPES[plan.workload.dtype], torch.float32)
        # Every peer takes its share of the one sequence of micro-batches: see `Stage.skip`.
        part = Part(
            index=0, replica=0, gradient_dtype=dtype, gradient_messages=plan.layout.num_ranks
        )
        self._stage = build_stage(plan, part)
        self._parameters = self._stage.parameters.to("cpu", dtype, copy=True)
        self._optimizer = build_optimizer(plan, self._parameters)
        self._delayed = plan.staleness > 0
        self._background = ThreadPoolExecutor(max_workers=1)
        self._pending: Accumulated | None = None
        self._num_iterations = 0
        self._peers = Peers(world.rank, world.address)
        self._members: tuple[int, ...] = ()
        self._missing = 0.0
        self.decide: Callable[[bool], Verdict] | None = None

    @property
    def address(self) -> str:
        """Where other peers reach this one."""
        return self._peers.address

    def peers(self) -> set[int]:
        """None over gloo."""
        return set()

    def arm(self) -> None:
        """Nothing is posted ahead."""

    def meet(self, members: Mapping[int, str], epoch: int, new: Sequence[int]) -> None:
        """Connect to these peers; the first that is not new gives the new ones its state.

        Raises TestbedError where one is not there.
        """
        try:
            self._peers.connect(members, epoch)
            self._members = tuple(sorted(members))
            giver = min(set(members) - set(new), default=-1)
            if self._rank in new and giver >= 0:
                self._take_state(giver)
            elif self._rank == giver and new:
                self._give_state(new)
        except PeerLost as error:
            raise TestbedError(f"peers did not meet: {error}") from error

    def take_loss(self) -> float | None:
        """Of the samples that were not lost with a peer."""
        loss = self._stage.take_loss()
        return None if loss is None else loss / (1 - self._missing)

    def iterate(self) -> dict[str, float]:
        started_s = time.monotonic()
        members = self._members  # they may become fewer in the background
        averaging: Future[float] | None = None
        if self._delayed and self._pending is not None:
            averaging = self._background.submit(self._update, self._pending)
        forward_s, accumulated = self._accumulate(members)
        accumulated_s = time.monotonic()
        optimizer_s = 0.0
        if not self._delayed:
            optimizer_s = self._update(accumulated)
        elif averaging is not None:
            averaging.result()
        self._pending = accumulated
        self._stage.load(self._parameters)
        self._num_iterations += 1
        gone = set(members) - set(self._members)
        self._missing = sum(share(self._total, members, peer)[1] for peer in gone) / self._total
        return {
            "forward_s": forward_s,
            "backward_s": accumulated_s - started_s - forward_s,
            "sync_s": time.monotonic() - accumulated_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _accumulate(self, members: Sequence[int]) -> tuple[float, Accumulated]:
        """This peer's share of the batch: seconds forward, and the gradient."""
        first, count = share(self._total, members, self._rank)
        self._stage.skip(first)
        forward_s, _ = run_micro_batches(self._stage, count)
        weight = count / self._total
        gradient = self._stage.gradients.to("cpu", copy=True)
        if weight:
            gradient /= weight  # it was this peer's share of the batch's mean
        self._stage.zero_gradients()
        return forward_s, Accumulated(gradient=gradient, weight=weight)

    def _update(self, mine: Accumulated) -> float:
        """Average and step: seconds of the step. Peers that go on the way are left out."""
        with RECORDER.span("collective", name="butterfly"):
            average = self._agreed_average(mine)
        started_s = time.monotonic()
        with RECORDER.span("optimizer"):
            self._parameters.grad = average.to(self._parameters.dtype)
            self._optimizer.step()
        return time.monotonic() - started_s

    def _agreed_average(self, mine: Accumulated) -> torch.Tensor:
        """That of the round which the controller lets count."""
        average = self._attempt(mine)
        while self.decide is not None:
            verdict = self.decide(average is not None)
            self._members = tuple(sorted(verdict.members))
            if not verdict.again:
                break
            average = self._attempt(mine, verdict)
        assert average is not None
        return average

    def _attempt(self, mine: Accumulated, anew: Verdict | None = None) -> torch.Tensor | None:
        """The average, over new connections with `anew`; None where a peer was lost."""
        try:
            if anew is not None:
                self._peers.connect(anew.members, anew.epoch)
            return self._average(mine)
        except PeerLost as error:
            self._peers.close()  # so that all others notice
            if self.decide is None:
                raise TestbedError(f"a peer was lost: {error}") from error
            return None

    def _average(self, mine: Accumulated) -> torch.Tensor:
        """(elements,), the same on all members. Raises PeerLost."""
        members, me = self._members, self._rank
        wire = self._wire or mine.gradient.dtype
        vector = mine.gradient.clamp(torch.finfo(wire).min, torch.finfo(wire).max).to(wire)
        size = vector.numel()
        parts = {
            peer: slice(size * i // len(members), size * (i + 1) // len(members))
            for i, peer in enumerate(members)
        }
        weight = torch.tensor([mine.weight], dtype=torch.float64)
        pieces = {peer: torch.empty_like(vector[parts[me]]) for peer in members}
        weights = {peer: torch.empty_like(weight) for peer in members}
        pieces[me], weights[me] = vector[parts[me]], weight
        others = [peer for peer in members if peer != me]
        self._peers.exchange(
            {peer: (weight, vector[parts[peer]]) for peer in others},
            {peer: (weights[peer], pieces[peer]) for peer in others},
        )
        mean = torch.zeros_like(pieces[me], dtype=mine.gradient.dtype)
        for peer in members:  # in this order: a sum does not depend on who was fast
            mean.add_(pieces[peer].to(mean.dtype), alpha=weights[peer].item())
        # Nothing is known where all members have just come.
        if total := sum(weights[peer].item() for peer in members):
            mean /= total
        vector[parts[me]] = mean
        self._peers.exchange(
            dict.fromkeys(others, (vector[parts[me]],)),
            {peer: (vector[parts[peer]],) for peer in others},
        )
        return vector

    def _give_state(self, new: Sequence[int]) -> None:
        """What a peer that comes needs to go on as the others do."""
        state = io.BytesIO()
        torch.save(
            {
                "parameters": self._parameters,
                "optimizer": self._optimizer.state_dict(),
                "num_iterations": self._num_iterations,
                "pending": self._pending is not None,
            },
            state,
        )
        data = torch.frombuffer(state.getbuffer(), dtype=torch.uint8)
        size = torch.tensor([data.numel()])
        self._peers.exchange(dict.fromkeys(new, (size, data)), {})

    def _take_state(self, giver: int) -> None:
        size = torch.zeros(1, dtype=torch.int64)
        self._peers.exchange({}, {giver: (size,)})
        data = torch.empty(int(size.item()), dtype=torch.uint8)
        self._peers.exchange({}, {giver: (data,)})
        state = torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
        self._parameters.copy_(state["parameters"])
        self._stage.load(self._parameters)
        self._optimizer.load_state_dict(state["optimizer"])
        for _ in range(state["num_iterations"] - self._num_iterations):
            self._stage.zero_gradients()  # on to the batch of the others
        self._num_iterations = state["num_iterations"]
        if state["pending"]:
            nothing = torch.zeros_like(self._stage.gradients, device="cpu")
            self._pending = Accumulated(gradient=nothing, weight=0.0)
