"""Rows of a picture: which ranks, and what fills their time."""

from __future__ import annotations

import numpy as np
import pytest

from netbench.simulator import simulate
from netbench.simulator.activity import activity
from tests.simulator.pipelines import FREE, pipeline, published


def test_activity_shows_whole_pipelines_of_every_region() -> None:
    """24 rows are three pipelines of 8: the first of Ohio, of Virginia, and one more. Nothing a
    rank does overlaps, and with its waits it fills all parts, each once."""
    simulation = published("case3", "dtfm-scheduled")
    rows = activity(simulation)
    assert len(rows) == 24
    assert "Ohio node0 (rank 0, stage 0)" in rows
    assert "Virginia node32 (rank 32, stage 0)" in rows
    once_s = sum(part.to_s - part.from_s for part in simulation.parts)
    for kinds in rows.values():
        spans = np.concatenate([when for kind, when in kinds.items() if kind != "collective"])
        spans = spans[np.argsort(spans[:, 0])]
        assert spans[0, 0] == 0
        assert spans[1:, 0] == pytest.approx(spans[:-1, 1])
        assert spans[-1, 1] == pytest.approx(once_s)


def test_activity_of_a_deep_pipeline_samples_its_stages() -> None:
    """First and last among them."""
    plan = pipeline("dtfm-scheduled", stages=40, micro_batches=4)
    rows = list(activity(simulate(plan, FREE), max_rows=10))
    assert len(rows) == 10
    assert "stage 0)" in rows[0]
    assert "stage 39)" in rows[-1]
