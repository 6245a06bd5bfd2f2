"""Give machines a network, all or none, and take it away again.

    send the agent -> arm all -> what does each hold? -> load what differs -> read back -> extend

Whatever fails, wherever: all are cleared, and one error lists every host with its cause. Only where
nothing was loaded yet, a network that was there before stays, with the lease it had. A host
that cannot be reached then clears itself when its lease ends, which is `ARM_LEASE_S` away until the
last step. How hosts are reached is somebody else's.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from netbench.errors import NetworkError
from netbench.network import readback
from netbench.network.command import Run, at_once
from netbench.network.courier import Courier, Machine, Open, Put, Refused
from netbench.network.preflight import Facts
from netbench.network.program import Program, compile_program
from netbench.network.replay import Channel, Played, Playing
from netbench.network.trace import Change, Replay, Step, compile_replay, replay_sysctls
from netbench.network.update import update_text
from netbench.scenario.model import Network
from netbench.units import counted, format_time

T = TypeVar("T")

ARM_LEASE_S = 30.0
"""While a program is loaded, and between heartbeats: a vanished controller is noticed so soon."""

STEP_DEADLINE_S = ARM_LEASE_S / 2
"""Of one step on all hosts. Every step renews the lease, and no host waits for longer than two."""

SEND_DEADLINE_S = 90.0
"""For connecting and sending the agent, before anything is armed; and for its facts."""

LOOK_S = 0.2
"""How often the progress of a replay is told, seconds."""

BEATS_PER_LEASE = 6
"""Heartbeats in the time of one lease: some may be lost on the way."""

SETTINGS = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_tso_rtt_log")
"""Of `program.sysctls`, what a machine in use is given: what netem needs to be exact. How TCP
behaves otherwise is the machine's own."""


def settings(network: Network, changes: Sequence[Change] = ()) -> dict[str, str]:
    """Settings of TCP that machines need for `network`, whatever of `changes` befalls it: name ->
    value. Buffers are only raised."""
    wanted = replay_sysctls(network, changes)
    return {name: wanted[name] for name in SETTINGS}


def compile_for(
    network: Network, facts: Mapping[int, Facts | Exception], exempt_ports: tuple[int, ...]
) -> dict[int, Program]:
    """The program of every host whose interface is known; none unless all addresses are."""
    known = {node: host for node, host in facts.items() if isinstance(host, Facts)}
    if len(known) < network.num_nodes or not all(host.addresses for host in known.values()):
        return {}
    addresses = [known[node].addresses for node in range(network.num_nodes)]
    return {
        node: dataclasses.replace(
            compile_program(network, node, addresses, host.interface), exempt_ports=exempt_ports
        )
        for node, host in known.items()
        if host.interface
    }


def compile_replays_for(
    network: Network,
    changes: Sequence[Change],
    facts: Mapping[int, Facts | Exception],
    exempt_ports: tuple[int, ...],
) -> dict[int, Replay]:
    """What every host does in a trace, where `compile_for` has a program for each."""
    known = [host for _, host in sorted(facts.items()) if isinstance(host, Facts)]
    addresses = [host.addresses for host in known]
    return {
        node: compile_replay(
            network, changes, node, addresses, host.interface, exempt_ports=exempt_ports
        )
        for node, host in enumerate(known)
    }


class FleetError(NetworkError):
    """What failed, on which hosts. failures: node -> why."""

    def __init__(self, text: str, failures: Mapping[int, Exception]) -> None:
        super().__init__(text)
        self.failures = dict(failures)


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Who has an interface: a person on a machine (`name`), and this process (`session`)."""

    name: str
    pid: int
    session: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Of an interface. left_s: seconds, None = without end. who: all of it in words. held: only
    the process that has it may change it. applied: a program was loaded."""

    name: str
    who: str
    held: bool
    applied: bool
    since_s: float
    left_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a node holds. at_s: the node's clock, for counters. changed: settings that are no
    longer as netbench set them."""

    at_s: float
    found: readback.Found
    lease: Lease | None
    changed: tuple[str, ...]

    def problems(self, program: Program) -> tuple[str, ...]:
        """What is not as planned, one sentence each."""
        return (*readback.differences(program, self.found), *self.changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """What `apply` did on a node. num_commands: of `tc`; 0 = nothing differed. replaced: a foreign
    root qdisc that was put aside, or "". notes: what a person should know."""

    num_commands: int
    replaced: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleared:
    """What `clear` did on a node. cleared: there was something. lease: what it had until then.
    notes: what was not put back because somebody has changed it since."""

    cleared: bool
    notes: tuple[str, ...]
    lease: Lease | None


def this_owner() -> Owner:
    """This person on this machine, and this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        user = str(os.getuid())
    name = f"{user}@{socket.gethostname()}"
    return Owner(name=name, pid=os.getpid(), session=secrets.token_hex(8))


class Fleet(AbstractContextManager["Fleet"]):
    """Machines that are shaped together; node i is `machines[i]`.

    run: as the login user; run_as_root, open_as_root: as root; only `replay` needs the latter.
    lease_s: of hosts while they are being worked on. deadline_s: of one step, on all. step: called
    with the name of each step, before it.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        run: Run,
        run_as_root: Run,
        put: Put,
        *,
        open_as_root: Open | None = None,
        owner: Owner | None = None,
        lease_s: float = ARM_LEASE_S,
        deadline_s: float = STEP_DEADLINE_S,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._courier = Courier(machines, run, run_as_root, put, open_as_root)
        self._owner = asdict(owner or this_owner())
        self._lease_s = lease_s
        self._deadline_s = deadline_s
        self._step = step
        self._nodes = range(len(machines))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the agent away from every host that can be reached."""
        at_once({n: partial(self._courier.remove, n) for n in self._nodes}, self._deadline_s)

    def name(self, node: int) -> str:
        """Of the host that plays a node."""
        return self._courier.machines[node].name

    def facts(self) -> dict[int, Facts | Exception]:
        """What every host is and can do, or why that is not known. Changes nothing."""
        self._step("sending the agent")
        sends = {node: partial(self._courier.addresses, node) for node in self._nodes}
        found = at_once(sends, SEND_DEADLINE_S)
        peers = [a for r in found.values() if not isinstance(r, Exception) for a in r]
        self._step("looking at the hosts")
        tasks = {
            node: partial(self._facts, node, {"peers": peers, "settings": list(SETTINGS)})
            for node, result in found.items()
            if not isinstance(result, Exception)
        }
        return {**found, **at_once(tasks, SEND_DEADLINE_S)}  # type: ignore[dict-item]

    def apply(
        self,
        programs: Sequence[Program],
        settings: Mapping[str, str],
        *,
        lease_s: float | None,
        replace: bool = False,
        release: bool = True,
    ) -> dict[int, Applied]:
        """Give every node its program, or none: then FleetError, after all were cleared. An earlier
        network of the same owner stays if nothing was loaded yet; otherwise the error says it went.

        lease_s: from the end on, seconds; None = until `clear`. release: this process need not
        stay; otherwise nobody but it may change anything, see `hold`. replace: put a foreign root
        qdisc aside until `clear`, where it can be put back exactly.
        """
        wanted = {program.node: program for program in programs}
        self._step("sending the agent")
        sends = {node: partial(self._courier.send, node) for node in wanted}
        self._all(at_once(sends, SEND_DEADLINE_S), "sending the agent")
        longest_s: float | None = self._lease_s
        armed: dict[int, Any] = {}
        loading = False
        try:
            self._step("arming the dead-man timers")
            armed = self._ask_all("arm", wanted, {"lease_s": self._lease_s})
            texts = self._differences(wanted)
            loading = True
            loaded = self._load(wanted, texts, settings, replace)
            self._check(wanted)
            self._step("extending the leases")
            longest_s = lease_s if lease_s is None else max(lease_s, self._lease_s)
            self._ask_all("beat", wanted, {"lease_s": lease_s, "release": release})
        except BaseException as error:
            had = {n for n in armed if loading and armed[n]["lease"]["applied"]}
            said = self._roll_back(wanted, longest_s, had, keep=not loading)
            if isinstance(error, FleetError):
                error.args = (f"{error}{said}",)
            elif said:
                words = str(error) if isinstance(error, Exception) else "interrupted"
                raise FleetError(f"{words}{said}", {}) from error
            raise
        return {
            node: Applied(
                num_commands=len(texts[node].splitlines()),
                replaced=loaded[node],
                notes=tuple(armed[node]["notes"]),
            )
            for node in wanted
        }

    def hold(
        self, programs: Sequence[Program], wait: Callable[[float], bool], say: Callable[[str], None]
    ) -> None:
        """Renew the leases until `wait(seconds)`, which may wait so long, returns True.

        A host that is not reached is said, and tried again. Raises FleetError when one has lost its
        program, or was not reached for so long that it has cleared itself.
        """
        wanted = {program.node: program for program in programs}
        reached_s = dict.fromkeys(wanted, time.monotonic())
        while not wait(self._lease_s / BEATS_PER_LEASE):
            began_s = time.monotonic()
            results = self._asked("beat", wanted, {"lease_s": self._lease_s, "release": False})
            lost: dict[int, Exception] = {}
            for node, result in results.items():
                if not isinstance(result, Exception):
                    reached_s[node] = began_s
                elif isinstance(result, Refused) or began_s - reached_s[node] > self._lease_s:
                    lost[node] = result
                else:
                    left_s = reached_s[node] + self._lease_s - time.monotonic()
                    say(f"{self._line(node, result)}; it clears itself in {max(left_s, 0):.0f} s")
            if lost:
                raise self._error("holding", lost, len(wanted))

    def replay(
        self, replays: Mapping[int, Replay], say: Callable[[str], None]
    ) -> dict[int, Played]:
        """Play a trace on nodes that hold its programs, and renew their leases meanwhile.

        say: see `hold`. Raises NetworkError when a node fails; then all stop where they are.
        """
        self._step("starting the replay")
        programs = [replay.program for replay in replays.values()]
        steps = {node: replay.steps for node, replay in replays.items()}
        opens = {node: partial(self._open_replay, node, steps[node]) for node in replays}
        opened = at_once(opens, self._deadline_s)
        channels = {n: c for n, c in opened.items() if not isinstance(c, Exception)}
        try:
            self._all(opened, "starting the replay")
            playing = Playing(channels, steps)
            self.hold(programs, partial(self._wait_for, playing), say)
        finally:
            for channel in channels.values():
                channel.close()
        played = playing.result()
        failures = {n: result for n, result in played.items() if isinstance(result, Exception)}
        if failures:
            raise self._error("playing the trace", failures, len(replays))
        return {n: result for n, result in played.items() if isinstance(result, Played)}

    def _open_replay(self, node: int, steps: Sequence[Step]) -> Channel:
        request = {"owner": self._owner, "steps": [(step.time_s, step.text) for step in steps]}
        return self._courier.open(node, "replay", request)

    def _wait_for(self, playing: Playing, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            if playing.wait(min(left_s, LOOK_S)):
                return True
            self._step(f"replaying on {counted(len(self._nodes), 'host')}: {playing.progress}")
        return False

    def show(self, nodes: Iterable[int] | None = None) -> dict[int, Shown | Exception]:
        """What every node holds, or why that is not known."""
        return {
            node: answer if isinstance(answer, Exception) else _shown(answer)
            for node, answer in self._asked("show", self._nodes if nodes is None else nodes).items()
        }

    def clear(self, scope: str = "owner") -> dict[int, Cleared | Exception]:
        """Put every node back as it was, or say why not. Fine where nothing is shaped.

        scope: `session`, only what this process did; `owner`, what this person did from this
        machine; `any`.
        """
        self._step("clearing")
        sends = {node: partial(self._courier.send, node) for node in self._nodes}
        sent = at_once(sends, SEND_DEADLINE_S)
        unsent: dict[int, Cleared | Exception] = {
            node: result for node, result in sent.items() if isinstance(result, Exception)
        }
        return dict(sorted({**unsent, **self._clear(set(sent) - set(unsent), scope)}.items()))

    def cleared_by(self, results: Mapping[int, Cleared | Exception]) -> float | None:
        """Seconds after which hosts that were not reached will have cleared themselves, as far as
        those tell that were: all of an `apply` get their leases together. None = not known."""
        leases = [r.lease for r in results.values() if isinstance(r, Cleared) and r.lease]
        known = [lease.left_s for lease in leases if lease.left_s is not None]
        return max(known) if known and len(known) == len(leases) else None

    def _facts(self, node: int, request: Mapping[str, Any]) -> Facts:
        sent = self._courier.send(node)
        answer = self._courier.ask(node, "facts", request)
        return Facts.read(answer, self._courier.addresses(node), sent.ssh, self._owner)

    def _differences(self, wanted: Mapping[int, Program]) -> dict[int, str]:
        """What every node is to load."""
        self._step("reading what is there")
        shown = self._all(self.show(wanted), "reading what is there")
        return {node: update_text(wanted[node], shown[node].found) for node in wanted}

    def _load(
        self,
        wanted: Mapping[int, Program],
        texts: Mapping[int, str],
        settings: Mapping[str, str],
        replace: bool,
    ) -> dict[int, str]:
        """Send every node what differs: the qdisc that was put aside there, or ""."""
        requests = {
            node: {
                "lease_s": self._lease_s,
                "text": texts[node],
                "sysctls": dict(settings),
                "max_segments": wanted[node].max_segments,
                "replace": replace,
            }
            for node in wanted
        }
        self._step("loading what differs")
        results = self._asked("apply", wanted, requests=requests)
        answers = self._all(results, "shaping")
        return {node: answers[node]["replaced"] for node in wanted}

    def _check(self, wanted: Mapping[int, Program]) -> None:
        self._step("reading it back")
        results: dict[int, Shown | Exception] = self.show(wanted)
        for node, shown in results.items():
            problems = () if isinstance(shown, Exception) else shown.problems(wanted[node])
            if problems:
                more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
                results[node] = NetworkError("; ".join(problems[:3]) + more)
        self._all(results, "reading back what was loaded")

    def _roll_back(
        self,
        wanted: Mapping[int, Program],
        longest_s: float | None,
        had: Collection[int],
        keep: bool,
    ) -> str:
        """Clear what this process armed. What is to be said of it: what is left, with when it ends,
        and what has gone; lines that begin with a line break.

        longest_s: the longest lease that a host may have been given, whatever it answered. had:
        nodes with an earlier network. keep: an earlier network stays.
        """
        self._step("rolling back")
        results = self._clear(wanted, "session", keep=keep)
        left = [node for node, result in results.items() if isinstance(result, Exception)]
        gone = sorted(set(had) - set(left))
        said = ""
        if gone:
            said += f"\nthe network that was there before has gone: {self._names(gone)}"
        if left:
            said += f"\nnot cleared: {self._names(left)}; what was changed there "
            if longest_s is None:
                said += "may stay, without end: `netbench net clear` when it can be reached"
            else:
                said += f"ends with its lease, in {format_time(longest_s)} at most"
        return said

    def _names(self, nodes: Iterable[int]) -> str:
        return ", ".join(map(self.name, sorted(nodes)))

    def _clear(
        self, nodes: Iterable[int], scope: str, keep: bool = False
    ) -> dict[int, Cleared | Exception]:
        return {
            node: answer
            if isinstance(answer, Exception)
            else Cleared(
                cleared=answer["cleared"],
                notes=tuple(answer["notes"]),
                lease=_lease(answer["lease"]),
            )
            for node, answer in self._asked("clear", nodes, {"scope": scope, "keep": keep}).items()
        }

    def _ask_all(
        self, operation: str, nodes: Iterable[int], request: Mapping[str, Any]
    ) -> dict[int, Any]:
        return self._all(self._asked(operation, nodes, request), f"`{operation}`")

    def _asked(
        self,
        operation: str,
        nodes: Iterable[int],
        request: Mapping[str, Any] | None = None,
        requests: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> dict[int, Any | Exception]:
        """Ask all of `nodes` the same, or each what `requests` has for it."""
        tasks = {}
        for node in nodes:
            whole = {"owner": self._owner, **(request or {}), **(requests or {}).get(node, {})}
            tasks[node] = partial(self._courier.ask, node, operation, whole)
        return at_once(tasks, self._deadline_s)

    def _all(self, results: Mapping[int, T | Exception], what: str) -> dict[int, T]:
        """The results, or FleetError."""
        failures = {node: r for node, r in results.items() if isinstance(r, Exception)}
        if failures:
            raise self._error(what, failures, len(results))
        return {node: r for node, r in results.items() if not isinstance(r, Exception)}

    def _error(self, what: str, failures: Mapping[int, Exception], num_hosts: int) -> FleetError:
        lines = [f"  {self._line(node, error)}" for node, error in sorted(failures.items())]
        head = f"{what} failed on {len(failures)} of {counted(num_hosts, 'host')}:"
        return FleetError("\n".join([head, *lines]), failures)

    def _line(self, node: int, error: Exception) -> str:
        """`name: why`; errors of reaching a host begin with its name already."""
        words = str(error) or type(error).__name__
        return words if words.startswith(self.name(node)) else f"{self.name(node)}: {words}"


def _shown(answer: Mapping[str, Any]) -> Shown:
    return Shown(
        at_s=answer["at_s"],
        found=readback.parse(answer["tables"], answer["classes"]),
        lease=_lease(answer["lease"]),
        changed=tuple(answer["changed"]),
    )


def _lease(answer: Mapping[str, Any] | None) -> Lease | None:
    if answer is None:
        return None
    fields = {key: answer[key] for key in ("who", "held", "applied", "since_s", "left_s")}
    return Lease(name=answer["owner"]["name"], **fields)
