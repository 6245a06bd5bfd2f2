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


def test_a_gpus_exchanges_are_queued_before_it_computes() -> None:
    """As a framework queues them: the last stage receives while it computes, and others too."""
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
