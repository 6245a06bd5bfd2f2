"""Loading, replacing and removing programs on nodes (a double: see inside_guest for the kernel)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from netbench.errors import NetworkError
from netbench.network.shaping.apply import apply, clear, read_back
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import Program, compile_programs
from netbench.network.shaping.readback import parse
from netbench.testing.nodes import fake_nodes
from tests.network.fake_nodes import FakeNodes
from tests.network.shaping_cases import CASES
from tests.networks import ADDRESSES

GOLDEN = Path(__file__).parents[2] / "golden" / "network"


def programs(name: str = "pair") -> tuple[Program, ...]:
    network, scale = CASES[name]
    return compile_programs(network, ADDRESSES, "eth0", scale)


def test_every_node_gets_its_own_program_in_one_command() -> None:
    """One `tc -batch` per node: 64 nodes would otherwise take minutes."""
    nodes = FakeNodes(4)
    apply(programs(), nodes.nodes)
    assert nodes.loaded == {program.node: program.text for program in programs()}
    assert sorted(nodes.commands) == [(node, "tc -batch -") for node in range(4)]


def sent(nodes: FakeNodes, node: int) -> list[str]:
    return sorted(nodes.loaded[node].splitlines())


def test_an_earlier_configuration_is_updated() -> None:
    """A second placement shapes the same nodes again; its root stays."""
    nodes = FakeNodes(4)
    apply(programs(), nodes.nodes)
    apply(programs("pair-scaled"), nodes.nodes)
    assert sent(nodes, 0) == sorted(programs("pair-scaled")[0].text.splitlines()[1:])
    assert {nodes.roots[node] for node in range(4)} == {("htb", HANDLE)}


def printed(name: str, max_segments: int = 65535) -> str:
    """Return what a node prints: a copy of the output of tc and ip."""
    tables = (GOLDEN / f"{name}.tables.json").read_text()
    classes = (GOLDEN / f"{name}.classes.txt").read_text()
    return f'{tables}\n--\n{classes}\n--\n[{{"gso_max_segs":{max_segments}}}]\n'


def test_a_node_that_holds_its_program_is_sent_nothing() -> None:
    """One command reads the node."""
    nodes = FakeNodes(1)
    apply(programs()[:1], nodes.nodes)
    nodes.commands, nodes.loaded = [], {}
    nodes.shown["sh -s eth0"] = printed("pair")
    apply(programs()[:1], nodes.nodes)
    assert nodes.commands == [(0, "tc -batch -"), (0, "sh -s eth0")]
    assert nodes.loaded == {}


def test_with_a_reader_no_command_is_run_where_nothing_differs() -> None:
    """The second `apply` of a local session starts no process."""
    nodes = FakeNodes(1)
    tables, classes, link = printed("pair").split("\n--\n")
    apply(programs()[:1], nodes.nodes, read=lambda _: parse(tables, classes, link))
    assert nodes.commands == []


def test_a_changed_link_setting_is_corrected_alone() -> None:
    """The configuration is as planned, but gso_max_segs is not."""
    nodes = FakeNodes(1)
    tables, classes, _ = printed("pair").split("\n--\n")
    limited = '[{"gso_max_segs":2}]'
    apply(programs()[:1], nodes.nodes, read=lambda _: parse(tables, classes, limited))
    assert nodes.commands == [
        (0, "sh -c ip link set dev eth0 gso_max_segs 65535 && ip route flush cache && "
            "exec tc -batch -"),
    ]  # fmt: skip


def test_nodes_get_their_former_configuration_back_when_one_fails() -> None:
    """The others are cleared, because a part of a network is useless."""
    nodes = FakeNodes(4)
    apply(programs()[:2], nodes.nodes)
    nodes.roots[3] = ("tbf", "8001:")
    with pytest.raises(NetworkError, match="failed on 1 of 4"):
        apply(programs("pair-scaled"), nodes.nodes, former=programs()[:2])
    for node in (0, 1):
        assert sent(nodes, node) == sorted(programs()[node].text.splitlines()[1:])
    assert nodes.roots == {
        0: ("htb", HANDLE), 1: ("htb", HANDLE), 2: ("noqueue", "0:"), 3: ("tbf", "8001:"),
    }  # fmt: skip


def test_a_foreign_root_qdisc_is_refused_and_left_alone() -> None:
    """Somebody else's shaping is never overwritten, and the other nodes are cleared again."""
    nodes = FakeNodes(4)
    nodes.roots[2] = ("tbf", "8001:")
    with pytest.raises(NetworkError, match="node 2: eth0 has a root qdisc that is not netbench's"):
        apply(programs(), nodes.nodes)
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
        apply(programs(), nodes.nodes)
    message = str(caught.value)
    assert "shaping failed on 2 of 4 nodes" in message
    line = programs()[1].text.splitlines()[5]
    assert f"node 1: tc refused `{line}`: Error: Specified qdisc kind is unknown." in message
    assert "node 3: tc failed: tc: not found" in message
    assert set(nodes.roots.values()) == {("noqueue", "0:")}


def test_a_slow_cap_limits_packets_before_and_frees_them_after() -> None:
    """The limit is the link's, not the program's; open connections have to notice it as well."""
    nodes = FakeNodes(4)
    apply(programs("nic-scaled"), nodes.nodes)
    clear(programs("nic-scaled"), nodes.nodes)
    mine = [line for node, line in nodes.commands if node == 0]
    assert mine[0] == (
        "sh -c ip link set dev eth0 gso_max_segs 2 && ip route flush cache && exec tc -batch -"
    )
    assert "ip link set dev eth0 gso_max_segs 65535" in mine[1:]


def test_clearing_names_our_handle_and_is_harmless_twice() -> None:
    """Only a root that carries it can be hit."""
    nodes = FakeNodes(4)
    nodes.roots[3] = ("tbf", "8001:")
    apply(programs()[:3], nodes.nodes)
    clear(programs(), nodes.nodes)
    clear(programs(), nodes.nodes)
    assert (0, f"tc qdisc del dev eth0 root handle {HANDLE}") in nodes.commands
    assert nodes.roots[3] == ("tbf", "8001:")
    assert {nodes.roots[node] for node in range(3)} == {("noqueue", "0:")}


def test_shaping_that_stays_is_reported() -> None:
    """A node that cannot be cleared must be known."""
    nodes = FakeNodes(4)
    apply(programs(), nodes.nodes)

    def run(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
        if "del" in argv and node == 1:
            return 1, "", "RTNETLINK answers: Operation not permitted"
        return nodes.run(node, argv, stdin)

    with pytest.raises(NetworkError, match=r"node 1: .*Operation not permitted"):
        clear(programs(), fake_nodes(run))


def test_every_node_is_compared_with_its_own_configuration() -> None:
    """The recorded output of tc for `pair` agrees with `pair`, and with nothing else."""
    nodes = FakeNodes(4)
    nodes.shown["sh -s eth0"] = printed("pair")
    (same,) = read_back(programs()[:1], nodes.nodes)
    assert (same.node, same.problems, same.dropped_packets) == (0, (), 0)
    (other,) = read_back(programs("pair-scaled")[:1], nodes.nodes)
    assert any("rate 5000000000 bit/s, planned 5000000 bit/s" in line for line in other.problems)
