"""Links in a scenario file: pairs, one-way links, matrices, links inside a region."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netbench.errors import ScenarioError
from netbench.scenario import load_scenario
from netbench.scenario.model import Link

Bend = Callable[..., str]

PAIR = "    - {between: [A, B], one_way_delay: 11ms, bandwidth: 1Gbit}\n"
INSIDE = "  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}\n"


def problem(path: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return str(caught.value).removeprefix(path)


def test_between_gives_both_directions(bend: Bend) -> None:
    """With jitter and loss where they are given."""
    path = bend("bandwidth: 1Gbit}", "bandwidth: 1Gbit, jitter: 2ms, loss: 0.1%}")
    links = load_scenario(path).network.links
    assert links[0][1] == links[1][0]
    assert links[0][1] == Link(one_way_delay_s=0.011, bandwidth_bps=1e9, jitter_s=0.002, loss=0.001)


def test_from_and_to_give_one_direction_each(bend: Bend) -> None:
    """[src][dst]."""
    new = (
        "    - {from: A, to: B, one_way_delay: 11ms, bandwidth: 1Gbit}\n"
        "    - {from: B, to: A, one_way_delay: 12ms, bandwidth: 2Gbit}\n"
    )
    links = load_scenario(bend(PAIR, new)).network.links
    assert (links[0][1].one_way_delay_s, links[0][1].bandwidth_bps) == (0.011, 1e9)
    assert (links[1][0].one_way_delay_s, links[1][0].bandwidth_bps) == (0.012, 2e9)


def test_inside_can_differ_per_region(bend: Bend) -> None:
    """A mapping region -> link."""
    new = "  inside: {A: {one_way_delay: 1ms}, B: {one_way_delay: 2ms, bandwidth: 1Gbit}}\n"
    links = load_scenario(bend(INSIDE, new)).network.links
    assert links[0][0].one_way_delay_s == 0.001
    assert links[1][1] == Link(one_way_delay_s=0.002, bandwidth_bps=1e9)


def test_inside_is_not_needed_for_single_nodes(bend: Bend) -> None:
    """Nothing would cross it."""
    both = "  - {region: A, count: 2, device: V100}\n  - {region: B, count: 2, device: V100}\n"
    network = f"network:\n{INSIDE}"
    path = bend(both + network, both.replace("count: 2", "count: 1") + "network:\n")
    assert load_scenario(path).network.links[0][1].one_way_delay_s == 0.011


def matrix(bend: Bend, delay: str, bandwidth: str = "[[5Gbit, 1Gbit], [2Gbit, 5Gbit]]") -> str:
    """Path of the small scenario with its links as a matrix."""
    new = f"  links:\n    one_way_delay: {delay}\n    bandwidth: {bandwidth}\n"
    return bend(f"{INSIDE}  links:\n{PAIR}", new)


def test_a_matrix_has_a_row_per_source_and_the_inside_on_its_diagonal(bend: Bend) -> None:
    """Asymmetric values are directed links."""
    links = load_scenario(matrix(bend, "[[1ms, 11ms], [12ms, 2ms]]")).network.links
    assert [[link.one_way_delay_s for link in row] for row in links] == [
        [0.001, 0.011],
        [0.012, 0.002],
    ]
    assert (links[0][1].bandwidth_bps, links[1][0].bandwidth_bps) == (1e9, 2e9)


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (
            "[[1ms, 11ms], [12ms]]",
            ":7: network.links.one_way_delay[1] has 1 values; expected 2, one per region",
        ),
        (
            "[[1ms, 11ms, 1ms], [1ms, 1ms, 1ms]]",
            ":7: network.links.one_way_delay[0] has 3 values; expected 2, one per region",
        ),
        (
            "[[1ms, 11ms]]",
            ":7: network.links.one_way_delay has 1 rows; expected 2, one per region",
        ),
        ("[[1ms, 11], [1ms, 1ms]]", ':7: network.links.one_way_delay[0][1] "11" has no unit'),
        ("[[1ms, -1ms], [1ms, 1ms]]", ':7: network.links.one_way_delay[0][1] "-1ms" is negative'),
    ],
)
def test_a_matrix_of_the_wrong_size_is_refused(bend: Bend, delay: str, message: str) -> None:
    """Regions x regions, always."""
    assert problem(matrix(bend, delay)).startswith(message)


def test_a_matrix_and_an_inside_contradict(bend: Bend) -> None:
    """The diagonal is the inside."""
    new = "  links: {one_way_delay: [[1ms, 2ms], [2ms, 1ms]], bandwidth: [[1Gbit, 1Gbit], [1Gbit, 1Gbit]]}\n"  # noqa: E501
    assert problem(bend(f"  links:\n{PAIR}", new)).startswith(
        ":6: network.inside is given beside a matrix"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            f"  links:\n{PAIR}",
            "  links: []\n",
            ':7: network.links has no link A -> B; add e.g. "- {between: [A, B], one_way_delay:',
        ),
        (
            "between: [A, B]",
            "from: A, to: B",
            ':7: network.links has no link B -> A; add e.g. "- {from: B, to: A, one_way_delay:',
        ),
        (
            PAIR,
            PAIR + PAIR,
            ":9: network.links[1] gives A -> B again, which is on line 8; keep one of the two",
        ),
        (
            PAIR,
            PAIR + "    - {from: B, to: A, one_way_delay: 1ms}\n",
            ":9: network.links[1] gives B -> A again, which is on line 8",
        ),
        (
            "between: [A, B]",
            "between: [A, C]",
            ':8: network.links[0].between "C" is not in regions; expected one of A, B',
        ),
        (
            "between: [A, B]",
            "from: Aa, to: B",
            ':8: network.links[0].from "Aa" is not in regions; did you mean A?',
        ),
        ("between: [A, B]", "between: [A, A]", ":8: network.links[0] joins A with itself"),
        (
            "between: [A, B]",
            "between: [A]",
            ":8: network.links[0].between is ['A']; expected at least 2 of them",
        ),
        ("between: [A, B]", "from: A", ':8: network.links[0] needs either "between: [A, B]" or'),
        (
            "between: [A, B]",
            "between: [A, B], to: B",
            ':8: network.links[0] needs either "between: [A, B]" or',
        ),
        (
            INSIDE,
            "",
            ':5: network has no link inside A, which has 2 nodes; write e.g. "inside: {one_way_',
        ),
        (
            INSIDE,
            "  inside: {A: {one_way_delay: 1ms}}\n",
            ":6: network.inside has no link inside B, which has 2 nodes",
        ),
        (
            INSIDE,
            "  inside: {A: {one_way_delay: 1ms}, D: {one_way_delay: 1ms}}\n",
            ':6: network.inside.D "D" is not in regions',
        ),
        ("bandwidth: 1Gbit}", "loss: 0.1}", ':8: network.links[0].loss "0.1" has no unit'),
    ],
)
def test_links_that_do_not_fit_the_regions_are_named(
    bend: Bend, old: str, new: str, message: str
) -> None:
    """Missing, repeated, unknown, one end only."""
    assert problem(bend(old, new)).startswith(message)
