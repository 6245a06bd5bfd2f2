"""Tests of the code that hosts get: what the program that takes it says, and leaves."""

import base64
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from netbench.testbed.cluster.code import BOOTSTRAP, code_zip


def _take(folder: Path, sent: bytes, size: int, checksum: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", BOOTSTRAP, str(folder), "token", str(size), checksum, "lo"]
    done = subprocess.run(words, input=sent, capture_output=True, timeout=60)
    return subprocess.CompletedProcess(
        words, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def test_the_code_is_compressed() -> None:
    """Each host gets it over SSH. It is Python that a zip's importer finds."""
    code = code_zip()
    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        assert "netbench/trainers/node_server.py" in archive.namelist()
        assert len(code) < sum(entry.file_size for entry in archive.infolist()) / 2


@pytest.mark.parametrize(
    ("more", "digest", "error"),
    [
        (0, "0" * 64, "the code of the node server has a wrong checksum"),
        (8, "", "the code of the node server was cut off"),
    ],
)
def test_code_that_was_damaged_is_not_run(
    tmp_path: Path, more: int, digest: str, error: str
) -> None:
    sent = base64.b64encode(b"code")
    checksum = digest or hashlib.sha256(b"code").hexdigest()
    done = _take(tmp_path / "folder", sent, len(sent) + more, checksum)
    assert (done.returncode, done.stderr.strip()) == (1, error)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_without_a_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "missing" / "folder"
    done = _take(folder, b"", 0, "")
    error = f"cannot write its code to {folder}: No such file or directory"
    assert (done.returncode, done.stderr.strip()) == (1, error)


def test_a_full_disk_is_named_and_nothing_stays(tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk: the write fails after the folder."""
    sent = base64.b64encode(bytes(9000))
    checksum = hashlib.sha256(bytes(9000)).hexdigest()
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    arguments = [str(tmp_path / "folder"), "token", str(len(sent)), checksum, "lo"]
    words = [sys.executable, "-c", limited + BOOTSTRAP, *arguments]
    done = subprocess.run(words, input=sent, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.decode().strip().endswith("folder: File too large")
    assert list(tmp_path.iterdir()) == []
