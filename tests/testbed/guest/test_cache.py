"""The guest kernel in the cache: built once, whole or not at all. The sources here are a toy."""

from __future__ import annotations

import fcntl
import io
import os
import pwd
import queue
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from netbench.errors import TestbedError
from netbench.testbed.guest import cache as kernel
from netbench.testbed.guest.boot import boot_check
from netbench.testbed.guest.build import KernelSource, Recipe
from netbench.testbed.machine.capabilities import probe_machine

CONFIGURE = "allnoconfig:\n\tcp $(KCONFIG_ALLCONFIG) $(O)/.config\n"
COMPILE = """\
linux:
\t@echo "  CC      a.o"
\t@echo built >> {counter}
\t@echo "  CC      b.o"
\t@printf '#!/bin/sh\\n' > $(O)/linux && chmod +x $(O)/linux
"""
FAIL = """\
linux:
\t@echo "  CC      a.o"
\t@echo half > $(O)/linux
\t@echo "a.c:1: error: no such thing"; exit 3
"""
RECIPE = Recipe(config="CONFIG_TOY=y\n")
PATIENCE_S = 60.0


class Recorder:
    """A Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.steps: list[tuple[float, float | None]] = []

    def say(self, text: str | Text) -> None:
        self.said.put(str(text))

    def advance(self, task: str, done: float, total: float | None, note: str = "") -> None:
        self.steps.append((done, total))

    def limit(self, task: str, limit_s: float) -> None:
        pass

    def finish(self, task: str) -> None:
        pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own; returns the directory kernels are kept in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The toy needs make and tar only.
    monkeypatch.setattr(kernel, "prepare_tools", lambda *_: None)
    return tmp_path / "cache" / "netbench" / "kernel"


def toy_source(directory: Path, compile_rule: str) -> KernelSource:
    """A kernel source archive whose Makefile has `compile_rule`."""
    makefile = (CONFIGURE + compile_rule).encode()
    path = directory / "toy.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("toy-1.0/Makefile")
        entry.size = len(makefile)
        archive.addfile(entry, io.BytesIO(makefile))
    return KernelSource(version="toy 1.0", tarball=path)


@pytest.fixture
def good_source(tmp_path: Path) -> KernelSource:
    return toy_source(tmp_path, COMPILE.format(counter=tmp_path / "count"))


def builds(tmp_path: Path) -> int:
    """Number of times the toy was compiled."""
    return (tmp_path / "count").read_text().count("built")


def test_a_build_is_kept_with_its_checksum_and_the_second_use_builds_nothing(
    cache: Path, good_source: KernelSource, tmp_path: Path
) -> None:
    """The result, its configuration and its manifest are in place; the build directory is gone."""
    progress = Recorder()
    path = kernel.ensure_kernel(progress, source=good_source, recipe=RECIPE)
    assert kernel.ensure_kernel(progress, source=good_source, recipe=RECIPE) == path
    assert builds(tmp_path) == 1
    assert sorted(p.name for p in cache.iterdir()) == sorted(
        ["build.log", "lock", path.parent.name]
    )
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "build.json",
        "guest-kernel.config",
        "linux",
    ]
    status = kernel.kernel_status(RECIPE)
    assert status.state == kernel.GOOD
    assert status.manifest is not None
    assert status.manifest.source_version == "toy 1.0"
    assert [done for done, _ in progress.steps] == [1, 2]


def test_rebuild_replaces_a_good_kernel(
    cache: Path, good_source: KernelSource, tmp_path: Path
) -> None:
    """`--rebuild` builds again, into the same place."""
    first = kernel.ensure_kernel(Recorder(), source=good_source, recipe=RECIPE)
    again = kernel.ensure_kernel(Recorder(), source=good_source, recipe=RECIPE, rebuild=True)
    assert (again, builds(tmp_path)) == (first, 2)
    assert kernel.kernel_status(RECIPE).state == kernel.GOOD


def test_a_failed_build_leaves_only_its_log_and_shows_the_end_of_it(
    cache: Path, tmp_path: Path
) -> None:
    """The half-made kernel is not installed; the error has the compiler's words and the log."""
    with pytest.raises(TestbedError, match=r"a\.c:1: error: no such thing") as caught:
        kernel.ensure_kernel(Recorder(), source=toy_source(tmp_path, FAIL), recipe=RECIPE)
    assert str(cache / "build.log") in str(caught.value)
    assert sorted(p.name for p in cache.iterdir()) == ["build.log", "lock"]
    assert kernel.kernel_status(RECIPE).state == kernel.MISSING


def test_an_interrupted_build_leaves_nothing_and_ends_make(cache: Path, tmp_path: Path) -> None:
    """Ctrl-C while compiling: no directory, and no compiler that runs on."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    rule = f'linux:\n\t@exec 3>{fifo}; echo "  CC      a.o"; sleep 600\n'

    class Interrupted(Recorder):
        def advance(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kernel.ensure_kernel(Interrupted(), source=toy_source(tmp_path, rule), recipe=RECIPE)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # returns only when nobody holds the other end
    os.close(reader)
    assert sorted(p.name for p in cache.iterdir()) == ["build.log", "lock"]


BUILDER = """\
import sys
from pathlib import Path
from netbench.testbed.guest import build, cache
cache.prepare_tools = lambda *_: None
if sys.argv[1] == "apart":
    build.tied = lambda: []
source = build.KernelSource(version="toy 1.0", tarball=Path(sys.argv[2]))
cache.ensure_kernel(source=source, recipe=build.Recipe(config="CONFIG_TOY=y\\n"))
"""


@pytest.mark.parametrize("make", ["tied", "apart"])
def test_a_killed_build_leaves_nothing_that_the_next_could_race(
    make: str, cache: Path, tmp_path: Path
) -> None:
    """make ends with netbench. Where it does not, it keeps lock and folder until its end."""
    started, end = tmp_path / "started", tmp_path / "end"
    os.mkfifo(started)
    os.mkfifo(end)
    rule = f"linux:\n\t@exec 3>{started}; echo >&3; read _ < {end}\n"
    source = toy_source(tmp_path, rule)
    with subprocess.Popen(
        [sys.executable, "-c", BUILDER, make, str(source.tarball)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as builder:
        with started.open("rb", buffering=0) as alive, (cache / "lock").open() as lock:
            assert alive.readline() == b"\n"
            builder.kill()
            builder.wait()
            if make == "apart":
                assert list(cache.glob("building-*"))
                with pytest.raises(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end.write_text("")
            assert alive.read() == b""
            fcntl.flock(lock, fcntl.LOCK_EX)
        builder.communicate(timeout=PATIENCE_S)  # its other process has the same stderr
    assert list(cache.glob("building-*")) == []


def test_what_a_killed_build_left_is_removed_by_the_next(
    cache: Path, good_source: KernelSource
) -> None:
    """After SIGKILL a build directory stays; it is nobody's once the lock is free."""
    stale = cache / "building-12345678"
    stale.mkdir(parents=True)
    kernel.ensure_kernel(Recorder(), source=good_source, recipe=RECIPE)
    assert not stale.exists()


@pytest.mark.parametrize("damage", ["bytes", "manifest", "gone"])
def test_a_damaged_kernel_is_noticed_and_built_again(
    damage: str, cache: Path, good_source: KernelSource, tmp_path: Path
) -> None:
    """The checksum is compared on every use."""
    path = kernel.ensure_kernel(Recorder(), source=good_source, recipe=RECIPE)
    if damage == "bytes":
        path.write_bytes(path.read_bytes() + b"x")
    elif damage == "manifest":
        (path.parent / "build.json").write_text("{")
    else:
        path.unlink()
    assert kernel.kernel_status(RECIPE).state == kernel.CORRUPT
    progress = Recorder()
    kernel.ensure_kernel(progress, source=good_source, recipe=RECIPE)
    assert "corrupt" in progress.said.get_nowait()
    assert kernel.kernel_status(RECIPE).state == kernel.GOOD
    assert builds(tmp_path) == 2


def test_of_two_builds_at_once_one_waits_and_uses_the_others(
    cache: Path, good_source: KernelSource, tmp_path: Path
) -> None:
    """Both are held at the lock; once it is free the sources are compiled once."""
    cache.mkdir(parents=True)
    progress = Recorder()
    with (cache / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threads = [
            threading.Thread(
                target=kernel.ensure_kernel,
                args=(progress,),
                kwargs={"source": good_source, "recipe": RECIPE},
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        assert "waiting" in progress.said.get(timeout=120)
        assert "waiting" in progress.said.get(timeout=120)
    for thread in threads:
        thread.join(timeout=120)
    assert builds(tmp_path) == 1
    assert kernel.kernel_status(RECIPE).state == kernel.GOOD


def test_a_patch_that_does_not_fit_stops_the_build(cache: Path, good_source: KernelSource) -> None:
    """Other sources than the patch was made for are refused, with what patch said."""
    recipe = Recipe(
        config=RECIPE.config, patch="--- a/Makefile\n+++ b/Makefile\n@@ -1 +1 @@\n-no\n+yes\n"
    )
    with pytest.raises(TestbedError, match="`patch` failed"):
        kernel.ensure_kernel(Recorder(), source=good_source, recipe=recipe)


def test_an_option_the_sources_do_not_know_stops_the_build(cache: Path, tmp_path: Path) -> None:
    """Kconfig drops unknown options silently; the build does not."""
    rule = "override KCONFIG_ALLCONFIG := /dev/null\n" + COMPILE.format(counter=tmp_path / "count")
    source = toy_source(tmp_path, rule)
    with pytest.raises(TestbedError, match=r"do not honour 1 option of.*CONFIG_TOY=y"):
        kernel.ensure_kernel(Recorder(), source=source, recipe=RECIPE)


def test_a_cache_path_make_cannot_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A space in the path would fail after minutes; it is refused before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my cache"))
    with pytest.raises(TestbedError, match="XDG_CACHE_HOME"):
        kernel.ensure_kernel(Recorder(), recipe=RECIPE)


def test_a_full_disk_is_refused_before_the_build(
    cache: Path, good_source: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how much there is and how much it takes."""
    monkeypatch.setattr(kernel, "_REQUIRED_FREE_BYTES", 1 << 62)
    with pytest.raises(TestbedError, match="GB free"):
        kernel.ensure_kernel(Recorder(), source=good_source, recipe=RECIPE)


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The XDG specification says so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert kernel.cache_dir() == tmp_path / ".cache" / "netbench"


def test_without_a_usable_home_the_cache_is_in_the_directory_of_the_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without that one either, the message says what to set."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        assert kernel.cache_dir() == Path(pwd.getpwuid(os.geteuid()).pw_dir, ".cache", "netbench")
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    with pytest.raises(TestbedError, match="set XDG_CACHE_HOME"):
        kernel.cache_dir()


@pytest.mark.guest
def test_the_guest_kernel_boots_and_sleeps_a_minute_in_no_time() -> None:
    """The built kernel runs a program on the host's files, in virtual time, and powers off."""
    path, machine = kernel.locate_kernel(), probe_machine()
    assert path is not None, "run: make guest-kernel"
    assert machine.guest_tmpdir is not None
    result = boot_check(path, machine.guest_tmpdir, virtual_time=True)
    assert result.error == ""
    assert result.release.startswith("6.12.")
    assert result.slept_s == pytest.approx(60.0, rel=1e-3)
    assert result.wall_s < result.slept_s


@pytest.mark.guest
def test_every_boot_in_virtual_time_has_the_same_random_numbers(
    run_in_guest: Callable[..., tuple[int, str]],
) -> None:
    """The kernel repeats them, and with them Python's hash seeds and addresses of memory."""
    said = "import os; print('drawn', os.urandom(8).hex(), hash('a'), id(object()))"
    command = [sys.executable, "-c", said]
    drawn = [re.search("drawn .*", run_in_guest(command)[1]) for _ in range(2)]
    assert drawn[0]
    assert drawn[1]
    assert drawn[0][0] == drawn[1][0]
