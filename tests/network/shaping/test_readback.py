"""Recorded output of tc for golden configurations (iproute2 6.1, Linux 6.12)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netbench.errors import NetworkError
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import Program
from netbench.network.shaping.readback import (
    differences,
    leaf_differences,
    parse,
    root_qdisc,
    unwanted_drops,
)
from netbench.network.shaping.tc import Leaf
from netbench.scenario.model import NO_BURSTS, BurstLoss
from tests.network.shaping_cases import CASES
from tests.network.shaping_cases import kept_program as planned

GOLDEN = Path(__file__).parents[2] / "golden" / "network"


def printed(name: str) -> tuple[str, str]:
    tables = (GOLDEN / f"{name}.tables.json").read_text()
    return tables, (GOLDEN / f"{name}.classes.txt").read_text()


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_program_equals_what_the_kernel_printed_of_it(name: str) -> None:
    """The figures were written by tc, not by the code that reads them."""
    assert differences(planned(name), parse(*printed(name))) == ()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("jitter_us", 2100, "has jitter 0.002397 s, planned 0.0021 s"),
        ("jitter_correlation", 0.34, "has jitter correlation 0.333333, planned 0.34"),
        (
            "bursts",
            BurstLoss(to_bad=0.02, to_good=0.3, loss_bad=0.7, loss_good=0.0005),
            "to_bad 0.01",
        ),
        (
            "bursts",
            BurstLoss(to_bad=0.01, to_good=0.4, loss_bad=0.7, loss_good=0.0005),
            "to_good 0.3",
        ),
        (
            "bursts",
            BurstLoss(to_bad=0.01, to_good=0.3, loss_bad=0.8, loss_good=0.0005),
            "loss_bad 0.7",
        ),
        (
            "bursts",
            BurstLoss(to_bad=0.01, to_good=0.3, loss_bad=0.7, loss_good=0.0),
            "loss_good 0.0005",
        ),
        ("duplication", 0.0, "has duplication 0.015 of packets, planned 0"),
        ("corruption", 0.0026, "has corruption 0.0025 of packets, planned 0.0026"),
        ("reordering", 0.03, "has reordering 0.02 of packets, planned 0.03"),
    ],
)
def test_all_impairments_of_a_link_are_compared(field: str, value: Any, words: str) -> None:
    """The output of tc for `noisy`, against a configuration that differs in one thing."""
    program = planned("noisy")
    leaves = [
        replace(leaf, **{field: value}) if leaf.minor == 3 else leaf for leaf in program.leaves
    ]
    (problem,) = differences(replace(program, leaves=tuple(leaves)), parse(*printed("noisy")))
    assert problem.startswith("netem in class 6e62:3 has")
    assert words in problem


def test_loss_of_another_kind_is_named() -> None:
    """Independent loss was planned, and loss in bursts is found."""
    program = planned("noisy")
    leaves = [replace(leaf, bursts=NO_BURSTS, loss=0.01) for leaf in program.leaves]
    problems = differences(replace(program, leaves=tuple(leaves)), parse(*printed("noisy")))
    assert "netem in class 6e62:3 has loss 0 of packets, planned 0.01 of packets" in problems
    assert (
        "netem in class 6e62:3 has bursts to_bad 0.01 of packets, planned 0 of packets" in problems
    )


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("noisy", '"gap":1', '"gap":5', "has reordering gap 5 packets, planned 1 packets"),
        ("noisy", '"gap":1', '"gap":0', "has reordering 0 of packets, planned 0.02 of packets"),
        ("noisy", '"ecn":false', '"ecn":true', "has ecn 1, planned 0"),
        ("pair", '"ecn":false', '"slot":{},"ecn":false', "has a slot model, planned none"),
        ("pair", '"packetoverhead":0', '"packetoverhead":8', "has overhead 8 bytes a packet"),
        (
            "noisy",
            '"160000"',
            '"170000"',
            "no filter sends IPv4 TCP from port 22 to the root, unsh",
        ),
        ("noisy", '"160000"', '"170000"', "filter(s) send IPv6 TCP from port 23 to the root, unsh"),
        ("noisy", '"value":"600"', '"value":"1100"', "send something other than one destination"),
        ("noisy", '"pref":1,', '"pref":5,', "send IPv4 TCP to port 22 to the root, unshaped with"),
        ("hashed", '"bkt":"3"', '"bkt":"13"', "10.77.0.3 (in bucket 13 of table 4, where nothing"),
        ("hashed", '"hash_mask":"ff"', '"hash_mask":"ff00"', "no filter sends 10.77.0.2 to class"),
        ("hashed", '"link":"6:"', '"link":"4:"', "no filter sends fd00::2 to class 6e62:2"),
    ],
)
def test_unplanned_options_are_reported(name: str, before: str, after: str, words: str) -> None:
    """Options of netem, ports, the order of filters, and hash tables."""
    tables, classes = printed(name)
    assert before in tables
    problems = differences(planned(name), parse(tables.replace(before, after), classes))
    assert any(words in problem for problem in problems), problems


def test_unused_options_that_netem_keeps_are_ignored() -> None:
    """After a change, reordering stays with a gap of 0, and a correlation without jitter."""
    tables, classes = printed("pair")
    delay, reorder = '"jitter":0,"correlation":0', '"reorder":{"reorder":0.02,"correlation":0},'
    assert delay in tables
    stale = tables.replace(delay, '"jitter":0,"correlation":0.25')
    stale = stale.replace('"ecn"', f'{reorder}"ecn"')
    assert stale.count(reorder) == 3
    assert differences(planned("pair"), parse(stale, classes)) == ()


def test_a_jitter_that_tc_rounds_to_nothing_has_any_correlation() -> None:
    """tc prints netem's 15 ticks of 64 ns, for 1 us, as 0."""
    leaf = Leaf(
        minor=2, delay_us=5, jitter_us=1, loss=0.0, rate_bps=1000000, limit_packets=9,
        jitter_correlation=0.01,
    )  # fmt: skip
    delay = {"delay": 4e-6, "jitter": 0, "correlation": 0.01}
    options = {"limit": 9, "delay": delay, "rate": {"rate": 125000}}
    found = {"kind": "netem", "handle": "2:", "options": options}
    assert list(leaf_differences("6e62:2", leaf, found)) == []


def test_wrong_filters_are_reported_with_their_handle() -> None:
    """Protocol, priority and handle name a filter to tc."""
    filters = parse(*printed("noisy")).filters
    assert len(filters) == 8 + 5
    assert (filters[0].match, filters[0].target) == ("IPv4 TCP from port 22", HANDLE)
    assert (filters[0].protocol, filters[0].priority, filters[0].handle) == ("ip", 1, "800::800")
    assert [f.match for f in filters[-2:]] == ["fd00::2", "fd00::3"]
    found = parse(*printed("noisy"))
    assert len([rule for rule in found.filters if rule.target != HANDLE]) == 5


def change_leaf(program: Program, **fields: Any) -> Program:
    first = replace(program.leaves[0], **fields)
    return replace(program, leaves=(first, *program.leaves[1:]))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("limit_packets", 1000, "has limit"),
        ("delay_us", 1010, "has delay"),
        ("jitter_us", 100, "has jitter"),
        ("loss", 0.001, "has loss"),
        ("rate_bps", 5_000_008, "has rate"),
    ],
)
def test_any_field_of_a_leaf_that_differs_is_named(field: str, value: float, words: str) -> None:
    """A field tc had kept from before would change every result without a sign."""
    changed = change_leaf(planned("pair-scaled"), **{field: value})
    problems = differences(changed, parse(*printed("pair-scaled")))
    assert len(problems) == 1
    assert f"netem in class 6e62:2 {words}" in problems[0]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("rate 25Mbit", "rate 24Mbit", "class 6e62:ffff has rate 24000000 bit/s"),
        ("ceil 25Mbit", "ceil 1Gbit", "has ceil 1000000000 bit/s, planned 25000000"),
        (" burst 3125b", " burst 64Kb", "class 6e62:ffff has burst 65536 bytes, planned 3125"),
        ("quantum 3125", "quantum 60000", "has quantum 60000 bytes, planned 3125"),
        ("parent 6e62:ffff", "root", "class 6e62:2 is under root, planned 6e62:ffff"),
        ("class htb 6e62:2", "class htb 6e62:9", "class 6e62:2 is missing"),
        ("class htb 6e62:2", "class htb 6e62:9", "class 6e62:9 was not planned"),
    ],
)
def test_any_field_of_a_class_that_differs_is_named(before: str, after: str, words: str) -> None:
    """The cap of a NIC is in its classes only."""
    tables, classes = printed("nic-scaled")
    assert before in classes
    problems = differences(planned("nic-scaled"), parse(tables, classes.replace(before, after)))
    assert any(words in problem for problem in problems)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"value":"a4d0002"', '"value":"a4d0009"', "no filter sends 10.77.0.2 to class 6e62:2"),
        ('"value":"a4d0003"', '"value":"a4d0002"', "1 filter(s) send 10.77.0.2 to class 6e62:3"),
        ('"mask":"ffffffff"', '"mask":"ffff0000"', "something other than one destination"),
        ('"flowid":"6e62:3"', '"flowid":"6e62:2"', "no filter sends fd00::3 to class 6e62:3"),
        ('"handle":"3:"', '"handle":"33:"', "netem in class 6e62:3 is 33:, planned 3:"),
        ('"kind":"netem"', '"kind":"pfifo"', "class 6e62:3 holds a pfifo qdisc, planned netem"),
        ('"default":"0"', '"default":"0x5"', "unmatched traffic goes to class 5, planned 0"),
        ('"handle":"6e62:","root"', '"handle":"1:","root"', "the root qdisc is htb 1:"),
    ],
)
def test_wrong_filters_and_qdiscs_are_named(before: str, after: str, words: str) -> None:
    """Each destination must reach its own queue, once."""
    tables, classes = printed("pair")
    tables = tables.replace('"value":"a', '"value":"a')
    assert before in tables
    problems = differences(planned("pair"), parse(tables.replace(before, after), classes))
    assert any(words in problem for problem in problems), problems


def test_drops_count_where_no_loss_was_asked_for() -> None:
    """A queue that overflows spoils a measurement; loss of the scenario's own does not."""
    tables, classes = printed("rough")
    lossy = tables.replace('"drops":0', '"drops":7')
    program = planned("rough")
    assert [leaf.loss for leaf in program.leaves] == [0.0, 0.0123, 0.0123]
    assert unwanted_drops(program, parse(tables, classes)) == 0
    assert unwanted_drops(program, parse(lossy, classes)) == 7


def test_drops_of_a_stated_queue_or_of_bursts_are_asked_for() -> None:
    """Two of the three leaves of `noisy` lose packets in bursts and hold 500."""
    tables, classes = printed("noisy")
    found = parse(tables.replace('"drops":0', '"drops":7'), classes)
    program = planned("noisy")
    assert unwanted_drops(program, found) == 7
    one_fault: tuple[dict[str, Any], ...] = ({"bursts": NO_BURSTS}, {"may_overflow": False})
    for fields in one_fault:
        leaves = tuple(replace(leaf, **fields) for leaf in program.leaves)
        assert unwanted_drops(replace(program, leaves=leaves), found) == 7
    leaves = tuple(replace(leaf, bursts=NO_BURSTS, may_overflow=False) for leaf in program.leaves)
    assert unwanted_drops(replace(program, leaves=leaves), found) == 21


def test_an_interface_without_shaping_is_one_clear_problem() -> None:
    """It is not a list of everything that is missing."""
    bare = '[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]\n[]'
    assert root_qdisc(bare) == ("noqueue", "0:")
    assert differences(planned("pair"), parse(bare, "")) == (
        "the root qdisc is noqueue 0:, planned htb 6e62:",
    )


@pytest.mark.parametrize("text", ["Cannot find device", "[]", ""])
def test_output_that_is_not_two_tables_is_an_error(text: str) -> None:
    """A tc that prints something else must not pass for an empty interface."""
    with pytest.raises(NetworkError, match="tc printed"):
        parse(text, "")
