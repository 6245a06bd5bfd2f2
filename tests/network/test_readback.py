"""What tc printed for the kept programs (iproute2 6.1, Linux 6.12), parsed and compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from netbench.errors import NetworkError
from netbench.network.program import HtbClass, Leaf, Program
from netbench.network.readback import differences, parse, root_qdisc, unwanted_drops
from netbench.scenario.model import BurstLoss
from tests.network.shaping_cases import CASES
from tests.network.shaping_cases import kept_program as planned

GOLDEN = Path(__file__).parents[1] / "golden" / "network"


def printed(name: str) -> tuple[str, str]:
    tables = (GOLDEN / f"{name}.tables.json").read_text()
    return tables, (GOLDEN / f"{name}.classes.txt").read_text()


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_program_equals_what_the_kernel_printed_of_it(name: str) -> None:
    """The figures were written by tc, not by the code that reads them."""
    assert differences(planned(name), parse(*printed(name))) == ()


def change_leaf(program: Program, **fields: float) -> Program:
    first: Leaf = replace(program.leaves[0], **fields)
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


def test_an_interface_without_shaping_is_one_clear_problem() -> None:
    """Not a list of everything that is missing."""
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
