"""Links in a scenario file: pairs, one-way links, matrices, links inside a region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from netbench.errors import ScenarioError
from netbench.scenario import load_scenario
from netbench.scenario.model import BurstLoss, Link

Bend = Callable[..., str]

PAIR = "    - {between: [A, B], one_way_delay: 11ms, bandwidth: 1Gbit}\n"
INSIDE = "  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}\n"


def problem(path: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return str(caught.value).removeprefix(path)


def test_between_gives_both_directions(bend: Bend) -> None:
    """Including jitter and loss."""
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


def test_a_round_trip_time_is_twice_the_delay(bend: Bend) -> None:
    """Ping measures round trips; netem delays one direction."""
    path = bend(PAIR, "    - {between: [A, B], rtt: 22ms, bandwidth: 1Gbit}\n")
    assert load_scenario(path).network.links[0][1].one_way_delay_s == 0.011


@pytest.mark.parametrize(
    ("delays", "message"),
    [
        ("one_way_delay: 11ms, rtt: 22ms", "rtt is given beside one_way_delay; keep one"),
        ("rtt: 22", 'rtt "22" has no unit; write e.g. "22ms"'),
        ("rtt: -1ms", 'rtt "-1ms" is negative'),
        ("bandwidth: 2Gbit", "one_way_delay is missing"),
    ],
)
def test_a_delay_is_given_once(bend: Bend, delays: str, message: str) -> None:
    """Either way, and the message names the key."""
    path = bend(PAIR, PAIR.replace("one_way_delay: 11ms, bandwidth: 1Gbit", delays))
    assert f":8: network.links[0].{message}" in problem(path)


def test_inside_can_differ_per_region(bend: Bend) -> None:
    """A mapping region -> link."""
    new = "  inside: {A: {one_way_delay: 1ms}, B: {one_way_delay: 2ms, bandwidth: 1Gbit}}\n"
    links = load_scenario(bend(INSIDE, new)).network.links
    assert links[0][0].one_way_delay_s == 0.001
    assert links[1][1] == Link(one_way_delay_s=0.002, bandwidth_bps=1e9)


def test_inside_is_not_needed_for_single_nodes(bend: Bend) -> None:
    """Nothing crosses it."""
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
            ":7: network.links.one_way_delay[1] has 1 value; expected 2, one per region",
        ),
        (
            "[[1ms, 11ms, 1ms], [1ms, 1ms, 1ms]]",
            ":7: network.links.one_way_delay[0] has 3 values; expected 2, one per region",
        ),
        ("[[1ms, 11ms]]", ":7: network.links.one_way_delay has 1 row; expected 2, one per region"),
        ("[[1ms, 11], [1ms, 1ms]]", ':7: network.links.one_way_delay[0][1] "11" has no unit'),
        ("[[1ms, -1ms], [1ms, 1ms]]", ':7: network.links.one_way_delay[0][1] "-1ms" is negative'),
    ],
)
def test_a_matrix_of_the_wrong_size_is_refused(bend: Bend, delay: str, message: str) -> None:
    """Its size must be regions x regions."""
    assert problem(matrix(bend, delay)).startswith(message)


def test_a_matrix_and_an_inside_contradict(bend: Bend) -> None:
    """The diagonal of the matrix is the inside."""
    new = "  links: {one_way_delay: [[1ms, 2ms], [2ms, 1ms]], bandwidth: [[1Gbit, 1Gbit], [1Gbit, 1Gbit]]}\n"  # noqa: E501
    assert problem(bend(f"  links:\n{PAIR}", new)).startswith(
        ":6: network.inside is given together with a matrix"
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


def across(bend: Bend, options: str) -> Link:
    """Return the link between the regions of the small scenario, with more options."""
    return load_scenario(bend("bandwidth: 1Gbit}", f"bandwidth: 1Gbit, {options}}}")).network.links[
        0
    ][1]


PLAIN = Link(one_way_delay_s=0.011, bandwidth_bps=1e9)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("jitter: 2ms", {"jitter_s": 0.002}),
        ("jitter: {deviation: 2ms}", {"jitter_s": 0.002}),
        (
            "jitter: {deviation: 2ms, distribution: pareto, correlation: 25%, reorders: true}",
            {
                "jitter_s": 0.002,
                "jitter_distribution": "pareto",
                "jitter_correlation": 0.25,
                "jitter_reorders": True,
            },
        ),
        ("jitter: {deviation: 0ms, distribution: pareto, reorders: true}", {}),
        ("loss: {to_bad: 1%, to_good: 30%}", {"bursts": BurstLoss(to_bad=0.01, to_good=0.3)}),
        (
            "loss: {to_bad: 1%, to_good: 30%, in_bad: 70%, in_good: 0.5%}",
            {"bursts": BurstLoss(to_bad=0.01, to_good=0.3, loss_bad=0.7, loss_good=0.005)},
        ),
        (
            "duplication: 100%, corruption: 0.1%, reordering: 2%, queue: 64K",
            {"duplication": 1.0, "corruption": 0.001, "reordering": 0.02, "queue_packets": 64000},
        ),
    ],
)
def test_what_else_a_link_does_to_packets(bend: Bend, options: str, fields: dict[str, Any]) -> None:
    """Each impairment is a value, or a mapping with details."""
    assert across(bend, options) == replace(PLAIN, **fields)


def test_the_inside_of_all_regions_can_say_more(bend: Bend) -> None:
    """A mapping under `jitter` or `loss` is not a mapping of regions."""
    path = bend(
        INSIDE, "  inside: {one_way_delay: 9ms, jitter: {deviation: 2ms, reorders: true}}\n"
    )
    links = load_scenario(path).network.links
    assert links[0][0] == links[1][1]
    assert (links[0][0].jitter_s, links[0][0].jitter_reorders) == (0.002, True)


def test_loss_in_bursts_has_its_mean(bend: Bend) -> None:
    """1 of 31 packets meets the bad state, which loses 70%; the good state loses 0.5%."""
    link = across(bend, "loss: {to_bad: 1%, to_good: 30%, in_bad: 70%, in_good: 0.5%}")
    assert link.mean_loss == pytest.approx((0.7 + 30 * 0.005) / 31)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("jitter: {distribution: normal}", '.jitter.deviation is missing; write e.g. "deviation: '),
        ("jitter: {deviation: 2ms, distribution: gauss}", '.jitter.distribution is "gauss"; expec'),
        ("jitter: {deviation: 2ms, correlation: 150%}", '.jitter.correlation "150%" is too large'),
        ("jitter: {deviation: 2ms, correlation: 100%}", '.jitter.correlation "100%" gives every'),
        ("jitter: {deviation: 2ms, correlation: 0.5}", '.jitter.correlation "0.5" has no unit'),
        ("jitter: {deviation: 2ms, reorders: 3}", ".jitter.reorders is 3; expected"),
        ("jitter: {deviation: 12ms}", ".jitter of 12ms is more than the delay, 11ms; lower it"),
        ("jitter: 12ms", ".jitter of 12ms is more than the delay, 11ms; lower it"),
        ("loss: {to_bad: 1%}", '.loss.to_good is missing; write e.g. "to_good: 30%"'),
        ("loss: {to_bad: 0%, to_good: 1%}", '.loss.to_bad "0%" never leaves the good state; write'),
        ("loss: {to_bad: 1%, to_good: 0%}", '.loss.to_good "0%" never leaves the bad state; write'),
        ("loss: {to_bad: 1%, to_good: 9%, in_good: 100%}", '.loss.in_good "100%" loses every pac'),
        ("loss: {to_bad: 1%, to_good: 9%, in_bad: 0%}", ".loss has in_bad no larger than in_good"),
        ("duplication: 101%", '.duplication "101%" is too large; at most 100%'),
        ("corruption: 100%", '.corruption "100%" damages every packet'),
        ("reordering: 100%", '.reordering "100%" lets every packet go ahead'),
        ("queue: 0", ".queue is 0; expected more than 0"),
        ("queue: 1.5", '.queue "1.5" is not a whole number'),
    ],
)
def test_what_a_link_cannot_do_is_named(bend: Bend, options: str, message: str) -> None:
    """The error has line, key, what was found and what to write."""
    path = bend("bandwidth: 1Gbit}", f"bandwidth: 1Gbit, {options}}}")
    assert problem(path).startswith(f":8: network.links[0]{message}")


def test_packets_overtake_nothing_on_a_link_without_delay(bend: Bend) -> None:
    """netem reorders by sending packets at once; `tc` refuses that without a delay."""
    path = bend("one_way_delay: 11ms", "one_way_delay: 0ms, reordering: 1%")
    assert problem(path).startswith(":8: network.links[0].reordering sends packets without the")


def test_jitter_above_the_delay_is_named_wherever_a_link_is_given(bend: Bend) -> None:
    """Inside a region, in a matrix, in a network to sweep over."""
    inside = bend(INSIDE, "  inside: {one_way_delay: 1ms, jitter: 2ms}\n")
    assert problem(inside).startswith(":6: network.inside.jitter of 2ms is more than")
    per_region = bend(
        INSIDE, "  inside: {A: {one_way_delay: 1ms, jitter: 2ms}, B: {one_way_delay: 1s}}\n"
    )
    assert problem(per_region).startswith(":6: network.inside.A.jitter of 2ms is more than")
    rows = bend(
        f"{INSIDE}  links:\n{PAIR}",
        "  links:\n"
        "    one_way_delay: [[1ms, 2ms], [2ms, 1ms]]\n"
        "    bandwidth: [[1Gbit, 1Gbit], [1Gbit, 1Gbit]]\n"
        "    jitter:\n"
        "      - [0ms, 1ms]\n"
        "      - [3ms, 0ms]\n",
    )
    assert problem(rows).startswith(":11: network.links.jitter[1][0] of 3ms is more than")
    more = "sweep: {networks: [{name: x, one_way_delay: 1ms, jitter: 2ms}]}\n"
    assert problem(bend(more=more)).startswith(":10: sweep.networks[0].jitter of 2ms is more than")


def test_regions_can_share_trunks(bend: Bend) -> None:
    """One rate for all traffic from one region to another."""
    assert load_scenario(bend("network:", "network:\n  sharing: trunk")).network.sharing == "trunk"
