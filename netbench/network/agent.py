"""The node's side of `netbench net`: one file, sent there, run as root, removed afterwards.

    python3 -I agent.py OP < request.json

Python 3.9, nothing but the standard library, no import of netbench. A request is one JSON object,
the answer one line: `{"ok": ...}`, or `{"error": "..."}` and exit status 1.

    facts  what the node is and can do; changes nothing
    arm    records how the interface is, and starts the dead-man timer; before anything is changed
    beat   renews the lease
    apply  loads a program; only where armed
    show   what the kernel holds, with counters
    replay loads changes when they are due, as told on further lines of stdin
    clear  puts everything back as it was before `arm`

All but `facts` are for `interface`, or, where that is empty, for the one that has `addresses`.
Whoever arms has the interface until the lease ends. Then the dead-man, a process that needs neither
this file nor the connection that started it, puts everything back.

What is put back is only what is still as netbench left it: a setting that somebody has changed
since stays as it is, and so does a root qdisc that is not netbench's.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

HANDLE = "6e62:"
"""Of a netbench program's root; the same as `netbench.network.tc.HANDLE`."""

STATE = Path("/run/netbench")
"""One file per shaped interface; gone with the last, and after a reboot, as the shaping is."""

SYSCTL = Path("/proc/sys")

FOLDER_PREFIX = "netbench."
"""Of the name of the folder the controller makes for this file."""

TOOL_S = 30.0
"""For one `tc` or `ip`, seconds; a batch for thousands of peers takes about one."""

LOCK_S = 10.0
"""For another operation on the same interface to end, seconds."""

POLL_S = 1.0
"""How often the dead-man looks whether the lease was renewed, at least."""

RETRY_S = 5.0
"""After the dead-man could not put something back."""

NEAR_S = 0.01
"""What is waited for in one go, seconds: late by no more than the 50 us of any timer."""

MAX_LEASE_S = 30 * 86400.0

_BUFFERS = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")

Request = dict[str, Any]
State = dict[str, Any]


class AgentError(Exception):
    """Says what went wrong on this node, and what to do."""


def tool_environment() -> dict[str, str]:
    """As root `tc` may not be in PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    return {"PATH": path, "LC_ALL": "C"}


def run_tool(argv: list[str], stdin: str = "") -> tuple[int, str, str]:
    """Exit status, stdout, stderr. No shell."""
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TOOL_S,
            check=False,
            env=tool_environment(),
        )
    except FileNotFoundError:
        package = {"tc": "iproute2", "ip": "iproute2", "unshare": "util-linux"}[argv[0]]
        raise AgentError(f"there is no command `{argv[0]}`; install {package}") from None
    except subprocess.TimeoutExpired:
        raise AgentError(f"no answer within {TOOL_S:g} s from `{' '.join(argv)}`") from None
    return done.returncode, done.stdout, done.stderr


def output_of(argv: list[str], stdin: str = "") -> str:
    """What the command printed; AgentError with its last words when it failed."""
    status, stdout, stderr = run_tool(argv, stdin)
    if status:
        words = " ".join(stderr.split()) or "it printed nothing"
        raise AgentError(f"`{' '.join(argv)}` exited with {status}: {words}")
    return stdout


def load_batch(text: str) -> None:
    """Load `tc -batch` text. The error quotes the line that tc refused."""
    status, _, stderr = run_tool(["tc", "-batch", "-"], text)
    if status:
        raise AgentError(quoted(text, stderr))


def quoted(text: str, stderr: str) -> str:
    """tc's complaint, with the line of the batch it is about (`Command failed -:3`)."""
    words = " ".join(stderr.split())
    number = words.rpartition("Command failed -:")[2].split(" ")[0]
    lines = text.splitlines()
    if number.isdigit() and 0 < int(number) <= len(lines):
        return f"tc refused `{lines[int(number) - 1]}`: {words}"
    return f"tc failed: {words or 'it printed nothing'}"


def now_s() -> float:
    """A clock nobody sets, which goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# The interface.


def link_of(interface: str) -> dict[str, Any]:
    """`ip -j -d link show` of it. Raises AgentError where there is none."""
    status, stdout, stderr = run_tool(["ip", "-j", "-d", "link", "show", "dev", interface])
    if status:
        raise AgentError(f"no interface {interface}: {' '.join(stderr.split())}")
    found: dict[str, Any] = json.loads(stdout)[0]
    return found


def qdiscs_of(interface: str) -> list[dict[str, Any]]:
    """What leaves through the interface goes through these; what comes in is left out."""
    found = json.loads(output_of(["tc", "-j", "qdisc", "show", "dev", interface]) or "[]")
    kept = [qdisc for qdisc in found if qdisc["kind"] not in ("ingress", "clsact")]
    return [{key: value for key, value in q.items() if key not in ("dev", "refcnt")} for q in kept]


def root_of(qdiscs: list[dict[str, Any]]) -> dict[str, Any]:
    """The root among qdiscs; handle `0:` is the kernel's default, which comes back by itself."""
    return next((q for q in qdiscs if q.get("root")), {"kind": "noqueue", "handle": "0:"})


def describe(interface: str) -> str:
    """The root qdisc with its options, in tc's words."""
    lines = output_of(["tc", "qdisc", "show", "dev", interface]).splitlines()
    return next((" ".join(line.split()[1:]) for line in lines if " root " in line), "none")


def is_foreign(qdiscs: list[dict[str, Any]]) -> bool:
    return root_of(qdiscs)["handle"] not in (HANDLE, "0:")


# A foreign root qdisc that is replaced has to come back exactly. Only kinds whose options tc can
# read as it prints them are taken, each is tried out beforehand, and what is not known is refused.

_WORDS: dict[str, dict[str, str]] = {
    "noqueue": {},
    "pfifo_fast": {"bands": "", "priomap": "", "multiqueue": ""},
    "pfifo": {"limit": "limit {}"},
    "bfifo": {"limit": "limit {}"},
    "fq_codel": {
        "limit": "limit {}",
        "flows": "flows {}",
        "quantum": "quantum {}",
        # The kernel keeps 1.024 us and tc cuts off what is printed: one more gives the same again.
        "target": "target {+}us",
        "interval": "interval {+}us",
        "ce_threshold": "ce_threshold {+}us",
        "memory_limit": "memory_limit {}b",
        "ecn": "ecn",
        "drop_batch": "drop_batch {}",
    },
    "fq": {
        "limit": "limit {}",
        "flow_limit": "flow_limit {}",
        "buckets": "buckets {}",
        "orphan_mask": "orphan_mask {}",
        "pacing": "nopacing",
        "quantum": "quantum {}",
        "initial_quantum": "initial_quantum {}",
        "maxrate": "maxrate {}bps",
        "low_rate_threshold": "low_rate_threshold {}bps",
        "refill_delay": "refill_delay {}us",
        "timer_slack": "timer_slack {}",
        "horizon": "horizon {}us",
        "horizon_drop": "horizon_drop",
        "horizon_cap": "horizon_cap",
    },
    "tbf": {
        "rate": "rate {}bps",
        "burst": "burst {size}",
        "lat": "latency {}us",
        "mpu": "mpu {}",
        "linklayer": "linklayer {}",
    },
}
"""Kind -> option, as in `tc -j` -> words `tc` reads, "" for what cannot be set."""


def replay_words(qdisc: dict[str, Any]) -> str:
    """Kind and options of a qdisc as `tc` reads them. Raises AgentError where that cannot be."""
    kind, options = qdisc["kind"], qdisc.get("options", {})
    if kind == "netem":
        return _netem_words(options)
    if kind not in _WORDS:
        raise AgentError(f"{kind} may hold classes, filters or options that tc does not print")
    words = [kind]
    for name, value in options.items():
        if name not in _WORDS[kind]:
            raise AgentError(f"option {name} of {kind} is not known to netbench")
        template = _WORDS[kind][name]
        if template:
            words.append(_filled(template, value))
    if kind == "fq_codel" and "ecn" not in options:
        words.append("noecn")
    return " ".join(words)


def _filled(template: str, value: Any) -> str:
    if "{+}" in template:
        return template.replace("{+}", str(value + 1))
    if "{size}" in template:  # "14998b/1", cut off to whole microseconds at the rate
        return template.replace("{size}", f"{int(str(value).split('b')[0]) + 1}b")
    return template.replace("{}", str(value))


_NETEM_RATE = ("rate", "packetoverhead", "cellsize", "celloverhead")


def _netem_words(options: dict[str, Any]) -> str:
    words = ["netem"]
    for name, value in options.items():
        if name == "limit":
            words.append(f"limit {value}")
        elif name == "delay" and not value["jitter"]:
            words.append(f"delay {round(value['delay'] * 1e6)}us")
        elif name == "delay":
            raise AgentError("netem has jitter, whose distribution tc does not print")
        elif name == "loss-random":
            words.append(f"loss {_percents(value['loss'], value['correlation'])}")
        elif name == "loss-gemodel":
            shares = _percents(*(value[key] for key in ("p", "r", "1-h", "1-k")))
            words.append(f"loss gemodel {shares}")
        elif name in ("duplicate", "reorder", "corrupt"):
            words.append(f"{name} {_percents(value[name], value['correlation'])}")
        elif name == "rate":
            rest = " ".join(str(value[key]) for key in _NETEM_RATE[1:])
            words.append(f"rate {value['rate']}bps {rest}")
        elif name == "gap":
            words += [f"gap {value}"] if value else []
        elif name == "ecn":
            words += ["ecn"] if value else []
        else:
            raise AgentError(f"option {name} of netem is not known to netbench")
    return " ".join(words)


def _percents(*shares: float) -> str:
    return " ".join(f"{share * 100:.9g}%" for share in shares)


def replay_batch(interface: str, qdiscs: list[dict[str, Any]]) -> str:
    """`tc -batch` text that makes these qdiscs again, tried out. Raises AgentError with why not."""
    root = root_of(qdiscs)
    if output_of(["tc", "filter", "show", "dev", interface]).strip():
        raise AgentError(f"{root['kind']} has filters")
    lines = []
    for qdisc in (root, *(q for q in qdiscs if q is not root and q["handle"] != "0:")):
        where = "root" if qdisc is root else f"parent {qdisc['parent']}"
        if qdisc["kind"] == "mq" and qdisc is root:
            words = "mq"
        elif qdisc is root or root["kind"] == "mq":
            words = replay_words(qdisc)
            _rehearse(qdisc, words)
        else:
            raise AgentError(f"{root['kind']} has a {qdisc['kind']} qdisc inside")
        verb = "add" if qdisc is root else "replace"
        lines.append(f"qdisc {verb} dev {interface} {where} handle {qdisc['handle']} {words}\n")
    return "".join(lines)


def _rehearse(qdisc: dict[str, Any], words: str) -> None:
    """Make it in a network namespace of its own: must print the same as the one there is."""
    text = f"qdisc add dev lo root handle {qdisc['handle']} {words}\nqdisc show dev lo\n"
    status, stdout, stderr = run_tool(["unshare", "--net", "--", "tc", "-j", "-batch", "-"], text)
    if status:
        raise AgentError(f"`{words}` was refused when it was tried out: {' '.join(stderr.split())}")
    tried = root_of(json.loads(stdout))
    if tried["kind"] != qdisc["kind"] or tried.get("options") != qdisc.get("options"):
        raise AgentError(f"`{words}` came out different when it was tried out")


# State: one file per interface of a network namespace.


def state_path(interface: str) -> Path:
    """The namespace is in the name: nodes that share a file system share this directory."""
    if not re.fullmatch(r"[^-/\s][^/\s]{0,14}", interface) or interface in (".", ".."):
        raise AgentError(f"{interface!r} is not the name of an interface")
    return STATE / f"{interface}@{namespace()}.json"


def namespace() -> int:
    """What tells this network namespace from others of this boot."""
    return Path("/proc/self/ns/net").stat().st_ino


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def load_state(interface: str) -> State | None:
    """What was recorded; None when the interface is not netbench's, or was of another boot."""
    try:
        found: State = json.loads(state_path(interface).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise AgentError(f"{state_path(interface)} cannot be read ({error}); remove it") from None
    return found if found["boot_id"] == boot_id() else None


def save_state(state: State) -> None:
    """All or nothing, on disk or not at all."""
    path = state_path(state["interface"])
    fresh = path.with_suffix(".new")
    try:
        fresh.write_text(json.dumps(state))
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise AgentError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def locked(interface: str) -> Iterator[None]:
    """One operation at a time per interface. Raises AgentError when another does not end."""
    lock = state_path(interface).with_suffix(".lock")
    end = time.monotonic() + LOCK_S
    while True:
        with suppress(FileExistsError):
            STATE.mkdir(mode=0o700, parents=True)
        with suppress(FileNotFoundError):  # somebody has just removed the empty STATE
            held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it may have removed the file: then this lock is nobody's.
                if os.fstat(held).st_ino == lock.stat().st_ino:
                    break
            os.close(held)
        if time.monotonic() > end:
            raise AgentError(f"another operation has held {interface} for {LOCK_S:g} s")
        time.sleep(0.02)
    try:
        yield
    finally:
        if not state_path(interface).exists():
            lock.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                STATE.rmdir()
        os.close(held)


def left_s(state: State) -> float | None:
    """Seconds until the lease ends; None = never."""
    end: float | None = state["lease_end_s"]
    return None if end is None else end - now_s()


def expired(state: State) -> bool:
    left = left_s(state)
    return left is not None and left <= 0


def lease_view(state: State) -> dict[str, Any]:
    """What the controller is told of a lease."""
    told = {key: state[key] for key in ("owner", "held", "applied", "since_s")}
    return {**told, "left_s": left_s(state), "who": who(state)}


def who(state: State) -> str:
    """`a@b (pid 7) since 2026-01-31 12:00:00 UTC, until 12:00:30 UTC (in 12 s)`."""
    owner, left = state["owner"], left_s(state)
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state["since_s"]))
    if left is None:
        until = "until it is cleared"
    else:
        end = time.strftime("%H:%M:%S UTC", time.gmtime(time.time() + left))
        until = f"until {end} (in {max(left, 0):.0f} s)"
    return f"{owner['name']} (pid {owner['pid']}) since {since}, {until}"


# The dead-man.


def start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks: tells it from a later one of its number.

    "" where none lives. The first process of a container often buries nobody: what has ended is
    listed until the container ends.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else fields[18]


def deadman_lives(state: State) -> bool:
    deadman = state.get("deadman")
    return deadman is not None and start_time(deadman["pid"]) == deadman["start"]


def start_deadman(state: State) -> None:
    """Start the process that puts everything back when the lease ends; record it in `state`."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach(keep=write_end)
                os.write(write_end, f"{os.getpid()}\n".encode())
                os.close(write_end)
                wait_for_end_of_lease(state["interface"])
        finally:
            os._exit(0)  # never back into the caller's code, which goes on in the parent
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as report:
        pid = report.readline().strip()
    if not pid:
        raise AgentError("the dead-man timer did not start")
    state["deadman"] = {"pid": int(pid), "start": start_time(int(pid))}


def _detach(keep: int) -> None:
    """Outlive the connection: no terminal, no descriptor, no cgroup of the session, no OOM."""
    os.chdir("/")
    for name in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number != keep:
            with suppress(OSError):
                os.close(number)
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    for file, text in (
        ("/proc/self/oom_score_adj", "-1000"),
        # systemd-logind may end all that is left of a session, found by its cgroup.
        ("/sys/fs/cgroup/cgroup.procs", "0"),
        ("/sys/fs/cgroup/systemd/cgroup.procs", "0"),
        ("/proc/self/comm", "netbench-timer"),
    ):
        with suppress(OSError):
            Path(file).write_text(text)


def wait_for_end_of_lease(interface: str) -> None:
    """Returns when the interface is as before, by this process or another.

    A lease without end is waited for too: it may be given another one. Told to terminate, it does
    not wait any longer: nobody else would put things back.
    """
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while True:
        try:
            state = load_state(interface)
            if state is None or not _is_mine(state):
                return
            if told or expired(state):
                _end_lease(interface, at_once=bool(told))
            else:
                left = left_s(state)
                time.sleep(POLL_S if left is None else min(max(left, 0.0), POLL_S))
        except Exception:  # whatever it is, nobody else will put things back
            time.sleep(RETRY_S)


def _is_mine(state: State) -> bool:
    """Whether this process is the recorded dead-man; it starts before it is recorded."""
    deadman = state.get("deadman")
    return not deadman or bool(deadman["pid"] == os.getpid())


def _end_lease(interface: str, at_once: bool) -> None:
    with locked(interface):
        state = load_state(interface)
        if state is not None and (at_once or expired(state)):
            restore(state)
            state_path(interface).unlink(missing_ok=True)
            _remove_agent()


def _remove_agent() -> None:
    """A controller that vanished has not removed this file, which it put in a folder of its own."""
    file = Path(sys.argv[0])
    if file.parent.name.startswith(FOLDER_PREFIX):
        with suppress(OSError):
            file.unlink()
            file.parent.rmdir()


def end_deadman(state: State) -> None:
    if deadman_lives(state) and state["deadman"]["pid"] != os.getpid():
        with suppress(ProcessLookupError):
            os.kill(state["deadman"]["pid"], signal.SIGKILL)


# Putting things back.


def restore(state: State) -> list[str]:
    """Put back what is still as netbench left it; what is not is named in the answer.

    Everything is tried. Raises AgentError with all that failed; then call it again.
    """
    notes: list[str] = []
    failed: list[str] = []
    for part in (_restore_qdisc, _restore_segments, _leave_sysctls):
        try:
            part(state, notes)
        except (AgentError, OSError) as error:
            failed.append(str(error))
    if failed:
        raise AgentError("; ".join(failed))
    return notes


def _restore_qdisc(state: State, notes: list[str]) -> None:
    interface = state["interface"]
    if _ifindex(interface) is None:
        notes.append(f"{interface} has gone")
        return
    if root_of(qdiscs_of(interface))["handle"] == HANDLE:
        output_of(["tc", "qdisc", "del", "dev", interface, "root", "handle", HANDLE])
    found = qdiscs_of(interface)
    if is_foreign(found):
        if found != state["former"]["qdiscs"]:
            notes.append(
                f"{interface} now has a root qdisc of somebody else: {describe(interface)}"
            )
    elif state["replaced"] and _ifindex(interface) == state["ifindex"]:
        try:
            load_batch(state["replaced"])
        except AgentError:
            # Half of it would look like somebody else's root when it is tried again.
            handle = root_of(state["former"]["qdiscs"])["handle"]
            with suppress(AgentError):
                output_of(["tc", "qdisc", "del", "dev", interface, "root", "handle", handle])
            raise
        if qdiscs_of(interface) != state["former"]["qdiscs"]:
            notes.append(f"the former qdisc came back different: {describe(interface)}")


def _restore_segments(state: State, notes: list[str]) -> None:
    interface, wanted = state["interface"], state["former"]["gso_max_segs"]
    if state["segments"] is None or _ifindex(interface) != state["ifindex"]:
        return
    found = link_of(interface)["gso_max_segs"]
    if found == state["segments"]:
        set_segments(interface, wanted)
    elif found != wanted:
        notes.append(f"gso_max_segs was changed to {found} and stays so")


def _leave_sysctls(state: State, notes: list[str]) -> None:
    with _sysctls_locked():
        state["leaving"] = True  # nobody who leaves after us leaves anything to us
        with suppress(AgentError):
            save_state(state)
        _restore_sysctls(state, notes)


@contextmanager
def _sysctls_locked() -> Iterator[None]:
    """One operation at a time on settings, which interfaces share."""
    held = os.open(STATE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # whoever has it reads and writes a few files
        yield
    finally:
        os.close(held)


def _restore_sysctls(state: State, notes: list[str]) -> None:
    """Settings are of the whole machine: what another interface still needs stays for that one,
    which has the former value too."""
    for name, values in sorted(state["sysctls"].items()):
        found = read_sysctl(name)
        others = _elsewhere(state["interface"], name)
        needed = [other["set"] for other in others if not other["leaving"]]
        wanted = max(needed, key=_size) if needed else values["former"]
        theirs = [other["set"] for other in others if other["set"].split() != values["set"].split()]
        if found is None or found.split() in [value.split() for value in (*theirs, wanted)]:
            continue
        if found.split() == values["set"].split():
            write_sysctl(name, wanted)
        else:
            notes.append(f"{name} was changed to {' '.join(found.split())} and stays so")


def _elsewhere(interface: str, name: str) -> list[dict[str, Any]]:
    """What other interfaces of this network namespace have recorded of a setting, and whether they
    are being put back."""
    found = []
    for path in sorted(STATE.glob(f"*@{namespace()}.json")):
        other = path.stem.rpartition("@")[0]
        with suppress(AgentError):  # one that cannot be read keeps nobody from leaving
            state = load_state(other) if other != interface else None
            if state is not None and name in state["sysctls"]:
                found.append({**state["sysctls"][name], "leaving": "leaving" in state})
    return found


def _size(value: str) -> int:
    """Of a setting that is a number, or ends with its largest one."""
    last = value.split()[-1]
    return int(last) if last.isdigit() else 0


def _ifindex(interface: str) -> int | None:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return None


def set_segments(interface: str, segments: int) -> None:
    output_of(["ip", "link", "set", "dev", interface, "gso_max_segs", str(segments)])
    # Connections take over the setting when they look up their route.
    output_of(["ip", "route", "flush", "cache"])


def read_sysctl(name: str) -> str | None:
    """The value as the kernel prints it; None for a setting this kernel does not have."""
    if not re.fullmatch(r"net(\.[a-z0-9_]+)+", name):
        raise AgentError(f"{name!r} is not a setting of the network")
    try:
        return SYSCTL.joinpath(*name.split(".")).read_text().rstrip("\n")
    except FileNotFoundError:
        return None


def write_sysctl(name: str, value: str) -> None:
    try:
        SYSCTL.joinpath(*name.split(".")).write_text(value + "\n")
    except OSError as error:
        raise AgentError(f"cannot set {name} to {value!r}: {error.strerror}") from None


# Operations. Each is called with its request and returns what goes under "ok".


def arm(request: Request) -> Any:
    """{owner, interface, lease_s}: take the interface until the lease ends, with nothing changed.

    Refused while another has it. The same owner's later process may, once its session was left.
    """
    interface, owner = request["interface"], request["owner"]
    with locked(interface):
        state = load_state(interface)
        notes = []
        if state is not None and expired(state):
            restore(state)  # faster than its dead-man
            end_deadman(state)
            state = None
        if state is not None and not _may_take(state, owner):
            raise AgentError(
                f"{interface} is shaped by {who(state)}; wait, or take it away from them with "
                "`netbench net clear --force`"
            )
        if state is None:
            state = _new_state(interface)
            if root_of(state["former"]["qdiscs"])["handle"] == HANDLE:
                notes.append("there was a netbench program without a record of what was before it")
        elif state["applied"]:
            before = {key: state[key] for key in ("lease_end_s", "held")}
            state.setdefault("before", before)
        state.update(owner=owner, held=True, since_s=time.time())
        state["lease_end_s"] = now_s() + _lease(request)
        save_state(state)
        _keep_deadman(state)
    return {"lease": lease_view(state), "notes": notes}


def _new_state(interface: str) -> State:
    link = link_of(interface)
    return {
        "interface": interface,
        "ifindex": link["ifindex"],
        "boot_id": boot_id(),
        "applied": False,
        "former": {
            "qdiscs": qdiscs_of(interface),
            "text": output_of(["tc", "qdisc", "show", "dev", interface]),
            "gso_max_segs": link.get("gso_max_segs", 65535),
        },
        "replaced": "",
        "segments": None,
        "sysctls": {},
    }


def _may_take(state: State, owner: dict[str, Any]) -> bool:
    theirs = state["owner"]
    if theirs["session"] == owner["session"]:
        return True
    return theirs["name"] == owner["name"] and not state["held"]


def _lease(request: Request) -> float:
    lease_s = request["lease_s"]
    if not isinstance(lease_s, (int, float)) or not 0 < lease_s <= MAX_LEASE_S:
        raise AgentError(f"a lease of {lease_s} s: expected more than 0, up to {MAX_LEASE_S:g} s")
    return float(lease_s)


def _keep_deadman(state: State) -> None:
    if deadman_lives(state):
        return
    state.pop("deadman", None)
    save_state(state)
    start_deadman(state)
    save_state(state)


def _mine(request: Request) -> State:
    """The state, if it is the caller's and in force."""
    interface = request["interface"]
    state = load_state(interface)
    if state is None or expired(state):
        raise AgentError(
            f"{interface} is not armed: the lease has ended and the node has cleared itself, "
            "somebody has cleared it, or it was restarted"
        )
    if state["owner"]["session"] != request["owner"]["session"]:
        raise AgentError(f"{interface} was taken over by {who(state)}")
    return state


def beat(request: Request) -> Any:
    """{owner, interface, lease_s, release}: the lease ends in lease_s from now.

    lease_s null: never; only once a program was applied. release: this process will not come back;
    the next one of its owner may go on. Fails when the interface has lost its program.
    """
    interface = request["interface"]
    with locked(interface):
        state = _mine(request)
        if state["applied"] and root_of(qdiscs_of(interface))["handle"] != HANDLE:
            raise AgentError(
                f"{interface} has lost its program, its root qdisc is {describe(interface)}: "
                "the machine or the interface was restarted, or somebody removed it"
            )
        if request["lease_s"] is None and not state["applied"]:
            raise AgentError("a lease without end is given only after a program was applied")
        state["lease_end_s"] = None if request["lease_s"] is None else now_s() + _lease(request)
        state["held"] = not request.get("release", False)
        save_state(state)
        _keep_deadman(state)
    return {"lease": lease_view(state)}


def apply(request: Request) -> Any:
    """{owner, interface, lease_s, text, sysctls, max_segments, replace}: load `tc -batch` text.

    Every change is recorded before it is made. A foreign root qdisc is refused, or replaced if
    asked and if it can be put back.
    """
    interface = request["interface"]
    with locked(interface):
        state = _mine(request)
        state.pop("before", None)
        state["lease_end_s"] = now_s() + _lease(request)
        replaced = _make_room(state, request["replace"])
        _set_sysctls(state, request["sysctls"])
        _set_segments(state, request["max_segments"])
        if request["text"]:
            load_batch(request["text"])
        state["applied"] = True
        state["lease_end_s"] = now_s() + _lease(request)
        save_state(state)
    return {"lease": lease_view(state), "replaced": replaced}


def _make_room(state: State, replace: bool) -> str:
    """Take a foreign root qdisc away if asked: what it was, or ""."""
    interface = state["interface"]
    found = qdiscs_of(interface)
    if not is_foreign(found):
        save_state(state)
        return ""
    words = describe(interface)
    text = f"{interface} has a root qdisc that is not netbench's: {words}"
    if not replace:
        raise AgentError(
            f"{text}. It is left as it is; --replace puts netbench's in its place and it back "
            "afterwards"
        )
    try:
        state["replaced"] = replay_batch(interface, found)
    except AgentError as error:
        raise AgentError(
            f"{text}. It could not be put back exactly ({error}), so it is left as it is; remove "
            f"it yourself with `tc qdisc del dev {interface} root` if nothing needs it"
        ) from None
    state["former"]["qdiscs"] = found
    state["former"]["text"] = output_of(["tc", "qdisc", "show", "dev", interface])
    save_state(state)
    output_of(["tc", "qdisc", "del", "dev", interface, "root"])
    return words


def _set_sysctls(state: State, wanted: dict[str, str]) -> None:
    """Settings of an earlier program that this one does not have go back."""
    with _sysctls_locked():
        state.pop("leaving", None)
        known = state["sysctls"]
        for name in sorted(set(known) - set(wanted)):
            _restore_sysctls({**state, "sysctls": {name: known[name]}}, [])
            del known[name]
        for name, value in wanted.items():
            found = read_sysctl(name)
            if found is not None:
                others = _elsewhere(state["interface"], name)
                ours = [other for other in others if other["set"].split() == found.split()]
                former = ours[0]["former"] if ours else found
                former = known[name]["former"] if name in known else former
                least = max([former, *(other["set"] for other in others)], key=_size)
                known[name] = {"former": former, "set": _raised(name, least, value)}
        save_state(state)
        for name, values in known.items():
            if (read_sysctl(name) or "").split() != values["set"].split():
                write_sysctl(name, values["set"])


def _raised(name: str, least: str, wanted: str) -> str:
    """Buffers of a machine that is in use are made larger, never smaller."""
    is_larger = name in _BUFFERS and _size(least) >= _size(wanted)
    return " ".join(least.split()) if is_larger else wanted


def _set_segments(state: State, wanted: int) -> None:
    """Lower the packets TCP hands over, never raise them above what they were."""
    former = state["former"]["gso_max_segs"]
    target = min(wanted, former)
    if target == former and state["segments"] is None:
        return
    state["segments"] = target
    save_state(state)
    if link_of(state["interface"])["gso_max_segs"] != target:
        set_segments(state["interface"], target)


def show(request: Request) -> Any:
    """{interface}: tables and classes as `readback.parse` takes them, with counters and a clock."""
    interface = request["interface"]
    with locked(interface):
        state = load_state(interface)
        text = f"qdisc show dev {interface}\nfilter show dev {interface}\n"
        return {
            "at_s": now_s(),
            "tables": output_of(["tc", "-s", "-j", "-batch", "-"], text),
            "classes": output_of(["tc", "-d", "class", "show", "dev", interface]),
            "lease": None if state is None else lease_view(state),
            "changed": [] if state is None else _changed(state),
        }


def _changed(state: State) -> list[str]:
    """Settings that are not as netbench set them any more."""
    found = []
    for name, values in sorted(state["sysctls"].items()):
        value = read_sysctl(name) or ""
        expected = [values, *_elsewhere(state["interface"], name)]
        if value.split() not in [lease["set"].split() for lease in expected]:
            found.append(f"{name} is {' '.join(value.split())}, set to {values['set']}")
    if state["segments"] is not None:
        segments = link_of(state["interface"])["gso_max_segs"]
        if segments != state["segments"]:
            found.append(f"gso_max_segs is {segments}, set to {state['segments']}")
    return found


def clear(request: Request) -> Any:
    """{owner, interface, scope, keep}: everything as before. Safe at any time, any number of times.

    scope: `session`, only what this process armed; `owner`, what this person did from this
    machine; `any`. What is not within the scope is left: an error, but for `session`. With `keep` a
    program that was there before `arm`, and that no `apply` has touched since, stays with the lease
    it had then.
    """
    interface, scope = request["interface"], request["scope"]
    with locked(interface):
        state = load_state(interface)
        if state is None:
            state_path(interface).unlink(missing_ok=True)  # of an earlier boot
            return _clear_unrecorded(interface, scope)
        if not expired(state) and not _may_clear(state, request["owner"], scope):
            if scope == "session":
                return {"cleared": False, "notes": [], "lease": None}
            raise AgentError(
                f"{interface} is shaped by {who(state)}; --force clears it all the same"
            )
        if request.get("keep") and "before" in state and not expired(state):
            state.update(state.pop("before"))
            save_state(state)
            return {"cleared": False, "notes": [], "lease": lease_view(state)}
        lease = lease_view(state)
        notes = restore(state)
        state_path(interface).unlink(missing_ok=True)
        end_deadman(state)
    return {"cleared": True, "notes": notes, "lease": lease}


def _may_clear(state: State, owner: dict[str, Any], scope: str) -> bool:
    if scope == "any" or state["owner"]["session"] == owner["session"]:
        return True
    return scope == "owner" and bool(state["owner"]["name"] == owner["name"])


def _clear_unrecorded(interface: str, scope: str) -> Any:
    """A program whose record was lost: it goes, but what was before it is not known."""
    nothing = {"cleared": False, "notes": [], "lease": None}
    if scope == "session" or _ifindex(interface) is None:
        return nothing
    if root_of(qdiscs_of(interface))["handle"] != HANDLE:
        return nothing
    output_of(["tc", "qdisc", "del", "dev", interface, "root", "handle", HANDLE])
    return {**nothing, "cleared": True, "notes": ["there was no record of what was before"]}


def replay(request: Request) -> Any:
    """{owner, interface, steps: [[time_s, `tc -batch` text], ...]}, then lines on stdin:

        {"clock": true}   answered with {"at_s": this node's monotonic clock}
        {"start_s": ...}  load every step when it is due, time_s after that; answered, after each,
                          with {"late_s": ...}
        end of file       stop; what was loaded stays

    The steps are in order of time. Stops with an error where the lease has ended or was taken over.
    """
    with locked(request["interface"]):
        _mine(request)
    steps = [(time_s, {"": text}) for time_s, text in request["steps"]]
    return {"loaded": serve_steps(steps, lambda _: start_batch(), lambda: _mine(request))}


def start_batch() -> subprocess.Popen[bytes]:
    """A `tc -batch` that loads each line as it comes."""
    pipe = subprocess.PIPE
    command = ["tc", "-j", "-batch", "-"]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=tool_environment())


def serve_steps(
    steps: list[tuple[float, dict[str, str]]],
    start: Callable[[str], subprocess.Popen[bytes]],
    check: Callable[[], object] = lambda: None,
) -> int:
    """Obey the lines of stdin that `replay` describes; the number of steps that were loaded.

    steps: time_s, and the text of each place that has one then, by name ("": the only one).
    start: makes the place's `start_batch`, which stays: when a step is due it only has to read.
    check: called before each step; raises AgentError where nothing may be loaded any more.
    """
    places = dict.fromkeys(place for _, texts in steps for place in texts)
    with ExitStack() as processes:
        batches = {place: Batch(processes.enter_context(start(place))) for place in places}
        for batch in batches.values():
            batch.feed("")
        _await_all("at the start", batches)
        while line := sys.stdin.readline():
            order = json.loads(line)
            if "start_s" in order:
                return _load_steps(order["start_s"], steps, batches, check)
            print(json.dumps({"at_s": time.monotonic()}), flush=True)
    return 0


def _load_steps(
    start_s: float,
    steps: list[tuple[float, dict[str, str]]],
    batches: dict[str, Batch],
    check: Callable[[], object],
) -> int:
    for number, (time_s, texts) in enumerate(steps):
        if not _wait_until(start_s + time_s):
            return number
        check()
        for place, text in texts.items():
            batches[place].feed(text)
        _await_all(f"at {time_s:g} s", {place: batches[place] for place in texts})
        late_s = time.monotonic() - (start_s + time_s)
        print(json.dumps({"late_s": late_s}), flush=True)
    return len(steps)


def _await_all(when: str, batches: dict[str, Batch]) -> None:
    for place, batch in batches.items():
        if why := batch.refusal():
            raise AgentError(f"{place}{', ' if place else ''}{when}: {why}")


class Batch:
    """A `tc -batch` that stays. What it is given ends with a question, so its end can be told: with
    `-j` the answer is always one line, `[]` where lo is down."""

    QUESTION = "qdisc show dev lo\n"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._given = ""

    def feed(self, text: str) -> None:
        """Have it load a text; does not wait for that."""
        self._given += text + self.QUESTION
        with suppress(BrokenPipeError):  # one that has ended says why
            self._stdin.write((text + self.QUESTION).encode())
            self._stdin.flush()

    def refusal(self) -> str:
        """Why a text was not loaded, once that is known; "" when it was."""
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([self._stdout], [], [], TOOL_S)[0]:
                self._process.kill()
                return f"tc did not end within {TOOL_S:g} s"
            part = os.read(self._stdout.fileno(), 4096)
            if not part:
                return quoted(self._given, self._stderr.read().decode(errors="replace"))
            answer += part
        return ""


def _wait_until(at_s: float) -> bool:
    """Until then by the monotonic clock; False, at once, when the controller has gone."""
    while (left_s := at_s - time.monotonic()) > 0:
        # The kernel lets `select` be late by a thousandth of what it waits for.
        wait_s = left_s if left_s < NEAR_S else left_s / 2
        if select.select([sys.stdin], [], [], wait_s)[0]:
            return False
    return True


def sweep() -> list[str]:
    """Drop what an earlier boot left in STATE, and put back what a dead-man that died left here."""
    swept = []
    for path in sorted(STATE.glob("*.json")) if STATE.is_dir() else []:
        interface, _, inode = path.stem.rpartition("@")
        try:
            recorded = json.loads(path.read_text())["boot_id"]
        except (OSError, ValueError, KeyError):
            continue
        if recorded != boot_id():
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            swept.append(interface)
        elif inode == str(namespace()):
            with locked(interface):
                state = load_state(interface)
                if state is not None and expired(state) and not deadman_lives(state):
                    restore(state)
                    path.unlink(missing_ok=True)
                    swept.append(interface)
    return swept


# Facts.

_TRIALS = {
    "htb": "qdisc replace dev lo root handle 1: htb default 0\n"
    "class add dev lo parent 1: classid 1:1 htb rate 1mbit\n",
    "netem": "qdisc replace dev lo root netem delay 1ms rate 1mbit limit 9\n",
    "u32": "qdisc replace dev lo root handle 1: htb default 0\n"
    "filter add dev lo parent 1: protocol ip prio 4 u32 match ip dst 10.0.0.1/32 flowid 1:1\n",
    "netem distribution": "qdisc replace dev lo root netem delay 9ms 1ms distribution normal\n",
}
"""What a program is made of, tried in a network namespace that ends with the trial. One after the
other they are a trial of all."""

_SIOCETHTOOL = 0x8946
_GET_SETTINGS, _GET_DRIVER, _GET_TSO, _GET_GSO = 0x01, 0x03, 0x1E, 0x23  # linux/ethtool.h


def facts(request: Request) -> Any:
    """{addresses, interface, peers, settings}: see `netbench.network.preflight.Facts`.

    What cannot be found out is null; what is wrong is in `problem`.
    """
    _or([], sweep)
    found: dict[str, Any] = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "kernel": os.uname().release,
        "tc": _or("", lambda: output_of(["tc", "-V"]).strip().split("iproute2-")[-1].split(",")[0]),
        "machine": f"{boot_id()}/{namespace()}",
        "timer_s": time.clock_getres(time.CLOCK_MONOTONIC),
        "hz": _or(None, _hz),
        "free_bytes": {place: _or(None, _free, place) for place in ("/tmp", "/run")},
        "settings": {name: read_sysctl(name) for name in request["settings"]},
        "lacking": {},
        "interface": "",
        "problem": "",
    }
    if not found["tc"]:
        return found
    found["lacking"] = _lacking()
    try:
        interface = request["interface"] or interface_with(request["addresses"])
        found.update(_interface_facts(interface), interface=interface)
        found["routes"] = {peer: _or("", _route, peer) for peer in request["peers"]}
    except AgentError as error:
        found["problem"] = str(error)
    return found


def _or(otherwise: Any, find: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return find(*arguments)
    except (AgentError, OSError, ValueError):
        return otherwise


def _interface_facts(interface: str) -> dict[str, Any]:
    link = link_of(interface)
    qdiscs, state = qdiscs_of(interface), load_state(interface)
    unrestorable = ""
    if is_foreign(qdiscs):
        try:
            replay_batch(interface, qdiscs)
        except AgentError as error:
            unrestorable = str(error)
    return {
        "mtu_bytes": link["mtu"],
        "speed_bps": _or(None, _speed_bps, interface),
        "driver": _or("", _driver, interface),
        "tso": _or(None, _flag, interface, _GET_TSO),
        "gso": _or(None, _flag, interface, _GET_GSO),
        "qdisc": describe(interface),
        "foreign": is_foreign(qdiscs),
        "unrestorable": unrestorable,
        "lease": None if state is None or expired(state) else lease_view(state),
    }


def interface_with(addresses: list[str]) -> str:
    if not addresses:
        raise AgentError(
            "the address of this host on the network to shape is not known, as it is not reached "
            "by SSH; write it into the inventory (`data_address:`)"
        )
    links = json.loads(output_of(["ip", "-j", "addr", "show"]))
    have = {info["local"]: link["ifname"] for link in links for info in link.get("addr_info", [])}
    missing = [address for address in addresses if address not in have]
    if missing:
        raise AgentError(
            f"no interface has the address {', '.join(missing)}; "
            f"there are: {', '.join(f'{a} ({i})' for a, i in sorted(have.items()))}"
        )
    names = sorted({have[address] for address in addresses})
    if len(names) > 1:
        raise AgentError(f"{', '.join(addresses)} are on several interfaces: {', '.join(names)}")
    return str(names[0])


def _route(peer: str) -> str:
    """The interface through which a peer is reached."""
    found = json.loads(output_of(["ip", "-j", "route", "get", peer]))
    return str(found[0]["dev"])


def _lacking() -> dict[str, str]:
    """What tc said of each part that does not work; {"": why} when it could not be tried."""
    trial = ["unshare", "--net", "--", "tc", "-batch", "-"]
    if run_tool(trial, "".join(_TRIALS.values()))[0] == 0:
        return {}
    status, _, stderr = run_tool(["unshare", "--net", "--", "true"])
    if status:
        return {"": " ".join(stderr.split())}
    lacking = {}
    for name, text in _TRIALS.items():
        status, _, stderr = run_tool(trial, text)
        if status:
            lacking[name] = " ".join(stderr.split())
    return lacking


def _ethtool(interface: str, command: int, size: int) -> bytes:
    """linux/ethtool.h: the command, then what the driver answers. Raises OSError."""
    buffer = array("B", struct.pack("I", command) + bytes(size - 4))
    request = struct.pack("16sP16x", interface.encode(), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    return buffer.tobytes()


def _speed_bps(interface: str) -> float | None:
    answer = _ethtool(interface, _GET_SETTINGS, 44)
    low, high = struct.unpack_from("H", answer, 12)[0], struct.unpack_from("H", answer, 28)[0]
    mbits = high << 16 | low
    return None if mbits in (0, 0xFFFF, 0xFFFFFFFF) else mbits * 1e6


def _driver(interface: str) -> str:
    return _ethtool(interface, _GET_DRIVER, 196)[4:36].split(b"\0")[0].decode()


def _flag(interface: str, command: int) -> bool:
    return bool(struct.unpack_from("I", _ethtool(interface, command, 8), 4)[0])


def _hz() -> int | None:
    """CONFIG_HZ of the running kernel, where its configuration is to be found."""
    plain = Path(f"/boot/config-{os.uname().release}")
    if plain.exists():
        text = plain.read_text()
    else:
        import gzip  # rarely needed; every operation starts a new process

        text = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
    found = re.search(r"^CONFIG_HZ=(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _free(place: str) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


OPERATIONS: dict[str, Callable[[Request], Any]] = {
    "facts": facts,
    "arm": arm,
    "beat": beat,
    "apply": apply,
    "show": show,
    "replay": replay,
    "clear": clear,
}


def main() -> int:
    """One operation; its answer on stdout."""
    os.umask(0o077)
    try:
        operation = OPERATIONS.get(sys.argv[1] if len(sys.argv) == 2 else "")
        if operation is None:
            raise AgentError(f"expected one operation of: {', '.join(OPERATIONS)}")
        if os.geteuid() != 0:
            raise AgentError(
                "not root: log in as root, or let the user run sudo without a password"
            )
        request = json.loads(sys.stdin.readline())
        if operation is not facts:
            request["interface"] = request["interface"] or interface_with(request["addresses"])
        answer = {"ok": operation(request)}
    except (AgentError, OSError, KeyError, ValueError) as error:
        words = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
        answer = {"error": words}
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
