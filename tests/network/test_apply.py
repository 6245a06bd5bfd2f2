"""Loading, replacing and removing programs on nodes (a double: see inside_guest for the kernel)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.errors import NetworkError
from netbench.network.apply import apply, clear, read_back
from netbench.network.program import HANDLE, Program, compile_programs
from tests.network.fake_nodes import FakeNodes
from tests.network.shaping_cases import ADDRESSES, CASES

GOLDEN = Path(__file__).parents[1] / "golden" / "network"


def programs(name: str = "pair") -> tuple[Program, ...]:
    network, scale = CASES[name]
    return compile_programs(network, ADDRESSES, "eth0", scale)


def test_every_node_gets_its_own_program_in_one_command() -> None:
    """One `tc -batch` per node: 64 nodes would otherwise take minutes."""
    nodes = FakeNodes(4)
    apply(programs(), nodes.run)
    assert nodes.loaded == {program.node: program.text for program in programs()}
    assert sorted(nodes.commands) == [(node, "tc -batch -") for node in range(4)]


def test_an_earlier_program_of_ours_is_replaced() -> None:
    """A second placement shapes the same nodes again."""
    nodes = FakeNodes(4)
    apply(programs(), nodes.run)
    apply(programs("pair-scaled"), nodes.run)
    assert nodes.loaded[0] == programs("pair-scaled")[0].text


def test_a_foreign_root_qdisc_is_refused_and_left_alone() -> None:
    """Somebody else's shaping is never overwritten, and the other nodes are cleared again."""
    nodes = FakeNodes(4)
    nodes.roots[2] = ("tbf", "8001:")
    with pytest.raises(NetworkError, match="node 2: eth0 has a root qdisc that is not netbench's"):
        apply(programs(), nodes.run)
    assert nodes.roots[2] == ("tbf", "8001:")
    assert {nodes.roots[node] for node in (0, 1, 3)} == {("noqueue", "0:")}


def test_a_refused_line_is_quoted_and_nothing_stays_shaped() -> None:
    """tc names the line by number only; the message shows it."""
    nodes = FakeNodes(4)
    nodes.broken = {
        1: "Error: Specified qdisc kind is unknown.\nCommand failed -:6\n",
        3: "tc: not found",
    }
    with pytest.raises(NetworkError) as caught:
        apply(programs(), nodes.run)
    message = str(caught.value)
    assert "shaping failed on 2 of 4 nodes" in message
    line = programs()[1].text.splitlines()[5]
    assert f"node 1: tc refused `{line}`: Error: Specified qdisc kind is unknown." in message
    assert "node 3: tc failed: tc: not found" in message
    assert set(nodes.roots.values()) == {("noqueue", "0:")}


def test_a_slow_cap_limits_packets_before_and_frees_them_after() -> None:
    """The limit is the link's, not the program's; open connections have to notice it as well."""
    nodes = FakeNodes(4)
    apply(programs("nic-scaled"), nodes.run)
    clear(programs("nic-scaled"), nodes.run)
    mine = [line for node, line in nodes.commands if node == 0]
    assert mine[0] == (
        "sh -c ip link set dev eth0 gso_max_segs 2 && ip route flush cache && exec tc -batch -"
    )
    assert "ip link set dev eth0 gso_max_segs 65535" in mine[1:]


def test_clearing_names_our_handle_and_is_harmless_twice() -> None:
    """Only a root that carries it can be hit."""
    nodes = FakeNodes(4)
    nodes.roots[3] = ("tbf", "8001:")
    apply(programs()[:3], nodes.run)
    clear(programs(), nodes.run)
    clear(programs(), nodes.run)
    assert (0, f"tc qdisc del dev eth0 root handle {HANDLE}") in nodes.commands
    assert nodes.roots[3] == ("tbf", "8001:")
    assert {nodes.roots[node] for node in range(3)} == {("noqueue", "0:")}


def test_shaping_that_stays_is_reported() -> None:
    """A node that cannot be cleared must be known."""
    nodes = FakeNodes(4)
    apply(programs(), nodes.run)

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if "del" in argv and node == 1:
            return 1, "", "RTNETLINK answers: Operation not permitted"
        return nodes.run(node, argv, stdin)

    with pytest.raises(NetworkError, match=r"node 1: .*Operation not permitted"):
        clear(programs(), run)


def test_what_the_kernel_holds_is_compared_per_node() -> None:
    """What tc printed for `pair` agrees with `pair`, and with nothing else."""
    nodes = FakeNodes(4)
    nodes.shown = {
        "tc -s -j -batch -": (GOLDEN / "pair.tables.json").read_text(),
        "tc -d class show dev eth0": (GOLDEN / "pair.classes.txt").read_text(),
    }
    (same,) = read_back(programs()[:1], nodes.run)
    assert (same.node, same.problems, same.dropped_packets) == (0, (), 0)
    (other,) = read_back(programs("pair-scaled")[:1], nodes.run)
    assert any("rate 5000000000 bit/s, planned 5000000 bit/s" in line for line in other.problems)
