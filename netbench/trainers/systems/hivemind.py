"""Hivemind: peers accumulate gradients up to a target batch, average them and step, all alike.

Source: the Hivemind library (learning@home), `hivemind.Optimizer`, as "Training Transformers
Together" (Borzunov et al. 2022) ran it. Taken from there:

- Peers accumulate until all together have the target batch size, the plan's batch.
- A butterfly averages the gradients, weighted by samples. Every peer averages one part of the
  vector: it receives that part from all peers and sends them the result, all at once. Parts and
  results are sent in fp16 (`Plan.compression`), with out-of-range values clamped. Sums are not.
- Delayed parameter updates (`Plan.staleness` 1; Ren et al. 2021, ZeRO-Offload): gradients of an
  iteration are averaged, and the optimizer steps on them on the CPU, while the next iteration
  accumulates. The iteration after that uses the result. With staleness 0 they take turns.
- A peer that leaves does not stop the others. They repeat the round without it, and divide its part
  of later batches. A peer that joins receives parameters and moments.

Not taken: the DHT and matchmaking (all peers are one group, known to the controller, which also
decides when a round was complete: `protocol`), periodic averaging of states (nothing drifts: all
peers take the same result, where Hivemind's keep rounding errors), peers at different speeds, and
relays.
"""

import io
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from netbench.errors import TestbedError
from netbench.plan.model import Plan
from netbench.trainers.communication.peers import (
    Decide,
    PeerLost,
    Peers,
    RoundOutcome,
    agree,
    part_of,
)
from netbench.trainers.communication.world import World
from netbench.trainers.events import RECORDER
from netbench.trainers.layers.gpt import DTYPES
from netbench.trainers.layers.stage import (
    StageRole,
    build_optimizer,
    build_stage,
    run_micro_batches,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulated:
    """The mean gradient of some samples, (elements,), and their fraction of the target batch."""

    gradient: torch.Tensor
    weight: float


class HivemindRank:
    """One peer, with the whole model. `meet` comes before the first iteration.

    decide: takes True if this peer has the result of a round, and returns the outcome. None: losing
    a peer is an error.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self._rank = world.rank
        self._total = plan.layout.dp * plan.num_rounds * plan.num_micro_batches
        self._wire = DTYPES.get(plan.compression)
        dtype = torch.promote_types(DTYPES[plan.workload.dtype], torch.float32)
        # Peers divide one sequence of micro-batches: see `Stage.skip`.
        part = StageRole(
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
        self.decide: Decide | None = None

    @property
    def address(self) -> str:
        """Address of this peer, for others."""
        return self._peers.address

    def peers(self) -> set[int]:
        """Return no processes: peers do not communicate over gloo."""
        return set()

    def meet(self, members: Mapping[int, str], epoch: int, new: Sequence[int]) -> None:
        """Connect to these peers. The first that is not new sends its state to the new ones.

        Raises TestbedError if a peer cannot be reached.
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
        """Return the loss of the samples that were not lost with a peer."""
        loss = self._stage.take_loss()
        return None if loss is None else loss / (1 - self._missing)

    def iterate(self) -> dict[str, float]:
        started_s = time.monotonic()
        members = self._members  # the background update may remove some
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
        self._missing = sum(part_of(self._total, members, peer)[1] for peer in gone) / self._total
        return {
            "forward_s": forward_s,
            "backward_s": accumulated_s - started_s - forward_s,
            "sync_s": time.monotonic() - accumulated_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _accumulate(self, members: Sequence[int]) -> tuple[float, Accumulated]:
        """Accumulate this peer's part of the batch; return seconds forward and the gradient."""
        first, count = part_of(self._total, members, self._rank)
        self._stage.skip(first)
        forward_s, _ = run_micro_batches(self._stage, count)
        weight = count / self._total
        gradient = self._stage.gradients.to("cpu", copy=True)
        if weight:
            gradient /= weight  # it was this peer's term of the batch's mean
        self._stage.zero_gradients()
        return forward_s, Accumulated(gradient=gradient, weight=weight)

    def _update(self, mine: Accumulated) -> float:
        """Average and step without peers that leave meanwhile; return the seconds of the step."""
        with RECORDER.span("collective", name="butterfly"):
            average = self._agreed_average(mine)
        started_s = time.monotonic()
        with RECORDER.span("optimizer"):
            self._parameters.grad = average.to(self._parameters.dtype)
            self._optimizer.step()
        return time.monotonic() - started_s

    def _agreed_average(self, mine: Accumulated) -> torch.Tensor:
        """Repeat the round until the controller accepts it; return its average."""
        averages: list[torch.Tensor] = []

        def attempt(anew: RoundOutcome | None) -> None:
            if anew is not None:
                self._members = tuple(sorted(anew.members))
                self._peers.connect(anew.members, anew.epoch)
            averages.append(self._average(mine))

        outcome = agree(attempt, self._peers.close, self.decide)
        if outcome is not None:
            self._members = tuple(sorted(outcome.members))
        return averages[-1]

    def _average(self, mine: Accumulated) -> torch.Tensor:
        """Return the average, (elements,), the same on all members. Raises PeerLost."""
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
        for peer in members:  # in a fixed order, so that all sums are equal
            mean.add_(pieces[peer].to(mean.dtype), alpha=weights[peer].item())
        # The total is 0 if all members have just joined.
        if total := sum(weights[peer].item() for peer in members):
            mean /= total
        vector[parts[me]] = mean
        self._peers.exchange(
            dict.fromkeys(others, (vector[parts[me]],)),
            {peer: (vector[parts[peer]],) for peer in others},
        )
        return vector

    def _give_state(self, new: Sequence[int]) -> None:
        """Send a new peer the state it needs to continue like the others."""
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
            self._stage.zero_gradients()  # advance to the batch of the others
        self._num_iterations = state["num_iterations"]
        if state["pending"]:
            nothing = torch.zeros_like(self._stage.gradients, device="cpu")
            self._pending = Accumulated(gradient=nothing, weight=0.0)
