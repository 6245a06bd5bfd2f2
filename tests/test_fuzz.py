"""Any input, however wrong, ends in a message within bounds of time and memory.

`make fuzz` runs other examples for an hour. NETBENCH_FUZZ_SECONDS is how long it looks;
NETBENCH_FUZZ_SEED chooses the examples. Only the bounds of a command are in CPU time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from netbench import cli, limits
from tests.fuzz_inputs import CASES, write_inputs

SECONDS = float(os.environ.get("NETBENCH_FUZZ_SECONDS", "5"))
FIRST_SEED = int(os.environ.get("NETBENCH_FUZZ_SEED", "0"))
BATCH = 20
"""Examples between two looks at the clock."""

MAX_SECONDS = 60.0
"""CPU time of a command. A busy machine takes up to `PATIENCE` times as long."""

PATIENCE = 5
MAX_BYTES = 2 * 10**9

NASTY = (
    "", " ", "0", "-1", "1", "2", "7", "1e30", "1e308", "1e-308", "1e999999999", "nan", "inf",
    "-inf", ".nan", "9" * 30, "9" * 5000, "0x10", "1_0", "12:30:45", "1bit", "0bit", "1e400bit",
    "1e999999999bit", "1e-999999999bit", "1Pbit", "1Gbit", "unlimited", "-5ms", "10h", "1ms",
    "1e308ms", "1e-400s", "99999999h", "0s", "0B", "0GB", "1e30GB", "16GB", "1000000000", "262T",
    "101%", "0%", "100%", "1e-400%", "1e308x", "0x", "1ms..9ms:1000000000", "1x..2x:1000000000",
    "1ms,1ms", "1,1", "2,4", "1e9", "all", "null", "true", "~", "[]", "{}", "[[]]", "x: y",
    "[/usr/share]", "[/b]", "é", "\u202e", "a" * 300, "a/b", "..", "-", "/", "/dev/zero",
    "/dev/full", "/dev/null", "/nonexistent/x", "four.yaml", "placed.json", "run", "{plan}", "%s",
    "A", "B", "A -> B", "A <-> A", "node0", "node3", "V100", "Box", "dtfm", "netbench", "random",
    "dtfm-scheduled", "dtfm-random-p2-1f1b", "megatron-p2t2", "megatron-i2-p2", "zero3-hybrid2",
    "fsdp", "ddp", "ddp-sharded-ps", "hivemind", "diloco-h100", "megatron-p4096t4096", "gloo",
    "nccl", "trunk", "class", "nic", "pair", "bert-base", "fp64", "cpu", "cuda", "p2d1", "auto",
    "!!python/object:os.system", "&a [*a]", "*a", "2020-01-01", "\t", "\n", "\0", "#", "'", '"',
)  # fmt: skip

numbers = st.integers(-3, 70) | st.sampled_from([10**4, 10**6, 10**9, 10**12, 10**30, -(10**18)])
floats = st.sampled_from([0.5, -0.5, 1e-300, 1e300, 1e17, float("inf"), float("nan")])
scalars = st.sampled_from(NASTY) | numbers | floats | st.text(max_size=4) | st.booleans()
values = st.recursive(
    scalars | st.none(), lambda inner: st.lists(inner, max_size=3) | st.just({"a": 1}), max_leaves=3
)


class TimeLimit(BaseException):
    """Raised in a command that hangs."""


def paths_of(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys to every value beneath the top."""
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield (*path, key)
            yield from paths_of(document[key], (*path, key))


def mutate_document(draw: st.DrawFn, document: Any) -> None:
    """Replace, remove, repeat, rename or multiply one value of JSON data."""
    if not (paths := list(paths_of(document))):
        return
    *above, key = draw(st.sampled_from(paths))
    for step in above:
        document = document[step]
    match draw(st.sampled_from(["value", "value", "value", "remove", "rename", "many", "other"])):
        case "value":
            is_number = isinstance(document[key], int | float)
            document[key] = draw(values | (numbers | floats if is_number else scalars))
        case "remove":
            del document[key]
        case "rename" if isinstance(document, dict):
            document[draw(st.sampled_from(NASTY))] = document.pop(key)
        case "many" if isinstance(document, list):
            document *= draw(st.sampled_from([2, 5, 300]))
        case _:
            others = list(document) if isinstance(document, dict) else range(len(document))
            document[key] = document[draw(st.sampled_from(others))]


def mutate_text(draw: st.DrawFn, text: str) -> str:
    """Cut, insert or replace at one place of a text."""
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 5, 10**6])))
    return text[:start] + str(draw(scalars)) + text[end:]


def mutate_file(draw: st.DrawFn, path: Path) -> None:
    """Change a file in one or two places."""
    packed = path.suffix == ".gz"
    data = path.read_bytes()
    text = (gzip.decompress(data) if packed else data).decode()
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        with contextlib.suppress(ValueError, RecursionError):
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            at = draw(st.integers(0, len(lines) - 1))
            document = json.loads(lines[at])
            mutate_document(draw, document)
            lines[at] = json.dumps(document)
            text = "\n".join([*lines, *([""] if path.suffix == ".jsonl" else [])])
            continue
        text = mutate_text(draw, text)
    if draw(st.integers(0, 9)) == 0:
        text = mutate_text(draw, text)
    data = text.encode(errors="replace")
    path.write_bytes(gzip.compress(data) if packed else data)


def mutate_words(draw: st.DrawFn, words: tuple[str, ...]) -> list[str]:
    """Replace values of options, drop or repeat one, or replace any word."""
    found = list(words)
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        at = draw(st.integers(1, len(found) - 1))
        name, mark, _ = found[at].partition("=")
        if mark:
            found[at] = f"{name}={draw(scalars)}".replace("\0", "")
        elif draw(st.booleans()):
            found[at] = str(draw(scalars)).replace("\0", "")
        else:
            found.append(found[at])
    return found


@st.composite
def commands(draw: st.DrawFn, good: Path, work: Path) -> list[str]:
    """Write mutated inputs to `work` and return the words of a command that reads them."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(good, work)
    file, words = draw(st.sampled_from(CASES))
    if draw(st.integers(0, 3)):
        mutate_file(draw, work / file)
    return mutate_words(draw, words)


def cpu_s() -> float:
    """CPU seconds of this process and its children."""
    return sum(os.times()[:4])


@contextlib.contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """In `folder`, raise TimeLimit after minutes, and allow no more than a few GB."""

    def too_long(signum: int, frame: FrameType | None) -> None:
        raise TimeLimit

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before, handler = Path.cwd(), signal.signal(signal.SIGALRM, too_long)
    os.chdir(folder)
    most = 8 * MAX_BYTES if hard == resource.RLIM_INFINITY else min(8 * MAX_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        os.chdir(before)


def peak_bytes() -> int:
    """Largest resident memory of this process since `clear_peak`."""
    (found,) = re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found) * 1024


def child_bytes() -> int:
    """Largest resident memory of any child so far, those of other tests too."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def outcome(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what is wrong, or ""."""
    with contextlib.suppress(OSError):  # not permitted in every container
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before, largest_child = peak_bytes(), child_bytes()
    begin_s, output = cpu_s(), io.StringIO()
    try:
        with (
            bounded(folder),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            code = cli.run(words)
    except TimeLimit:
        return -1, f"took more than {PATIENCE * MAX_SECONDS:g} s: {traceback.format_exc()}"
    except Exception:
        return -1, traceback.format_exc()
    text = output.getvalue()
    used = peak_bytes() - before
    if child_bytes() > largest_child:
        used = max(used, child_bytes())
    if (took_s := cpu_s() - begin_s) > MAX_SECONDS:
        return code, f"took {took_s:.0f} s of CPU: {text[-2000:]}"
    if used > MAX_BYTES or "error: out of memory" in text:
        return code, f"took {used / 1e9:.1f} GB: {text[-2000:]}"
    if code not in range(4) or (code in (1, 2) and not text.strip()) or "Traceback" in text:
        return code, f"exit code {code}: {text[-2000:]}"
    return code, ""


def say(text: str) -> None:
    """Print at once, for `make fuzz`."""
    print(text, file=sys.__stderr__, flush=True)


def report(words: list[str], folder: Path, good: Path, problem: str) -> str:
    """Return a shell script that repeats a command, and what was wrong."""
    lines = [problem, "To repeat, in an empty folder:"]
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder)
        data = path.read_bytes()
        if not (good / name).exists() or data != (good / name).read_bytes() or name.name in words:
            lines.append(f"mkdir -p {name.parent}; printf %s {shlex.quote(repr(data))} > {name}")
    return "\n".join([*lines, "netbench " + shlex.join(words)])


def test_any_input_ends_in_a_message_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios, inventories, traces, placements, profiles, records, imports and options."""
    good, work = tmp_path / "good", tmp_path / "work"
    good.mkdir()
    write_inputs(good)
    monkeypatch.setenv(limits.MEMORY_VARIABLE, "1GB")
    monkeypatch.setenv("COLUMNS", "100")
    found: list[str] = []
    codes: Counter[int] = Counter()

    @settings(
        max_examples=BATCH,
        phases=[Phase.generate],
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def batch(data: st.DataObject) -> None:
        words = data.draw(commands(good, work))
        code, problem = outcome(words, work)
        codes[code] += 1
        if problem:
            found.append(report(words, work, good, problem))
            say(f"\nfailure {len(found)}, command {codes.total()}: {found[-1]}")

    number, end_s = FIRST_SEED, time.monotonic() + SECONDS
    while time.monotonic() < end_s and len(found) < MAX_FOUND:
        seed(number)(batch)()
        number += 1
    count = codes.total()
    say(f"{count} commands, by exit code {dict(codes)}, seeds {FIRST_SEED} to {number - 1}")
    assert count > 0
    assert not found, f"{len(found)} of {count} commands:\n" + "\n\n".join(found)


MAX_FOUND = int(os.environ.get("NETBENCH_FUZZ_FOUND", "5"))
"""Failures after which the search ends."""
