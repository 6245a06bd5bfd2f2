"""`make chaos`: kill netbench at random moments and count what is left.

    python -m benchmarks.chaos [--runs N] [--networks N] [--boots N] [--crashes N] [--timers N]
                               [--clusters N] [--seed N] [--report FILE] [--add]

The default counts make the whole campaign. A family with count 0 keeps its row of the report, so
the campaign can be run in parts; with --add and another seed, a row too. Everything is drawn from
the seed except the moment at which a process reaches a point of its work. Exit code 1: something
was left.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.guest import run_in_guest
from netbench.commands.pool import open_pool
from netbench.machine import machine_name
from netbench.pool import Work
from netbench.records import find_run, read_run
from netbench.testbed.guest.cache import ensure_kernel
from netbench.testbed.lifetime import Scratch
from netbench.testbed.machine.capabilities import Capabilities, probe_machine

REPORT = Path(__file__).parents[1] / "results" / "faults.md"
NETBENCH = (sys.executable, "-m", "netbench")

GRACE_S = 10.0
"""Time that the kernel has to end killed processes on a busy machine, seconds."""

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

MAX_KEPT = 10
"""Finished iterations after which a new run begins: a resumed run repeats them first."""

FAULTS_PER_GUEST = 20

GUEST_BYTES = 4 << 30
"""Limit of the memory of a guest with two hosts, on a worker."""

SCENARIO = """\
name: {name}
regions: [A, B]
nodes:
  - {{region: A, count: 2, device: Box}}
  - {{region: B, count: 2, device: Box}}
network:
  inside: {{one_way_delay: 1ms, bandwidth: 1Gbit}}
  links: [{{between: [A, B], one_way_delay: 20ms, bandwidth: 200Mbit}}]
devices: {{Box: {{flops: 10TFLOPS, memory: 16GB, source: made up}}}}
workload: {{layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}}
"""


@dataclass(slots=True)
class Row:
    """Counts of a family. shaped: hosts whose network was not as before after the lease; for tries
    on one machine, the tries after which the machine's own network had changed."""

    tries: int = 0
    processes: int = 0
    folders: int = 0
    iterations: int = 0
    shaped: int = 0

    @property
    def left(self) -> int:
        return self.processes + self.folders + self.iterations + self.shaped

    def __add__(self, other: Row) -> Row:
        names = [field.name for field in fields(Row)]
        return Row(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of one family. temporary: TMPDIR of its processes, which must stay empty."""

    folder: Path

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary folder"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary)}


@contextmanager
def place() -> Iterator[Place]:
    """Make a folder for a family. The space in TMPDIR is part of the trial."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        found = Place(Path(folder))
        found.temporary.mkdir()
        yield found


def descendants() -> dict[int, tuple[str, int]]:
    """Return the live processes beneath this one: number -> name, session."""
    about: dict[int, tuple[str, int]] = {}
    beneath: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            state, parent, _, session = rest.split()[:4]
            pid = int(file.parent.name)
            beneath.setdefault(int(parent), []).append(pid)
            if state not in "ZX":
                about[pid] = name, int(session)
    found, todo = {}, [os.getpid()]
    while todo:
        children = beneath.get(todo.pop(), [])
        todo += children
        found.update({pid: about[pid] for pid in children if pid in about})
    return found


def left_of_try() -> list[str]:
    """Return the processes that live GRACE_S after their end was due, and end them.

    Orphans are this process's children (`adopt_orphans`), so none can get away.
    """
    end_s = time.monotonic() + GRACE_S
    while (left := descendants()) and time.monotonic() < end_s:
        time.sleep(0.01)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [f"{pid} {name}" for pid, (name, _) in left.items()]


def adopt_orphans() -> None:
    """Become the parent of all orphans beneath this process."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1):
        raise OSError("prctl")


def clear_temporary(where: Place) -> list[str]:
    """Return what is in the temporary folder, and remove it."""
    left = [path.name for path in where.temporary.iterdir()]
    for name in left:
        subprocess.run(["rm", "-rf", where.temporary / name], check=False)
    return left


def host_network() -> str:
    """Interfaces, qdiscs and named namespaces of this machine."""
    commands = (["ip", "-o", "link"], ["tc", "qdisc", "show"], ["ip", "netns", "list"])
    shown = [subprocess.run(words, capture_output=True, text=True).stdout for words in commands]
    return "".join(shown)


def tell(family: str, number: int, count: int, row: Row, notes: Sequence[str]) -> None:
    print(f"{family} {number}/{count}: {row.left} left or lost so far", flush=True)
    for note in notes:
        print(f"  {note}", flush=True)


VICTIMS = (("owner",), ("first", "owner"), ("kernel", "owner"), ("all", "owner"))


def kill_boots(count: int, rng: random.Random) -> Row:
    """Boot an empty guest and kill it while it boots, with its owner, so that nobody cleans up.

    A quarter each: the owner alone; the first process of the guest and the owner; the kernel and
    the owner; all processes. The last leaves a folder, which has to go with the next start.
    """
    machine, row = probe_machine(), Row()
    boot_s = _boot_s(machine)
    for number in range(1, count + 1):
        victims = VICTIMS[number % len(VICTIMS)]
        wait_s = rng.uniform(0.0, 1.1 * boot_s)
        with place() as where:
            owner = os.fork()
            if owner == 0:
                _own_a_guest(machine, where)
            time.sleep(wait_s)
            found = descendants()
            for victim in victims:
                for process in _guest_processes(victim, owner, found):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            os.waitpid(owner, 0)
            processes = left_of_try()
            if "all" in victims:
                with Scratch(where.temporary):
                    pass
            folders = clear_temporary(where)
        row.tries += 1
        row.processes += len(processes)
        row.folders += len(folders)
        if processes or folders or number % 20 == 0:
            tell("booting guest", number, count, row, [*processes, *folders])
    return row


def _boot_s(machine: Capabilities) -> float:
    """Time of an undisturbed boot, seconds."""
    start_s = time.monotonic()
    status, output = run_in_guest(machine, ["true"])
    assert status == 0, output
    return time.monotonic() - start_s


def _own_a_guest(machine: Capabilities, where: Place) -> None:
    """Boot a guest in a forked process; does not return."""
    try:
        tempfile.tempdir = str(where.temporary)
        run_in_guest(machine, ["true"])
    finally:
        os._exit(0)


def _guest_processes(victim: str, owner: int, found: dict[int, tuple[str, int]]) -> list[int]:
    """Return the processes of a victim: the kernel's first process is of a session with "init="."""
    if victim == "owner":
        return [owner]
    if victim == "all":
        return [*found]
    chosen = []
    for process, (_, session) in found.items():
        with suppress(OSError):
            folder = Path(f"/proc/{process}")
            is_first = process == session and b"init=" in (folder / "cmdline").read_bytes()
            is_kernel = (folder / "exe").readlink().name == "linux"
            if is_first if victim == "first" else is_kernel:
                chosen.append(process)
    return chosen


RUN_LINES = 24
"""Largest number of lines after which a run is killed. Half of them report iterations."""


def kill_runs(count: int, rng: random.Random) -> Row:
    """Kill `netbench run` at random moments and resume it, again and again.

    An iteration is lost if it was printed or on disk before and is not on disk afterwards.
    """
    row, before = Row(), host_network()
    with place() as where:
        scenario = where.folder / "chaos.yaml"
        scenario.write_text(SCENARIO.format(name="chaos"))
        kept: set[int] = set()
        results = where.folder / "results0"
        for number in range(1, count + 1):
            resume = ["--resume"] if kept else ["--iterations", "1000", "--systems", "megatron"]
            words = ["run", str(scenario), "--results", str(results), *resume]
            kills = [signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM]
            moment = rng.randint(0, RUN_LINES), rng.uniform(0.0, 1.0)
            output, left = _killed(where, words, *moment, rng.choice(kills))
            printed = {int(found) for found in re.findall(r"(?:iteration|warm-up) (\d+):", output)}
            path = find_run(results, "chaos")
            recorded = {found.iteration for found in read_run(path).records} if path else set()
            lost = sorted((kept | printed) - recorded)
            folders = clear_temporary(where)
            changed = ["the network of this machine"] if host_network() != before else []
            row.tries += 1
            row.processes += len(left)
            row.folders += len(folders)
            row.iterations += len(lost)
            row.shaped += len(changed)
            notes = [*left, *folders, *changed, *(f"iteration {one}" for one in lost)]
            if "Traceback" in output:
                notes.append(output)
            if notes or number % 10 == 0:
                tell("run", number, count, row, [*notes, f"{len(recorded)} iterations on disk"])
            kept = recorded
            if len(kept) >= MAX_KEPT:
                kept, results = set(), where.folder / f"results{number}"
    return row


def _killed(
    where: Place,
    words: Sequence[str],
    moment: int | str,
    wait_s: float,
    number: signal.Signals,
    client: subprocess.Popen[bytes] | None = None,
) -> tuple[str, list[str]]:
    """Start netbench and send it a signal; return its output and what lives on.

    moment: lines that it has printed `wait_s` before, or a text in the last of them. client: a loop
    that ends at that moment. What it has started must end by itself.
    """
    output = ""
    with subprocess.Popen(
        [*NETBENCH, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**where.environment, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        while moment if isinstance(moment, str) else output.count("\n") < moment:
            line = process.stdout.readline()
            output += line
            if not line or (isinstance(moment, str) and moment in line):
                break
        time.sleep(wait_s)
        if client is not None:
            client.kill()
            client.wait()
        process.send_signal(number)
        output += process.stdout.read()
    return output, left_of_try()


def kill_networks(count: int, rng: random.Random) -> Row:
    """Kill `net apply --testbed local` while it starts or, mostly, with a command in a node."""
    row, before = Row(), host_network()
    testbeds = ["local:guest-real"]
    if probe_machine().has_netem and os.geteuid() == 0:
        testbeds.append("local:native")
    for number in range(1, count + 1):
        testbed = testbeds[number % len(testbeds)]
        with place() as where:
            name = f"chaos-{os.getpid()}-{number}"
            scenario = where.folder / f"{name}.yaml"
            scenario.write_text(SCENARIO.format(name=name))
            client = subprocess.Popen(
                ["sh", "-c", CLIENT, "sh", *NETBENCH, "net", "shell", "--network", name, "node0"],
                env=where.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            words = ["net", "apply", str(scenario), "--testbed", testbed]
            ready = READY if number % 3 else 0
            moment = ready, rng.uniform(0.0, 4.0)
            _, left = _killed(where, words, *moment, signal.SIGKILL, client)
            if f"/{name}" in Path("/proc/net/unix").read_text():
                left.append("its socket")
            folders = clear_temporary(where)
        changed = ["the network of this machine"] if host_network() != before else []
        row.tries += 1
        row.processes += len(left)
        row.folders += len(folders)
        row.shaped += len(changed)
        if left or folders or changed or number % 10 == 0:
            tell("persistent network", number, count, row, [*left, *folders, *changed])
    return row


CLIENT = 'while :; do "$@" sleep 600; sleep 0.2; done'
"""Be in the network whenever it is there."""

READY = "Ctrl-C ends the network"
"""Last line that a persistent network prints, and after which a client comes."""


def crash_points(count: int, rng: random.Random) -> Row:
    """Crash the agent at every call of tc, and at random ones again up to `count` tries."""
    counted = [{"kind": "count", "phase": phase} for phase in ("apply", "clear")]
    points = [
        {"kind": "crash", "phase": found["fault"]["phase"], "node": node, "call": call, "how": how}
        for found in play(counted)
        for node, calls in enumerate(found["found"]["calls"])
        for call in range(1, calls + 1)
        for how in ("before", "after", "sessions")
    ]
    again = rng.choices(points, k=max(0, count - len(points)))
    return played("crash point", [*points, *again])


def kill_timers(count: int, rng: random.Random) -> Row:
    """Kill the timers of one or both hosts, and the controller, at a random moment of a hold."""
    faults = [
        {
            "kind": "timer",
            "after_s": round(rng.uniform(0.0, 20.0), 3),
            "nodes": rng.choice([[0], [1], [0, 1]]),
        }
        for _ in range(count)
    ]
    return played("timer and controller", faults)


def kill_clusters(count: int, rng: random.Random) -> Row:
    """Let something fail at a random moment of a run on two hosts, and continue it.

    A third of the faults come as soon as the controller has printed a line, when it prepares the
    hosts or clears them; the others at a random time. Only faults that strike something count.
    """
    row, guests = Row(), 0
    while row.tries < count:
        if guests == MAX_GUESTS_PER_FAULT * count:
            sys.exit(f"{row.tries} of {count} faults struck in {guests} guests")
        faults = [_host_fault(rng) for _ in range(min(FAULTS_PER_GUEST - 1, count - row.tries))]
        row += played("cluster run", [*faults, {"kind": "none"}], CLUSTER)
        guests += 1
    return row


def _host_fault(rng: random.Random) -> dict[str, Any]:
    lines, after_s = rng.choice([(rng.randint(1, CLUSTER_LINES), 0.0), *2 * [(0, CLUSTER_S)]])
    return {
        "kind": rng.choice(HOST_FAULTS),
        "lines": lines,
        "after_s": round(rng.uniform(0.0, after_s), 3),
        "node": rng.choice([0, 1]),
    }


CLUSTER = "tests.testbed.cluster_chaos_in_guest"

CLUSTER_S = 32.0
"""Virtual time in which a run on two hosts ends, seconds."""

CLUSTER_LINES = 24
"""Lines that it prints, at most."""

HOST_FAULTS = (
    "controller interrupted", "controller terminated", "controller killed", "rank killed",
    "rank stopped", "sshd killed", "channel cut", "host frozen", "cable out", "disk full",
    "power lost",
)  # fmt: skip
"""Faults of `tests.testbed.cluster_chaos_in_guest`."""

MAX_GUESTS_PER_FAULT = 4
"""Limit on the guests of a campaign, per wanted fault."""

FLEET = "tests.testbed.chaos_in_guest"


def played(family: str, faults: Sequence[dict[str, Any]], module: str = FLEET) -> Row:
    """Play faults of hosts, some in a guest, on this machine or on the workers of `DASK`."""
    row = Row()
    for lines in _played_parts(faults, module):
        notes = []
        for line in lines:
            found = line["found"]
            row.tries += line["fault"]["kind"] != "none" and not found.get("missed")
            row.processes += len(found.get("processes", ()))
            row.folders += len(found.get("files", ()))
            row.iterations += len(found.get("lost", ()))
            row.shaped += len(found.get("shaped", ())) or len(found.get("error", "")[:1])
            if any(found.get(key) for key in ("error", "processes", "files", "shaped", "lost")):
                notes.append(json.dumps(line))
        tell(family, row.tries, len(faults), row, notes)
    return row


DASK: list[str] = []
"""Address of a Dask cluster, if there is one (docs/scaling.md)."""


def _played_parts(faults: Sequence[dict[str, Any]], module: str) -> Iterator[list[dict[str, Any]]]:
    """Play the faults of each guest. Workers are started for this only: others' processes here
    count as left."""
    parts = [
        (faults[first : first + FAULTS_PER_GUEST], module)
        for first in range(0, len(faults), FAULTS_PER_GUEST)
    ]
    if not DASK:
        yield from itertools.starmap(play, parts)
        return
    from benchmarks.chaos import play_part  # this module, under a name that workers know

    work = Work(name="faults", function=play_part, memory_bytes=GUEST_BYTES)
    with open_pool(DASK[0]) as pool:
        assert pool is not None
        for _, lines in pool.run(work, parts):
            yield lines


def play_part(part: tuple[Sequence[dict[str, Any]], str]) -> list[dict[str, Any]]:
    """Play the faults of one guest, in a cell."""
    return play(*part)


def play(faults: Sequence[dict[str, Any]], module: str = FLEET) -> list[dict[str, Any]]:
    """Play faults in one guest. Exits if not all were played."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        specs = Path(folder) / "faults.json"
        specs.write_text(json.dumps(faults))
        argv = [sys.executable, "-m", module, str(specs)]
        status, output = run_in_guest(probe_machine(), argv)
    found = [json.loads(line) for line in output.splitlines() if line.startswith('{"fault"')]
    if status or len(found) != len(faults):
        sys.exit(f"{len(found)} of {len(faults)} faults were played:\n{output[-3000:]}")
    return found


FAMILIES: dict[str, tuple[str, int, Callable[[int, random.Random], Row]]] = {
    "runs": ("`run`: its controller", 100, kill_runs),
    "networks": ("persistent network: its daemon", 50, kill_networks),
    "boots": ("guest that boots, and its owner", 400, kill_boots),
    "crashes": ("fleet: the agent, at every call of `tc` in apply and clear", 115, crash_points),
    "timers": ("fleet: timers and controller together", 40, kill_timers),
    "clusters": ("`run --inventory`: a fault on a host or of its controller", 300, kill_clusters),
}
"""Option -> what is killed, tries of the whole campaign, and how."""

HEAD = """\
# What is left after a kill

`make chaos` kills processes of netbench at random moments and counts what is left.

"""
COLUMNS = (
    "killed", "tries", "processes left", "folders left", "iterations lost", "hosts still shaped",
    "date", "options", "machine",
)  # fmt: skip

FOOT = """
- *Options* are those of `python -m benchmarks.chaos` that repeat a row; the other counts are 0.
- *Processes left* are alive {grace:g} s after the kill. *Folders left* are those in `TMPDIR`
  and, for a fleet, all files of the agent and its state. *Iterations lost* were printed or
  recorded before a kill and are not recorded afterwards.
- *Hosts still shaped* differ from before in a qdisc, a filter, a TCP setting or the segment size
  after the lease. For the first rows, the host is this machine.
- Half of the tries kill `run` with SIGKILL, the others with SIGINT or SIGTERM. Each try resumes
  the run of the one before.
- A guest that boots loses its owner, its first process and its owner, its kernel and its owner, or
  all processes at once. After the last of these, the next start has to remove the folder.
- A fleet is two hosts in a guest. Each has an sshd, and a stand-in for the transient timers of
  systemd. The agent ends before a call of `tc`, after it, or with all processes of its logins.
  Nobody comes back before the lease has ended.
- `run --inventory` is on two hosts in a guest. At a random moment its controller gets SIGINT,
  SIGTERM or SIGKILL; a rank is killed or stopped; an sshd is killed, or the processes of one
  connection; a host freezes for 25 s, loses its cable for 25 s, its disk space or its power. The
  hosts are inspected a minute later. Each try continues the run of the one before. Of 20 tries,
  the last has no fault and must end with all iterations on disk. It does not count, and neither do
  faults that strike nothing, e.g. because the run has ended; these runs must have ended well.
"""


def write_report(
    path: Path, rows: dict[str, Row], options: Sequence[str], *, is_added: bool = False
) -> None:
    """Write the table. Families without a new row keep their old one.

    is_added: new rows are added to the old ones.
    """
    old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = []
    for family, (title, _, _) in FAMILIES.items():
        before = [line for line in old if line.startswith(f"| {title} |")]
        if family not in rows:
            lines += before
            continue
        row, said = rows[family], f"`{shlex.join(options)}`"
        if is_added and before:
            cells = [cell.strip() for cell in before[0].strip("|").split("|")]
            row += Row(*map(int, cells[1 : len(fields(Row)) + 1]))
            said = f"{cells[COLUMNS.index('options')]}, {said}"
        counts = [str(getattr(row, field.name)) for field in fields(Row)]
        about = [date.today().isoformat(), said, machine_name()]
        lines.append(f"| {' | '.join([title, *counts, *about])} |")
    table = [f"| {' | '.join(COLUMNS)} |", f"|---|{'--:|' * len(fields(Row))}---|---|---|", *lines]
    text = HEAD + "\n".join(table) + "\n" + FOOT.format(grace=GRACE_S)
    path.write_text(text, encoding="utf-8")


def main() -> int:
    """Run the campaign; return 1 if anything was left."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description="Kill netbench and count what is left."
    )
    for family, (title, count, _) in FAMILIES.items():
        parser.add_argument(f"--{family}", type=int, metavar="N", default=count, help=title)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="Dask cluster whose workers play the faults of hosts, e.g. local:2",
    )
    parser.add_argument("--report", type=Path, default=REPORT)
    parser.add_argument("--add", action="store_true", help="add to the rows of the report")
    arguments = parser.parse_args()
    DASK.extend([arguments.dask] if arguments.dask else [])
    ensure_kernel()
    adopt_orphans()
    rows = {}
    for family, (_, _, kill) in FAMILIES.items():
        count = getattr(arguments, family)
        if count:
            rows[family] = kill(count, random.Random(f"{arguments.seed} {family}"))
            options = [f"--{family}", str(count), "--seed", str(arguments.seed)]
            write_report(arguments.report, {family: rows[family]}, options, is_added=arguments.add)
    return 1 if any(row.left for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
