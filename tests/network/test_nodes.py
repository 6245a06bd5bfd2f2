"""Reaching many nodes at once."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from netbench.errors import NetworkError
from netbench.network.nodes import all_or_error, at_once, output_of
from netbench.testing.nodes import FakeNode


def test_one_failure_does_not_hide_the_other_results() -> None:
    """Partial results are kept beside the exception of the node that failed."""

    def call(node: int) -> int:
        if node == 1:
            raise OSError("unreachable")
        return node * 10

    results = at_once({node: partial(call, node) for node in range(3)}, 10.0)
    assert results[0] == 0
    assert results[2] == 20
    assert isinstance(results[1], OSError)


def test_tasks_run_at_the_same_time() -> None:
    """Each waits for the other: one after the other they would miss the deadline."""
    both = threading.Barrier(2)
    results = at_once({0: both.wait, 1: both.wait}, 120.0)
    assert sorted(str(result) for result in results.values()) == ["0", "1"]


def test_a_node_that_hangs_is_given_up_at_the_deadline() -> None:
    """The others' results stay; the error names the deadline."""
    never = threading.Event()
    for deadline_s in (0.05, 1.0, 20.0):  # a busy machine may not run node 1 for a while
        results = at_once({0: never.wait, 1: lambda: True}, deadline_s)
        if results[1] is True:
            break
    never.set()
    assert results[1] is True
    assert isinstance(results[0], TimeoutError)
    with pytest.raises(NetworkError, match=f"node 0: no answer within {deadline_s:g} s"):
        all_or_error(results, "waiting")


def test_every_failed_node_is_listed_in_one_message() -> None:
    """A user with 64 nodes wants to know all that are wrong, not the first."""
    results: dict[int, int | Exception] = {0: 1, 1: OSError("no route"), 7: OSError("refused")}
    with pytest.raises(NetworkError) as caught:
        all_or_error(results, "shaping")
    assert str(caught.value).splitlines() == [
        "shaping failed on 2 of 3 nodes:",
        "  node 1: no route",
        "  node 7: refused",
    ]


def test_a_failed_command_is_quoted_with_its_last_words() -> None:
    """Exit status and standard error are what a user needs to go on."""
    with pytest.raises(NetworkError, match="`tc -V` exited with 127: not found"):
        output_of(FakeNode(0, lambda *_: (127, "", "not found\n")), ("tc", "-V"))
