"""Carries out a stage's schedule: the stage computes, the communicator moves what it passes on."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from netbench.plan import Plan
from netbench.trainers.communicator import Communicator, Inbox, Outbox, messages_ahead
from netbench.trainers.links import ahead_bytes
from netbench.trainers.schedules import Action, Communicate, Compute, Phase, Transfer
from netbench.trainers.stage import Stage, boundary_bytes
from netbench.trainers.world import TAG_BACKWARD, TAG_FORWARD, World

TAGS = {Phase.FORWARD: TAG_FORWARD, Phase.BACKWARD: TAG_BACKWARD}


class PipelineRank:
    """One stage of one pipeline with its neighbours.

    processes: the processes of the pipeline's stages, in order.
    """

    def __init__(
        self, world: World, plan: Plan, processes: Sequence[int], stage_index: int, stage: Stage
    ) -> None:
        self._stage = stage
        self._communicator = Communicator()
        self._receives: dict[Phase, Inbox] = {}
        self._sends: dict[Phase, Outbox] = {}
        self.peers: set[int] = set()
        size = boundary_bytes(plan)
        for phase in Phase:
            source, target = stage_index - phase.value, stage_index + phase.value
            if 0 <= source < len(processes):
                process = processes[source]
                buffered_bytes = ahead_bytes(plan, process, world.rank)
                ahead = messages_ahead(plan.activation_bytes, buffered_bytes)
                self._receives[phase] = Inbox(world, process, TAGS[phase], size, ahead)
                self.peers.add(process)
            if 0 <= target < len(processes):
                process = processes[target]
                self._sends[phase] = Outbox(world, process, TAGS[phase])
                self.peers.add(process)

    def open(self, num_micro_batches: int) -> None:
        """Expect this many micro-batches in each direction until the next `open`."""
        for inbox in self._receives.values():
            inbox.open(num_micro_batches)
        for outbox in self._sends.values():
            outbox.open()

    def run(self, actions: Sequence[Action]) -> dict[Phase, float]:
        """Carry the actions out; seconds by phase (a group counts for its last transfer's)."""
        spent_s = dict.fromkeys(Phase, 0.0)
        outputs: dict[tuple[Phase, int], torch.Tensor] = {}
        then_s = time.monotonic()
        phase = Phase.FORWARD
        for action in actions:
            if isinstance(action, Compute):
                phase = action.phase
                outputs[phase, action.micro_batch] = self._compute(action)
            else:
                phase = action.transfers[-1].phase
                self._communicate(action, outputs)
            now_s = time.monotonic()
            spent_s[phase] += now_s - then_s
            then_s = now_s
        self._communicator.finish()
        spent_s[phase] += time.monotonic() - then_s
        return spent_s

    def _compute(self, action: Compute) -> torch.Tensor:
        received = None
        if action.phase in self._receives:
            received = self._communicator.take((action.phase, action.micro_batch))
        if action.phase is Phase.FORWARD:
            return self._stage.forward(action.micro_batch, received)
        return self._stage.backward(action.micro_batch, received)

    def _communicate(
        self, action: Communicate, outputs: dict[tuple[Phase, int], torch.Tensor]
    ) -> None:
        def key(transfer: Transfer) -> tuple[Phase, int]:
            return transfer.phase, transfer.micro_batch

        self._communicator.start(
            [(key(t), self._receives[t.phase]) for t in action.transfers if not t.is_send],
            [(self._sends[t.phase], outputs.pop(key(t))) for t in action.transfers if t.is_send],
        )
        if action.wait:
            self._communicator.finish()
