"""Workers on hosts of an inventory, over real sshds on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from netbench.distributed.client import DaskPool
from netbench.errors import TestbedError
from netbench.pool import Work
from tests.distributed import work
from tests.distributed.processes import all_end
from tests.machines import machines

pytestmark = pytest.mark.ssh

CLIENT = """\
import sys, time
from netbench.distributed.client import DaskPool
with DaskPool(sys.argv[1]) as pool:
    print(*sorted(worker.name for worker in pool.workers()), flush=True)
    time.sleep(600)
"""


@contextmanager
def hosts(folder: Path, *names: str, python: str = sys.executable) -> Iterator[str]:
    """Yield a value of --dask for hosts that have this Python."""
    with machines(folder, *names) as inventory:
        text = inventory.read_text()
        inventory.write_text(text.replace("ssh: {", f"ssh: {{python: {python}, ", 1))
        yield f"ssh:{inventory}"


def workers() -> list[int]:
    """Return the pids of workers on hosts, and of the programs that guard them."""
    found = psutil.process_iter(["cmdline"])
    return [each.pid for each in found if "--death-timeout" in (each.info["cmdline"] or ())]


def test_cells_run_on_a_worker_of_each_host_which_end_with_the_command(tmp_path: Path) -> None:
    with hosts(tmp_path, "one", "two") as where:
        with DaskPool(where) as pool:
            assert [worker.name for worker in pool.workers()] == ["one", "two"]
            squares = Work(name="square", function=work.square, max_batch=7)
            assert sorted(pool.run(squares, range(50))) == [(i, i * i) for i in range(50)]
            pids = workers()
            assert len(pids) >= 4
        assert all_end(pids)


def test_workers_end_with_a_client_that_is_killed(tmp_path: Path) -> None:
    with (
        hosts(tmp_path, "one") as where,
        subprocess.Popen([sys.executable, "-c", CLIENT, where], stdout=subprocess.PIPE) as client,
    ):
        assert client.stdout is not None
        assert client.stdout.readline().split() == [b"one"]
        pids = workers()
        assert pids
        client.kill()
        assert all_end(pids)


def test_a_host_whose_python_has_no_dask_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with (
        hosts(tmp_path, "one", python=str(bare)) as where,
        pytest.raises(TestbedError, match=r"one: no Dask .* has no netbench"),
        DaskPool(where),
    ):
        pass
