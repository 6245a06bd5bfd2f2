"""Cells: what comes back, and that they end with whoever wants them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netbench.distributed.cells import ERROR, MESSAGE, RESULT, Cell, CellServer
from netbench.errors import PlanError
from netbench.pool import Work
from tests.distributed import work
from tests.distributed.processes import START_S, all_end, living


@pytest.fixture(scope="module")
def server() -> Iterator[CellServer]:
    found = CellServer()
    yield found
    found.close()


def start(server: CellServer, what: Work, *items: object) -> Cell:
    return server.start(what, pickle.dumps((what.function, list(items))))


def rest_of(cell: Cell) -> list[tuple[bytes, bytes]]:
    """Return all that a cell sends until its end."""
    found = []
    try:
        while received := cell.receive(START_S):
            found.append(received)
    except EOFError:
        return found
    raise AssertionError("the cell is silent")


def test_a_cell_has_its_own_session_and_returns_the_results_of_its_batch(
    server: CellServer,
) -> None:
    cell = start(server, Work(name="square", function=work.square), 2, 3)
    assert [(kind, pickle.loads(data)) for kind, data in rest_of(cell)] == [(RESULT, [4, 9])]
    assert cell.exit_code() == 0
    assert cell.pid() != os.getpid()
    cell.close()


def test_an_expected_error_comes_back_as_it_is(server: CellServer) -> None:
    cell = start(server, Work(name="refuse", function=work.refuse), 7)
    ((kind, data),) = rest_of(cell)
    error = pickle.loads(data)
    assert kind == ERROR
    assert isinstance(error, PlanError)
    assert str(error) == "7 layers cannot be placed"
    cell.close()


def test_a_killed_cell_leaves_its_signal_and_its_output(server: CellServer) -> None:
    cell = start(server, Work(name="crash", function=work.crash), 1)
    assert rest_of(cell) == []
    assert cell.exit_code() == -signal.SIGSEGV
    cell.close()


def test_what_a_cell_printed_can_be_read_while_it_runs(server: CellServer) -> None:
    cell = start(server, Work(name="refuse", function=work.square), "no number")
    assert rest_of(cell) == []
    assert cell.exit_code() == 1
    assert "TypeError" in cell.log_tail(10_000)
    assert cell.log_tail(3) == cell.log_tail(10_000)[-3:]
    cell.close()


def test_closing_ends_a_cell_and_its_children_in_other_sessions(
    server: CellServer, tmp_path: Path
) -> None:
    cell = start(server, work.WAITING, tmp_path / "never")
    received = cell.receive(START_S)
    assert received is not None
    assert received[0] == MESSAGE
    pids = json.loads(received[1])
    assert os.getsid(pids[0]) == pids[0] == cell.pid()
    assert cell.memory_bytes() > 1 << 20
    cell.close()
    assert all_end(pids)


OWNER = """\
import pickle, sys, time
from pathlib import Path
from netbench.distributed.cells import CellServer
from tests.distributed.work import WAITING
server = CellServer()
cells = [server.start(WAITING, pickle.dumps((WAITING.function, [Path("/never")]))) for _ in "12"]
for cell in cells:
    print(cell.receive(600)[1].decode(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["owner", "server"])
def test_cells_end_with_their_worker_and_with_the_process_that_forked_them(victim: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = [pid for _ in range(2) for pid in json.loads(owner.stdout.readline())]
        cells = pids[::2]
        assert living(cells) == cells
        server = int(Path(f"/proc/{cells[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(owner.pid if victim == "owner" else server, signal.SIGKILL)
        assert all_end([*cells, server])
        if victim == "owner":
            assert all_end(pids)
        owner.kill()
    for pid in living(pids):  # children in other sessions of a server that nobody could ask
        os.kill(pid, signal.SIGKILL)


def test_cells_keep_the_memory_that_they_allocate_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's nanny tells its workers to return it at every chance, which slows simulations."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    server = CellServer()
    try:
        cell = start(server, Work(name="variable", function=os.getenv), "MALLOC_TRIM_THRESHOLD_")
        assert [pickle.loads(data) for _, data in rest_of(cell)] == [[None]]
        cell.close()
    finally:
        server.close()
