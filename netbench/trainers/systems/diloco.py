"""DiLoCo: every rank trains by itself, and periodically all take one outer step together.

Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(2023). A rank takes `Plan.local_steps` inner AdamW steps on its part of every batch. Then all ranks
average their differences, parameters before minus parameters after. An outer optimizer, SGD with
Nesterov momentum, steps from the starting point with that average as its gradient. Inner moments
stay with their rank. An iteration is one inner step on the whole batch; every `local_steps`-th
iteration also has the outer step.

The state of the outer step is on the CPU, in fp32 or more; a virtual device spends no time on it.
The average is an all-reduce in a ring, as NCCL's.

With machines that go and come (`Plan.churn`), the ring is over connections of `Peers`. If a rank
goes, the others take the outer step again without it. A new one gets the state of the outer step
before a round, and begins with inner moments of zero.
"""

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from netbench.errors import TestbedError
from netbench.plan.model import Plan
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.peer_transfers import PeerTransfers
from netbench.trainers.communication.peers import Decide, PeerLost, Peers, RoundOutcome, agree
from netbench.trainers.communication.rings import ring_all_reduce
from netbench.trainers.communication.world import World
from netbench.trainers.layers.stage import StageRole, build_stage, gradient_dtype, run_micro_batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    """The outer optimizer. learning_rate, momentum: dimensionless; Nesterov's where it is not 0.

    Source of the values: Douillard et al. 2023, section 3.
    """

    learning_rate: float = 0.7
    momentum: float = 0.9

    def build(self, parameters: torch.Tensor) -> torch.optim.Optimizer:
        """Steps on `parameters`, in place."""
        return torch.optim.SGD(
            [parameters], self.learning_rate, self.momentum, nesterov=self.momentum > 0
        )


NESTEROV = Outer()


class DilocoRank:
    """One rank, with the whole model; logical rank = replica = place in the ring.

    samples: that reached the model with the last iteration, in an outer step. With `Plan.churn`,
    `meet` comes before the first iteration, and `decide` is as in `hivemind.HivemindRank`.
    """

    def __init__(self, world: World, plan: Plan, outer: Outer = NESTEROV) -> None:
        self._plan, self._world = plan, world
        (cost,) = plan.stages
        self._full_bytes, dp = cost.gradient_bytes, plan.layout.dp
        # A ring cuts the differences into a part per replica.
        messages = dp * plan.transport.ring_cut(self._full_bytes, dp).num_messages
        self._replicas = self._ring(world, plan.placement)
        dtype = gradient_dtype(plan)
        part = StageRole(
            index=0, replica=self._replicas.index, gradient_dtype=dtype, gradient_messages=messages
        )
        self._stage = build_stage(plan, part)
        self._start = self._stage.parameters.to("cpu", dtype, copy=True)
        self._outer = outer.build(self._start)
        self._num_steps = 0
        self._peers = Peers(world.rank, world.address) if plan.churn else None
        self._transfers = PeerTransfers({})
        self.decide: Decide | None = None
        self.samples = 0

    @property
    def address(self) -> str | None:
        """Address of this rank, for others; None if ranks stay."""
        return self._peers.address if self._peers else None

    def peers(self) -> set[int]:
        return set() if self._peers else self._replicas.neighbours

    def meet(self, members: Mapping[int, str], epoch: int, new: Sequence[int]) -> None:
        """Connect to these ranks. The first that is not new sends the state to new ones.

        Raises TestbedError if one cannot be reached.
        """
        try:
            self._connect(members, epoch)
            giver = min(set(members) - set(new), default=-1)
            if new and giver >= 0 and self._world.rank in (giver, *new):
                self._pass_state(giver, new)
        except PeerLost as error:
            raise TestbedError(f"ranks did not meet: {error}") from error

    def take_loss(self) -> float | None:
        return self._stage.take_loss()

    def iterate(self) -> dict[str, float]:
        forward_s, backward_s = run_micro_batches(self._stage, self._plan.num_micro_batches)
        computed_s = time.monotonic()
        # Gradients are of this replica's term of the batch's mean; it steps on its part's own mean.
        self._stage.gradients.mul_(self._plan.layout.dp)
        self._stage.update()
        optimizer_s = time.monotonic() - computed_s
        self._num_steps += 1
        self.samples = 0
        if self._num_steps % self._plan.local_steps == 0:
            self._step_together()
            rounds = self._plan.local_steps * self._plan.num_micro_batches
            self.samples = rounds * self._plan.workload.micro_batch
        return {
            "forward_s": forward_s,
            "backward_s": backward_s,
            "sync_s": time.monotonic() - computed_s - optimizer_s,
            "optimizer_s": optimizer_s,
        }

    def _step_together(self) -> None:
        """Take the outer step, from which all ranks continue."""
        mine = self._start - self._stage.parameters.to(self._start)
        difference = mine

        def attempt(anew: RoundOutcome | None) -> None:
            nonlocal difference
            if anew is not None:
                self._connect(anew.members, anew.epoch)
            difference = mine / self._replicas.size
            cut = self._plan.transport.ring_cut(self._full_bytes, self._replicas.size)
            ring_all_reduce(self._replicas, difference, cut)

        agree(attempt, self._close, self.decide)
        self._start.grad = difference
        self._outer.step()
        self._stage.load(self._start)

    def _ring(self, world: World, members: Sequence[int]) -> Group:
        return Group.paced(world, members, self._plan)

    def _connect(self, members: Mapping[int, str], epoch: int) -> None:
        """Make a ring of these ranks, in the order of the placement. Raises PeerLost."""
        assert self._peers is not None
        self._close()
        self._peers.connect(members, epoch)
        self._transfers = PeerTransfers(self._peers.connections)
        world = World(self._transfers, self._world.rank, self._world.size, self._world.address)
        self._replicas = self._ring(world, [p for p in self._plan.placement if p in members])

    def _close(self) -> None:
        assert self._peers is not None
        self._peers.close()
        self._transfers.close()

    def _pass_state(self, giver: int, new: Sequence[int]) -> None:
        """Send new ranks the state of the outer step, or take it. Raises PeerLost."""
        if self._world.rank == giver:
            state = io.BytesIO()
            kept = {"outer": self._outer.state_dict(), "num_steps": self._num_steps}
            torch.save({"start": self._start, **kept}, state)
            data = torch.frombuffer(state.getbuffer(), dtype=torch.uint8)
            sent = [self._transfers.send([torch.tensor([data.numel()]), data], n, 0) for n in new]
            for transfer in sent:
                transfer.wait()
            return
        size = torch.zeros(1, dtype=torch.int64)
        self._transfers.recv([size], giver, 0).wait()
        data = torch.empty(int(size.item()), dtype=torch.uint8)
        self._transfers.recv([data], giver, 0).wait()
        loaded = torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
        self._start.copy_(loaded["start"])
        self._outer.load_state_dict(loaded["outer"])
        self._stage.load(self._start)
        self._num_steps = loaded["num_steps"]
