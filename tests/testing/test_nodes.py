"""The doubles keep the contract of `netbench.network.nodes`, as real nodes and channels do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest

from netbench.errors import NetbenchError
from netbench.network.nodes import Channel, Completed, Node
from netbench.network.shaping import netlink
from netbench.testbed import interface
from netbench.testbed.namespaces import NamespaceNode, kill_all
from netbench.testing.nodes import FakeChannel, FakeNode, FakeTestbed

FAILS = ("sh", "-c", "cat; echo error >&2; exit 3")
ECHO = (
    "sh",
    "-c",
    'echo hello; while read line; do [ "$line" = end ] && exit; echo "got $line"; done',
)


def answer(node: int, argv: Sequence[str], stdin: str) -> tuple[int, str, str]:
    assert tuple(argv) == FAILS
    return 3, stdin, "error\n"


def start(node: int, argv: Sequence[str]) -> Channel:
    assert tuple(argv) == ECHO
    return FakeChannel(lambda line: [None if line == "end" else f"got {line}"], ["hello"])


@pytest.fixture(params=["fake", "real"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """The double, and a node that runs its commands in the namespace of this test."""
    if request.param == "fake":
        yield FakeNode(0, answer, start)
        return
    monkeypatch.setattr(netlink, "inside", lambda path: nullcontext())
    real = NamespaceNode(0)
    yield real
    kill_all(real.started)


@pytest.fixture
def channel(node: Node) -> Iterator[Channel]:
    opened = node.open(ECHO)
    assert opened.receive() == "hello"
    yield opened
    opened.close()


def test_a_command_gives_its_status_and_both_streams(node: Node) -> None:
    """A failed command is a result, not an exception."""
    assert node.run(FAILS, "input\n") == Completed(3, "input\n", "error\n")


def test_lines_are_answered_in_order(channel: Channel) -> None:
    for line in ("one", "two"):
        channel.send(line)
    assert [channel.receive(), channel.receive()] == ["got one", "got two"]


def test_the_end_of_a_command_is_reported_every_time(channel: Channel) -> None:
    """`receive` returns None again and again, and `send` raises."""
    channel.send("end")
    assert [channel.receive(), channel.receive()] == [None, None]
    with pytest.raises(NetbenchError):
        channel.send("more")


def test_close_wakes_a_thread_that_receives(channel: Channel) -> None:
    received: list[str | None] = []

    def receive() -> None:
        received.append(channel.receive())

    thread = threading.Thread(target=receive)
    thread.start()
    channel.close()
    thread.join(timeout=120)
    assert received == [None]


def test_the_testbed_double_has_every_member_of_the_protocol() -> None:
    """mypy checks the types; this checks that no member was forgotten."""
    testbed: interface.Testbed = FakeTestbed((), lambda node, rank: start(node, ECHO))
    members = {name for name in vars(interface.Testbed) if not name.startswith("_")}
    assert [name for name in sorted(members) if not hasattr(testbed, name)] == []
