"""The zip of the agent: stable, and it runs without netbench on old Pythons too."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from netbench.network.remote import deployer
from netbench.network.remote.agent.operations import OPERATIONS
from netbench.network.remote.deployer import agent_zip


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent.zip"
    path.write_bytes(agent_zip())
    return path


def test_it_runs_alone_and_answers_in_one_line(agent: Path) -> None:
    """Without netbench, in a Python that looks nowhere else for modules."""
    argv = [sys.executable, "-I", "-S", str(agent), "dance"]
    done = subprocess.run(argv, input="{}", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    error = json.loads(done.stdout)["error"]
    assert error == f"expected one operation of: {', '.join(OPERATIONS)}"


def test_it_runs_on_the_oldest_python(agent: Path) -> None:
    """Every module is imported by Python 3.9, where one is installed."""
    python = shutil.which("python3.9")
    if not python or subprocess.run([python, "-V"], check=False).returncode:
        pytest.skip("no Python 3.9")
    argv = [python, "-I", "-S", str(agent), "dance"]
    done = subprocess.run(argv, input="{}", capture_output=True, text=True, check=False)
    assert "expected one operation of" in json.loads(done.stdout)["error"]


def test_the_same_bytes_come_of_the_same_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither times, nor permissions, nor the order of files on disk are in it."""
    before = agent_zip()
    with zipfile.ZipFile(io.BytesIO(before)) as found:
        names = found.namelist()
    for name in reversed(names[1:]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((deployer.ROOT / name).read_bytes())
        path.chmod(0o777)
    monkeypatch.setattr(deployer, "ROOT", tmp_path)
    agent_zip.cache_clear()
    try:
        assert agent_zip() == before
        (tmp_path / deployer.SHARED[0]).write_text("HANDLE = 1\n")
        agent_zip.cache_clear()
        assert agent_zip() != before
    finally:
        agent_zip.cache_clear()
    assert names == sorted(names)
    assert names[0] == "__main__.py"


def test_a_python_of_the_same_version_does_not_compile_it(tmp_path: Path) -> None:
    """Modules come from bytecode, which another version ignores: then they are compiled."""
    path = tmp_path / "agent.zip"
    path.write_bytes(agent_zip(compiled=True))
    name = "netbench.network.remote.agent.operations"
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {name} as m; print(m.__file__)"
    argv = [sys.executable, "-I", "-S", "-c", code, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("operations.pyc")
    strange = tmp_path / "strange.zip"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(strange, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry, b"\0\0\r\n" + data[4:] if entry.filename.endswith("c") else data)
    done = subprocess.run([*argv[:-1], str(strange)], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("operations.py")
