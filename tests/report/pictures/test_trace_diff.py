"""Two timelines in numbers and a picture, compared with sums worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.errors import UsageError
from netbench.report.pictures.style import save_picture
from netbench.report.pictures.trace_diff import (
    KINDS,
    diff_figure,
    difference_lines,
    differences,
    seconds_by_kind,
    stretches,
)
from netbench.timelines import Slice, Timeline

TICKS = 40
spans = st.lists(
    st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)).filter(lambda ends: ends[0] < ends[1])
)


def timeline(*slices: tuple[str, int, float, float], source: str = "emulated") -> Timeline:
    return Timeline(
        plan="abc",
        source=source,
        iteration_s=10.0,
        slices=tuple(Slice(kind=k, rank=r, start_s=a, end_s=b) for k, r, a, b in slices),
    )


def ticks(some: list[tuple[float, float]]) -> set[int]:
    """The integers covered by integer intervals."""
    return {tick for from_s, to_s in some for tick in range(int(from_s), int(to_s))}


@given(spans, spans)
def test_intervals_are_sets(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    """Union and difference, against Python's sets of ticks; ordered, and without overlap."""
    slices = [("forward", 0, a, b) for a, b in some] + [("send", 0, a, b) for a, b in others]
    found = stretches(timeline(*slices), 0)
    assert ticks(found["compute"]) == ticks(some)  # type: ignore[arg-type]
    assert ticks(found["send/receive"]) == ticks(others) - ticks(some)  # type: ignore[arg-type]
    for kind in ("compute", "send/receive"):
        for before, after in pairwise(found[kind]):
            assert before[1] < after[0]


@given(st.lists(st.tuples(st.sampled_from(["forward", "send", "collective"]), spans)))
def test_kinds_sum_to_the_iteration(some: list[tuple[str, list[tuple[int, int]]]]) -> None:
    """Every moment counts once, even if activities overlap."""
    slices = [(kind, 0, a / 4, b / 4) for kind, ends in some for a, b in ends]
    found = seconds_by_kind(timeline(*slices), [0])
    assert sum(found.values()) == pytest.approx(10.0)


def test_activities_that_overlap_with_compute_count_as_compute() -> None:
    """A receive that starts during a pass counts from the end of the pass; a barrier is idle."""
    found = stretches(
        timeline(
            ("forward", 0, 1.0, 3.0),
            ("receive", 0, 2.0, 4.0),
            ("collective", 0, 5.0, 7.0),
            ("optimizer", 0, 6.0, 6.5),
            ("barrier", 0, 7.0, 9.0),
            ("forward", 1, 0.0, 10.0),
        ),
        0,
    )
    assert found == {
        "compute": [(1.0, 3.0)],
        "optimizer": [(6.0, 6.5)],
        "collective": [(5.0, 6.0), (6.5, 7.0)],
        "send/receive": [(3.0, 4.0)],
        "idle": [(0.0, 1.0), (4.0, 5.0), (7.0, 10.0)],
    }


def test_the_largest_difference_comes_first_with_its_sign() -> None:
    """Mean over the ranks of a stage: 2 s and 4 s of compute against 1 s each."""
    first = timeline(("forward", 0, 0.0, 2.0), ("backward", 1, 0.0, 4.0))
    second = timeline(("forward", 0, 0.0, 1.0), ("forward", 1, 0.0, 1.0), source="simulated")
    found = differences(first, second, {"0": [0, 1]})
    assert {(cell.kind, cell.seconds) for cell in found[:2]} == {("compute", 2.0), ("idle", -2.0)}
    assert [cell.seconds for cell in found[2:]] == [0.0] * (len(KINDS) - 2)
    (line, _) = difference_lines(first, second, {"0": [0, 1]})
    assert line == (
        "0, compute: 3.000 s emulated, 1.000 s simulated (+2.000 s, +20.0% of the iteration)"
    )


def test_one_simulated_rank_represents_all() -> None:
    """All ranks of zero3 do the same."""
    first = timeline(("forward", 0, 0.0, 2.0), ("forward", 1, 0.0, 2.0))
    second = timeline(("forward", 0, 0.0, 2.0), source="simulated")
    assert all(cell.seconds == 0 for cell in differences(first, second, {"all": [0, 1]}))


def test_the_picture_has_two_lanes_per_rank(tmp_path: Path) -> None:
    """On one axis as long as the longer iteration, with a legend of the kinds in it."""
    first = timeline(("forward", 0, 0.0, 2.0), ("receive", 1, 0.0, 4.0))
    second = timeline(("backward", 0, 0.0, 1.0), ("send", 1, 0.0, 1.0), source="simulated")
    figure = diff_figure("a title", first, second, {0: "rank 0", 1: "rank 1"})
    (axis,) = figure.axes
    assert axis.get_xlim() == (0, 10.0)
    corners = [np.asarray(c.get_paths()[0].vertices) for c in axis.collections]
    lanes = {round(float(each[:, 1].mean()), 1) for each in corners}
    assert len(lanes) == 4
    assert [label.get_text() for label in axis.get_yticklabels()] == ["rank 0", "rank 1"]
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {"forward", "backward", "send/receive", "idle"}
    save_picture(diff_figure("a title", first, second, {0: "rank 0"}), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="cannot be written"):
        save_picture(
            diff_figure("a title", first, second, {0: "rank 0"}), tmp_path / "no" / "out.png"
        )
