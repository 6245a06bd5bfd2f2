"""Activity for pictures: the ranks shown, and their stretches of time."""

from __future__ import annotations

import numpy as np
import pytest

from netbench.explain.activity import activity
from netbench.simulator import simulate
from tests.plans import NO_LIMITS, pipeline_plan, simulate_published


def test_activity_shows_whole_pipelines_of_every_region() -> None:
    """24 rows are three pipelines of 8: the first of Ohio, the first of Virginia, and one more. A
    rank's stretches do not overlap, and with its waits they fill all parts."""
    simulation = simulate_published("case3", "dtfm-scheduled")
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
    """The first and last stage are among them."""
    plan = pipeline_plan("dtfm-scheduled", stages=40, micro_batches=4)
    rows = list(activity(simulate(plan, NO_LIMITS), max_rows=10))
    assert len(rows) == 10
    assert "stage 0)" in rows[0]
    assert "stage 39)" in rows[-1]
