"""The picture of searches over time, with made-up searches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from netbench.report.pictures.convergence import convergence_figure
from netbench.report.pictures.style import save_picture
from netbench.report.tables.schedule import Contest, FoundPlacement


def found(scheduler: str, seed: int, *curve: tuple[float, float]) -> FoundPlacement:
    return FoundPlacement(
        scheduler=scheduler,
        seed=seed,
        simulated_s=curve[-1][1],
        cost_s=None,
        search_s=curve[-1][0],
        num_evaluated=1,
        curve=curve,
    )


CONTEST = Contest(
    found=(
        found("identity", 1, (0.0, 40.0)),
        found("dtfm", 1, (0.1, 38.0), (1.0, 30.0), (10.0, 30.0)),
        found("dtfm", 2, (0.2, 36.0), (2.0, 34.0), (10.0, 34.0)),
    ),
    bound_s=20.0,
)


def test_a_line_is_the_mean_of_the_best_so_far() -> None:
    """It begins when every seed has a result, and is constant between two improvements."""
    axis = convergence_figure("made up", CONTEST).axes[0]
    identity, dtfm = axis.get_lines()[:2]
    assert set(np.asarray(identity.get_ydata())) == {40.0}
    assert identity.get_linestyle() == ":"
    values = dict(np.asarray(dtfm.get_xydata()).tolist())
    assert values == {0.2: 37.0, 1.0: 33.0, 2.0: 32.0, 10.0: 32.0}
    assert dtfm.get_drawstyle() == "steps-post"


def test_the_bound_and_every_name_are_in_the_picture() -> None:
    """No line ends outside the panel."""
    axis = convergence_figure("made up", CONTEST).axes[0]
    assert {text.get_text() for text in axis.texts} == {"lower bound", "identity", "dtfm"}
    low, high = axis.get_ylim()
    assert low < 20.0 < 40.0 < high


@pytest.mark.parametrize("bound_s", [20.0, None])
def test_the_picture_is_written(bound_s: float | None, tmp_path: Path) -> None:
    """It may have instant schedulers only, and no bound."""
    for contest in (CONTEST, Contest(found=CONTEST.found[:1], bound_s=bound_s)):
        save_picture(convergence_figure("made up", contest), tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
