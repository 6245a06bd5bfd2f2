"""Programs of a pipeline's rank, without other ranks."""

from __future__ import annotations

from unittest import mock

import torch

from netbench.plan.build import build_plan
from netbench.plan.schedules import gpipe
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.trainers.communication.world import World
from netbench.trainers.systems import pipeline
from netbench.trainers.systems.pipeline import PipelineRank
from netbench.trainers.systems.registry import build_trainer

MIB = 1 << 20


def cut(case: str, variant: str, rank: int) -> tuple[tuple[int, ...], int, int]:
    """Return where the first messages that a rank sends and receives are cut, how many pieces are
    late, and how many go ahead."""
    setting = Setting(layers=24, batch=1024, seed=2022)
    plan = build_plan(load_scenario(case), variant, setting)
    with (
        mock.patch.object(pipeline, "Outbox") as outbox,
        mock.patch.object(pipeline, "Inbox") as inbox,
    ):
        build_trainer(World(None, rank, 64), plan)
    sent, received = outbox.call_args_list[0].kwargs, inbox.call_args_list[0].args
    assert received[6:] == ((sent["cuts"],) if sent["cuts"] else ())
    return sent["cuts"], sent["num_late"], received[4]


def test_the_last_bytes_that_buffers_hold_are_late_and_the_first_ones_ahead() -> None:
    """E = 4.6 MB inside a university of case 3: most of DT-FM's 8 MiB, little of 32 MiB."""
    held = round(2 * MIB + 2 * 5e9 / 8 * 2e-3)
    assert cut("case3", "dtfm-scheduled", 8) == ((8 * MIB - held, held), 2, 2)
    assert cut("case3", "deepspeed-pp", 8) == ((held, 32 * MIB - held), 1, 1)


def test_a_rank_that_cannot_tell_what_has_left_cuts_once() -> None:
    """Megatron waits until all has arrived. Behind a NIC, 2.3 MB of 8 MiB go ahead. Over 10 ms at 2
    Gbit/s buffers hold more than a message; floor(2E / S) are ahead."""
    held = round(2 * MIB + 2 * 5e9 / 8 * 2e-3)
    assert cut("case3", "megatron-p8", 8) == ((held,), 0, 1)
    (first,), *counts = cut("case2", "dtfm-scheduled", 8)
    assert 2 * MIB < first < 4 * MIB
    assert counts == [0, 1]
    assert cut("case5", "dtfm-scheduled", 8)[:2] == ((), 0)


def test_a_gpus_exchanges_are_queued_before_it_computes() -> None:
    """A framework queues them too: so the last stage receives while it computes, and others do."""
    plan = build_plan(
        load_scenario("case3"), "dtfm-scheduled", Setting(layers=24, batch=1024, seed=2022)
    )
    processes, noted = range(0, 64, 8), list[str]()
    chunk = mock.Mock()

    def compute(*_: object) -> torch.Tensor:
        noted.append("compute")
        return torch.zeros(1)

    chunk.forward.side_effect = compute
    (programs, _) = gpipe(8, 3)
    for stage in (0, 7):
        with mock.patch.object(pipeline, "OverlappedCommunicator") as communicator:
            communicator.return_value.start.side_effect = lambda *_: noted.append("exchange")
            rank = PipelineRank(
                World(None, processes[stage], 64), plan, processes, [chunk], [programs[stage]]
            )
            rank.run(programs[stage])
        assert noted == ["exchange"] * 3 + ["compute"] * 3
        noted.clear()
