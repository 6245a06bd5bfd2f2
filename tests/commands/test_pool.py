"""The option --dask, without a cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from netbench.cli import run


def test_without_the_extra_a_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("netbench.distributed.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    sweep = ["sweep", "gpt3-small", "--system", "megatron", "--vary", "delay=1ms"]
    assert run([*sweep, "--dask", "local:2"]) == 2
    said = capsys.readouterr().err
    assert "--dask needs the package distributed" in said
    assert "pip install 'netbench[cluster]'" in said
    assert run(sweep) == 0


def test_an_address_without_a_protocol_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "case3", "--dask", "10.0.0.1:8786"]) == 2
    assert "write e.g. tcp://10.0.0.1:8786" in capsys.readouterr().err.replace("\n", " ")


def test_a_scheduler_that_does_not_answer_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("netbench.distributed.connect.CONNECT_S", 1.0)
    command = ["run", "gpt3-small", "--testbed", "sim", "--dask", "tcp://127.0.0.1:1"]
    assert run(command) == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--inventory", "hosts.yaml"], ["--compute", "cpu"]])
def test_real_time_and_other_hosts_exclude_it(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "gpt3-small", "--dask", "tcp://127.0.0.1:1", *options]) == 2
    assert "leave out" in capsys.readouterr().err


def test_dask_is_not_imported_unless_it_is_asked_for() -> None:
    program = """
import sys
import netbench.cli, netbench.commands.run.command, netbench.commands.explore.sweep
import netbench.commands.schedule.compare, netbench.commands.collective
assert not {"dask", "distributed", "psutil"} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
