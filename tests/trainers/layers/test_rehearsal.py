"""A rehearsal needs no other rank, and leaves nothing behind."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from netbench.trainers.layers import rehearsal
from netbench.trainers.layers.real import RealStage
from netbench.trainers.layers.rehearsal import rehearse
from tests.trainers.layouts import CASES, IN_16_BITS
from tests.trainers.parity import real_plan


@pytest.mark.parametrize("changes", [*CASES.values(), *IN_16_BITS.values()], ids=str)
def test_one_layer_of_a_plan_s_sizes_is_trained(changes: dict[str, Any]) -> None:
    """In one process, whatever the system and layout: three parts, one iteration, and a loss."""
    plan = real_plan(**changes)
    built: list[Any] = []

    def build(*arguments: Any) -> Any:
        built.append(RealStage(*arguments))
        return built[-1]

    with mock.patch.object(rehearsal, "build_stage", build):
        rehearse(plan)
    (stage,) = built
    assert len(stage.layers) == 3  # embedding, block, head
    assert stage.layers[1].feed_in.in_features == plan.workload.hidden
    assert stage.take_loss() > 0
    assert not stage.gradients.any()  # updated
