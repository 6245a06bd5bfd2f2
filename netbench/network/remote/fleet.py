"""Give a fleet of hosts a network, all or none, and remove it again.

    send the agent -> arm all -> read all -> load differences -> read back -> extend the leases

If any step fails on any host, all hosts are cleared, and one error lists every failed host with its
cause. If nothing was loaded yet, an earlier network stays instead, with the lease it had. A host
that cannot be reached clears itself when its lease ends, after `ARM_LEASE_S` until the last step.
"""

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from netbench.errors import NetworkError
from netbench.network.nodes import Channel, Completed, at_once, split
from netbench.network.remote.agent.messages import Lease, Owner
from netbench.network.remote.deployer import AgentRefused, Deployer, Machine, Sent
from netbench.network.remote.facts import SETTINGS, Facts
from netbench.network.shaping import readback
from netbench.network.shaping.program import MAX_SEGMENTS, Program
from netbench.network.shaping.update import update_text
from netbench.network.traces.replay import Played, Playing
from netbench.network.traces.trace import Replay, ReplayStep
from netbench.units import counted, format_time

T = TypeVar("T")

ARM_LEASE_S = 30.0
"""Lease while a configuration is loaded, and between heartbeats, seconds."""

STEP_DEADLINE_S = ARM_LEASE_S / 2
"""Deadline of one step on all hosts, seconds. Every step renews the lease, and two fit into it."""

SEND_DEADLINE_S = 90.0
"""Deadline for connecting and sending the agent, and for its facts, seconds."""

PROGRESS_S = 0.2
"""Interval of progress reports of a replay, seconds."""

BEATS_PER_LEASE = 6
"""Heartbeats per lease: some may be lost."""


class FleetError(NetworkError):
    """A step failed on some hosts, each with its reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """State of a host's interface.

    at_s: the host's clock, for counters. changed: settings that somebody has changed since `apply`.
    """

    at_s: float
    found: readback.KernelState
    lease: Lease | None
    changed: tuple[str, ...]

    def problems(self, program: Program) -> tuple[str, ...]:
        """Describe every difference from `program`, one sentence each."""
        return (*readback.differences(program, self.found), *self.changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """Result of `apply` on a host.

    num_commands: of `tc`. replaced: foreign root qdisc set aside, or "". notes: for the user.
    """

    num_commands: int
    replaced: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleared:
    """Result of `clear` on a host.

    cleared: the host was shaped. lease: its lease until then. notes: settings that were not
    restored because somebody has changed them since.
    """

    cleared: bool
    notes: tuple[str, ...]
    lease: Lease | None


def this_owner(runs: tuple[str, ...] = ()) -> Owner:
    """Return this user on this machine, and a new session. runs: see `Owner`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    name = f"{user}@{socket.gethostname()}"
    return Owner(name=name, pid=os.getpid(), session=secrets.token_hex(8), runs=runs)


class Fleet(AbstractContextManager["Fleet"]):
    """Hosts that are shaped together; node i is `machines[i]`.

    lease_s: while hosts change. deadline_s: of a step on all hosts. step: gets each step's name.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        *,
        owner: Owner | None = None,
        lease_s: float = ARM_LEASE_S,
        deadline_s: float = STEP_DEADLINE_S,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._deployer = Deployer(machines)
        self._owner = (owner or this_owner())._asdict()
        self._lease_s = lease_s
        self._deadline_s = deadline_s
        self._step = step
        self._nodes = range(len(machines))

    @property
    def session(self) -> str:
        """Return `Owner.session`: who has it may clear what this fleet leaves."""
        return str(self._owner["session"])

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, nodes: Iterable[int] | None = None) -> None:
        """Delete the agent on every host that can be reached. nodes: None = all."""
        nodes = self._nodes if nodes is None else nodes
        at_once({n: partial(self._deployer.remove, n) for n in nodes}, self._deadline_s)

    def name(self, node: int) -> str:
        """Return the name of the host that plays a node."""
        return self._deployer.machines[node].name

    def facts(self) -> dict[int, Facts | Exception]:
        """Read what every host is and can do, or why that is unknown; change nothing."""
        sent, unsent = self._send("sending the agent", self._nodes)
        peers = [address for node in sent for address in self._deployer.addresses(node)]
        self._step("inspecting the hosts")
        request = {"peers": peers, "settings": list(SETTINGS)}
        tasks = {node: partial(self._facts, node, request) for node in sent}
        return dict(sorted({**unsent, **at_once(tasks, SEND_DEADLINE_S)}.items()))

    def apply(
        self,
        programs: Sequence[Program],
        settings: Mapping[str, str],
        *,
        lease_s: float | None,
        replace: bool = False,
        release: bool = True,
    ) -> dict[int, Applied]:
        """Give every node its tc configuration, or none. Raises FleetError after all were cleared.

        lease_s: from the end of this call, seconds; None = until `clear`. release: this process
        need not stay. Otherwise only it may change anything; see `keep_leases`. replace: set a
        foreign root qdisc aside until `clear`, if it can be restored exactly.
        """
        wanted = {program.node: program for program in programs}
        _, unsent = self._send("sending the agent", wanted)
        if unsent:
            raise self._error("sending the agent", unsent, len(wanted))
        longest_s: float | None = self._lease_s
        armed: dict[int, Any] = {}
        loading = False
        try:
            self._step("arming the dead-man timers")
            armed = self._ask_all("arm", wanted, {"lease_s": self._lease_s})
            self._step("reading what is there")
            shown = self._all(self.show(wanted), "reading what is there")
            texts = {n: update_text(program, shown[n].found) for n, program in wanted.items()}
            loading = True
            loaded = self._load(wanted, texts, settings, replace)
            self._check(wanted)
            self._step("extending the leases")
            longest_s = lease_s if lease_s is None else max(lease_s, self._lease_s)
            self._ask_all("beat", wanted, {"lease_s": lease_s, "release": release})
        except BaseException as error:
            had = {n for n in armed if loading and armed[n]["lease"]["applied"]}
            lines = self._roll_back(wanted, longest_s, had, keep=not loading)
            if isinstance(error, FleetError):
                error.args = (f"{error}{lines}",)
            elif lines:
                text = str(error) if isinstance(error, Exception) else "interrupted"
                raise FleetError(f"{text}{lines}") from error
            raise
        return {
            node: Applied(
                num_commands=len(texts[node].splitlines()),
                replaced=loaded[node],
                notes=tuple(armed[node]["notes"]),
            )
            for node in wanted
        }

    def tune(self, settings: Mapping[str, str], *, replace: bool = False) -> None:
        """Arm every host and make settings there, before `apply`, which keeps them.

        Connections keep the buffers they started with. Raises FleetError after all were cleared.
        """
        nodes = list(self._nodes)
        request = {"text": "", "max_segments": MAX_SEGMENTS, "sysctls": dict(settings)}
        try:
            self._step("arming the dead-man timers")
            self._ask_all("arm", nodes, {"lease_s": self._lease_s})
            self._ask_all("apply", nodes, {**request, "lease_s": self._lease_s, "replace": replace})
        except BaseException:
            self._clear(nodes, "session", keep=True)
            raise

    def divide(self, divisions: Mapping[int, Mapping[str, Any]]) -> None:
        """Arm every host and make nodes of it, as `agent.division` describes; see `enter`.

        Raises FleetError after all were removed.
        """
        request = {"lease_s": self._lease_s}
        requests = {n: {**request, "division": dict(made)} for n, made in divisions.items()}
        try:
            self._step("making the nodes of every host")
            self._ask_all("arm", divisions, request)
            self._all(self._asked("divide", requests), "making the nodes of every host")
        except BaseException:
            self._clear(divisions, "session", keep=True)
            raise

    def enter(self, node: int, argv: Sequence[str], environment: Mapping[str, str]) -> Channel:
        """Start a command in the namespace of a node, as the login user of its host.

        Raises NetbenchError.
        """
        return self._deployer.open(node, "enter", {"argv": [*argv], "environment": {**environment}})

    def run_inside(
        self,
        node: int,
        argv: Sequence[str],
        environment: Mapping[str, str],
        stdin: str,
        timeout_s: float,
    ) -> Completed:
        """Run a command as `enter` does, to its end. Raises NetbenchError."""
        request = {"argv": [*argv], "environment": {**environment}}
        return self._deployer.run(node, "enter", request, stdin, timeout_s)

    def keep_leases(
        self, programs: Sequence[Program], wait: Callable[[float], bool], say: Callable[[str], None]
    ) -> None:
        """Renew the leases of shaped nodes: see `renew_leases`."""
        self.renew_leases([program.node for program in programs], wait, say)

    def renew_leases(
        self, nodes: Iterable[int], wait: Callable[[float], bool], say: Callable[[str], None]
    ) -> None:
        """Renew the leases until `wait(seconds)`, which may take that long, returns True.

        Unreachable hosts are reported to `say` and retried. Raises FleetError if a host has lost
        its tc configuration, or was unreachable for so long that it has cleared itself.
        """
        wanted = list(nodes)
        reached_s = dict.fromkeys(wanted, time.monotonic())
        while not wait(self._lease_s / BEATS_PER_LEASE):
            began_s = time.monotonic()
            request = {"lease_s": self._lease_s, "release": False}
            results = self._asked("beat", dict.fromkeys(wanted, request))
            lost: dict[int, Exception] = {}
            for node, result in results.items():
                if not isinstance(result, Exception):
                    reached_s[node] = began_s
                elif isinstance(result, AgentRefused) or began_s - reached_s[node] > self._lease_s:
                    lost[node] = result
                else:
                    left_s = reached_s[node] + self._lease_s - time.monotonic()
                    say(f"{self._line(node, result)}; it clears itself in {max(left_s, 0):.0f} s")
            if lost:
                raise self._error("holding", lost, len(wanted))

    def replay(
        self, replays: Mapping[int, Replay], say: Callable[[str], None]
    ) -> dict[int, Played]:
        """Play a trace on shaped hosts, and renew their leases meanwhile.

        say: see `keep_leases`. Raises NetworkError if a host fails: all stop where they are.
        """
        self._step("starting the replay")
        programs = [replay.program for replay in replays.values()]
        steps = {node: replay.steps for node, replay in replays.items()}
        opens = {node: partial(self._open_replay, node, steps[node]) for node in replays}
        opened = at_once(opens, self._deadline_s)
        channels, _ = split(opened)
        try:
            self._all(opened, "starting the replay")
            playing = Playing(channels, steps)
            self.keep_leases(programs, partial(self._wait_for, playing), say)
        finally:
            for channel in channels.values():
                channel.close()
        played, failures = split(playing.result())
        if failures:
            raise self._error("playing the trace", failures, len(replays))
        return played

    def _open_replay(self, node: int, steps: Sequence[ReplayStep]) -> Channel:
        request = {"owner": self._owner, "steps": [(step.time_s, step.text) for step in steps]}
        return self._deployer.open(node, "replay", request)

    def _wait_for(self, playing: Playing, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            if playing.wait(min(left_s, PROGRESS_S)):
                return True
            self._step(f"replaying on {counted(len(self._nodes), 'host')}: {playing.progress}")
        return False

    def show(self, nodes: Iterable[int] | None = None) -> dict[int, Shown | Exception]:
        """Read the interface of every node, or say why it cannot be read."""
        nodes = self._nodes if nodes is None else nodes
        answers, failures = split(self._asked("show", {node: {} for node in nodes}))
        shown: dict[int, Shown | Exception] = {
            node: Shown(
                at_s=answer["at_s"],
                found=readback.parse(answer["tables"], answer["classes"]),
                lease=_lease_in(answer),
                changed=tuple(answer["changed"]),
            )
            for node, answer in answers.items()
        }
        return dict(sorted({**shown, **failures}.items()))

    def clear(
        self, scope: str = "owner", nodes: Iterable[int] | None = None
    ) -> dict[int, Cleared | Exception]:
        """Restore every shaped node, or say why it cannot be restored.

        scope: see `agent.operations.clear`. nodes: None = all.
        """
        sent, unsent = self._send("clearing", self._nodes if nodes is None else nodes)
        return dict(sorted({**unsent, **self._clear(sent, scope)}.items()))

    def cleared_by(self, results: Mapping[int, Cleared | Exception]) -> float | None:
        """Return the seconds until unreachable hosts clear themselves; None = unknown.

        All hosts of an `apply` get their leases together, so the other hosts tell.
        """
        leases = [r.lease for r in results.values() if isinstance(r, Cleared) and r.lease]
        known = [lease.left_s for lease in leases if lease.left_s is not None]
        return max(known) if known and len(known) == len(leases) else None

    def _send(
        self, step: str, nodes: Iterable[int]
    ) -> tuple[dict[int, Sent], dict[int, Exception]]:
        """Send the agent to hosts that lack it; return successes and failures."""
        self._step(step)
        sends = {node: partial(self._deployer.send, node) for node in nodes}
        return split(at_once(sends, SEND_DEADLINE_S))

    def _facts(self, node: int, request: Mapping[str, Any]) -> Facts:
        sent = self._deployer.send(node)
        answer = self._deployer.ask(node, "facts", request)
        return Facts.read(answer, self._deployer.addresses(node), sent.ssh, self._owner)

    def _load(
        self,
        wanted: Mapping[int, Program],
        texts: Mapping[int, str],
        settings: Mapping[str, str],
        replace: bool,
    ) -> dict[int, str]:
        """Load differences; return for each node the qdisc that was set aside, or ""."""
        common = {"lease_s": self._lease_s, "sysctls": dict(settings), "replace": replace}
        requests = {
            node: {**common, "text": texts[node], "max_segments": program.max_segments}
            for node, program in wanted.items()
        }
        self._step("loading what differs")
        answers = self._all(self._asked("apply", requests), "shaping")
        return {node: answer["replaced"] for node, answer in answers.items()}

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
        """Clear what this process armed; return lines for the error, each after a line break.

        They name networks that were lost, hosts that were not cleared, and when their leases end.
        longest_s: the longest lease that a host may have got, whatever it answered. had: nodes with
        an earlier network. keep: an earlier network stays.
        """
        self._step("rolling back")
        results = self._clear(wanted, "session", keep=keep)
        left = [node for node, result in results.items() if isinstance(result, Exception)]
        gone = sorted(set(had) - set(left))
        lines = ""
        if gone:
            names = ", ".join(map(self.name, gone))
            lines += f"\nthe network that was there before has gone: {names}"
        if left:
            names = ", ".join(map(self.name, sorted(left)))
            lines += f"\nnot cleared: {names}; what was changed there "
            if longest_s is None:
                lines += "may stay, without end: `netbench net clear` when it can be reached"
            else:
                lines += f"ends with its lease, in {format_time(longest_s)} at most"
        return lines

    def _clear(
        self, nodes: Iterable[int], scope: str, keep: bool = False
    ) -> dict[int, Cleared | Exception]:
        request = {"scope": scope, "keep": keep}
        answers, failures = split(self._asked("clear", dict.fromkeys(nodes, request)))
        cleared = {
            node: Cleared(
                cleared=answer["cleared"], notes=tuple(answer["notes"]), lease=_lease_in(answer)
            )
            for node, answer in answers.items()
        }
        return {**failures, **cleared}

    def _ask_all(
        self, operation: str, nodes: Iterable[int], request: Mapping[str, Any]
    ) -> dict[int, Any]:
        return self._all(self._asked(operation, dict.fromkeys(nodes, request)), f"`{operation}`")

    def _asked(
        self, operation: str, requests: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Any | Exception]:
        tasks = {
            node: partial(self._deployer.ask, node, operation, {"owner": self._owner, **request})
            for node, request in requests.items()
        }
        return at_once(tasks, self._deadline_s)

    def _all(self, results: Mapping[int, T | Exception], what: str) -> dict[int, T]:
        found, failures = split(results)
        if failures:
            raise self._error(what, failures, len(results))
        return found

    def _error(self, what: str, failures: Mapping[int, Exception], num_hosts: int) -> FleetError:
        lines = [f"  {self._line(node, error)}" for node, error in sorted(failures.items())]
        head = f"{what} failed on {len(failures)} of {counted(num_hosts, 'host')}:"
        return FleetError("\n".join([head, *lines]))

    def _line(self, node: int, error: Exception) -> str:
        """Format `name: reason`; errors of the connection begin with the name already."""
        text = str(error) or type(error).__name__
        return text if text.startswith(self.name(node)) else f"{self.name(node)}: {text}"


def _lease_in(answer: Mapping[str, Any]) -> Lease | None:
    return Lease(**answer["lease"]) if answer["lease"] else None
