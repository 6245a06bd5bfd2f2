"""The picture of searches over time, from made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from netbench.report.convergence import convergence_figure, plot_convergence
from netbench.report.schedule import Contest, Found


def found(scheduler: str, seed: int, *curve: tuple[float, float]) -> Found:
    return Found(
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


def test_a_line_is_the_mean_of_the_best_so_far_at_each_moment() -> None:
    """From when every seed has found something; between two finds it stays where it was."""
    axis = convergence_figure("made up", CONTEST).axes[0]
    identity, dtfm = axis.get_lines()[:2]
    assert set(identity.get_ydata()) == {40.0}
    assert identity.get_linestyle() == ":"
    values = dict(zip(dtfm.get_xdata(), dtfm.get_ydata(), strict=True))
    assert values == {0.2: 37.0, 1.0: 33.0, 2.0: 32.0, 10.0: 32.0}
    assert dtfm.get_drawstyle() == "steps-post"


def test_the_bound_and_every_name_are_in_it() -> None:
    """And nothing ends outside the panel."""
    axis = convergence_figure("made up", CONTEST).axes[0]
    assert {text.get_text() for text in axis.texts} == {"lower bound", "identity", "dtfm"}
    low, high = axis.get_ylim()
    assert low < 20.0 < 40.0 < high


@pytest.mark.parametrize("bound_s", [20.0, None])
def test_the_picture_is_written(bound_s: float | None, tmp_path: Path) -> None:
    """Also of instant schedulers alone, and without a bound."""
    for contest in (CONTEST, Contest(found=CONTEST.found[:1], bound_s=bound_s)):
        plot_convergence("made up", contest, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
