"""Software of a cluster, compared with this machine's."""

from __future__ import annotations

import importlib.metadata

import pytest

from netbench.distributed.versions import check_versions, software
from netbench.errors import TestbedError

HERE = {"netbench": "0.1.0 (aaaa)", "python": "3.11", "torch": "2.13.0"}


def test_equal_software_is_accepted() -> None:
    check_versions(HERE, {"a": dict(HERE), "b": dict(HERE)})


def test_a_table_lists_the_workers_that_differ_and_only_these() -> None:
    older = {**HERE, "torch": "2.8.0"}
    broken = ModuleNotFoundError("No module named 'netbench'")
    with pytest.raises(TestbedError) as caught:
        check_versions(HERE, {"tcp://a:1": older, "tcp://b:1": dict(HERE), "tcp://c:1": broken})
    lines = str(caught.value).splitlines()
    assert "install the same versions" in lines[0]
    assert [line.split() for line in lines[1:4]] == [
        ["netbench", "python", "torch"],
        ["this", "machine", "0.1.0", "(aaaa)", "3.11", "2.13.0"],
        ["tcp://a:1", "0.1.0", "(aaaa)", "3.11", "2.8.0"],
    ]
    assert "No module named 'netbench'" in lines[4]
    assert len(lines) == 5


def test_software_is_what_is_installed() -> None:
    assert software()["torch"] == importlib.metadata.version("torch")
