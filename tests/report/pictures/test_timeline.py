"""Pictures of an iteration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray

from netbench.errors import UsageError
from netbench.report.pictures.style import save_picture
from netbench.report.pictures.timeline import COLORS, close_up, timeline_figure

PARTS = [("round", 10.0, 3.0), ("synchronise", 5.0, 1.0)]


def when(*stretches: tuple[float, float]) -> NDArray[np.float64]:
    return np.array(stretches, dtype=np.float64)


PIPELINE = {
    "node0": {
        "forward": when(*((i, i + 0.5) for i in range(10))),
        "waiting for network": when(*((i + 0.5, i + 1) for i in range(10))),
        "collective": when((10, 14)),
        "optimizer": when((14, 15)),
    },
    "node1": {"backward": when((1, 2), (3, 10)), "waiting for compute": when((0, 1), (2, 3))},
}


def bars(figure: Figure, panel: int) -> dict[str, list[tuple[float, float, float, float]]]:
    """Colour -> left, right, upper and lower edge of every bar."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for collection in figure.axes[panel].collections:
        for path in collection.get_paths():
            corners = np.asarray(path.vertices)
            (left, high), (right, low) = corners.min(axis=0), corners.max(axis=0)
            color = to_hex(tuple(np.asarray(collection.get_facecolor())[0]))
            found.setdefault(color, []).append((left, right, high, low))
    return found


def test_all_activities_are_drawn_over_the_whole_iteration() -> None:
    """A row per rank from the top down, a colour per kind."""
    figure = timeline_figure("two nodes", PIPELINE, PARTS)
    whole = bars(figure, 1)
    assert [(bar[0], bar[1]) for bar in whole[COLORS["backward"]]] == [(1, 2), (3, 10)]
    assert len(whole[COLORS["forward"]]) == 10
    assert [(bar[0], bar[1]) for bar in whole[COLORS["optimizer"]]] == [(14, 15)]
    assert whole[COLORS["forward"]][0][2:] == pytest.approx((-0.42, 0.42))
    assert whole[COLORS["backward"]][0][2:] == pytest.approx((0.58, 1.42))
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["node0", "node1"]
    assert figure.axes[1].get_xlim() == (0, 15)


def test_the_legend_names_what_is_drawn() -> None:
    """Kinds that do not occur are left out."""
    figure = timeline_figure("one", {"node1": PIPELINE["node1"]}, PARTS)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["backward", "waiting for compute"]


def test_parts_have_their_number_of_repetitions() -> None:
    """Above the whole iteration; the close-up names its part."""
    figure = timeline_figure("two nodes", PIPELINE, PARTS)
    assert [text.get_text() for text in figure.axes[1].texts] == ["round × 3", "synchronise"]
    assert figure.axes[0].get_title(loc="left") == "close up: 8 s of round × 3"


def test_the_close_up_has_eight_passes_two_thirds_into_the_longest_part() -> None:
    """40 passes in 10 s of a part that occurs 3 times: 2 s, after two thirds of the other 8."""
    rows = {"node0": {"forward": when(*((i / 4, i / 4 + 0.1) for i in range(40)))}}
    assert close_up(rows, PARTS) == pytest.approx((8 * 2 / 3, 8 * 2 / 3 + 2))


def test_a_part_with_few_passes_is_shown_whole() -> None:
    """A part without passes is ignored, even if it is the longest."""
    rows = {"node0": {"forward": when((0, 1)), "collective": when((10, 99))}}
    assert close_up(rows, [("micro-step", 10.0, 1.0), ("gather", 89.0, 1.0)]) == (0, 10)


def test_a_collective_that_overlaps_with_compute_is_a_bar_beneath_it() -> None:
    """Otherwise hidden communication would be invisible."""
    rows = {"every rank": {"backward": when((0, 4)), "collective": when((2, 6))}}
    found = bars(timeline_figure("ddp", rows, [("last", 6.0, 1.0)]), 1)
    (compute,), (collective,) = found[COLORS["backward"]], found[COLORS["collective"]]
    assert compute[2:] == pytest.approx((-0.42, 0.12))
    assert collective[2:] == pytest.approx((0.12, 0.42))


def test_colours_differ_in_lightness_and_occur_once() -> None:
    """Waiting is paler than work."""
    assert len(set(COLORS.values())) == len(COLORS)

    def lightness(color: str) -> float:
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    pale = {kind for kind in COLORS if "waiting" in kind or kind == "delay"}
    work = [lightness(color) for kind, color in COLORS.items() if kind not in pale]
    waiting = [lightness(color) for kind, color in COLORS.items() if kind in pale]
    assert min(waiting) > max(work) + 30


@pytest.mark.parametrize(("name", "begins"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml")])
def test_the_suffix_selects_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    """The formats that matplotlib supports."""
    save_picture(timeline_figure("two nodes", PIPELINE, PARTS), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.parametrize("name", ["x.banana", "missing/x.png"])
def test_a_picture_that_cannot_be_written_is_one_message(tmp_path: Path, name: str) -> None:
    """An unknown suffix and a missing folder both name the path."""
    with pytest.raises(UsageError, match=f"{name}: the picture cannot be written"):
        save_picture(timeline_figure("two nodes", PIPELINE, PARTS), tmp_path / name)
