"""Operations of the agent, in the order of use; see `OPERATIONS`.

Each returns what goes under "ok". Whoever arms an interface has it until the lease ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netbench.network.remote.agent import division, host, state, timer
from netbench.network.remote.agent.enter import enter, read_line
from netbench.network.remote.agent.facts import facts
from netbench.network.remote.agent.foreign import restore_batch
from netbench.network.remote.agent.host import AgentError
from netbench.network.remote.agent.messages import MAX_LEASE_S, SERVE, Request, taken
from netbench.network.remote.agent.replay import replay
from netbench.network.remote.agent.restore import changed_settings, restore, set_sysctls
from netbench.network.shaping.batch import HANDLE


def arm(request: Request) -> Any:
    """Take {owner, interface, lease_s} for the owner until the lease ends; change nothing.

    Record the interface as it is and start the guards. Refused while another run has the interface.
    A run that was released may be taken over by who has its session.
    """
    interface, owner = request["interface"], request["owner"]
    with state.locked():
        record = state.load(interface)
        notes = []
        is_over = record is not None and state.expired(record)
        if record is not None and not is_over and not _is_owned(record, owner):
            raise AgentError(taken(interface, state.who(record)))
        if record is not None and (is_over or record["ifindex"] != host.ifindex(interface)):
            restore(record)  # sooner than its timer; or the interface was created again
            timer.release(record)
            record = None
        if record is None:
            record = _new_state(interface)
            if host.root_of(record["former"]["qdiscs"])["handle"] == HANDLE:
                notes.append("there was a tc configuration without a record of what was before it")
        elif record["applied"]:
            before = ("owner", "held", "since_s", "lease_end_s")
            record.setdefault("before", {key: record[key] for key in before})
        record.update(owner={**owner, "runs": ()}, held=True, since_s=time.time())
        record["lease_end_s"] = _lease_end_s(request)
        timer.ensure_running(record)
        if not request.get("namespace"):  # the guard of the host removes its nodes
            notes += timer.arm_guard(record)
    return {"lease": state.lease_of(record), "notes": notes}


def _new_state(interface: str) -> state.State:
    link = host.link_of(interface)
    return {
        "interface": interface,
        "armed_as": interface,
        "ifindex": link["ifindex"],
        "boot_id": host.boot_id(),
        "applied": False,
        "former": {
            "qdiscs": host.qdiscs_of(interface),
            "gso_max_segs": link.get("gso_max_segs", 65535),
        },
        "replaced": "",
        "segments": None,
        "sysctls": {},
    }


def _is_owned(record: state.State, owner: dict[str, Any], scope: str = "owner") -> bool:
    """Return whether the session has the interface or, if `scope` is `owner`, a released run."""
    runs = [] if scope == "session" or record["held"] else owner.get("runs", [])
    return record["owner"]["session"] in (owner["session"], *runs)


def _lease_end_s(request: Request) -> float:
    lease_s = request["lease_s"]
    if not isinstance(lease_s, (int, float)) or not 0 < lease_s <= MAX_LEASE_S:
        raise AgentError(f"a lease of {lease_s} s: expected more than 0, up to {MAX_LEASE_S:g} s")
    return host.now_s() + float(lease_s)


def beat(request: Request) -> Any:
    """Renew the lease of {owner, interface, lease_s, release}: it ends in lease_s from now.

    lease_s null: a lease without end, only after `apply`. release: the next process of the owner
    may take over. Fails if the interface has lost its tc configuration.
    """
    interface = request["interface"]
    with state.locked():
        record = state.caller_state(request)
        if record["applied"] and not host.is_shaped(interface):
            raise AgentError(
                f"{interface} has lost its tc configuration, its root qdisc is "
                f"{host.describe(interface)}: the machine or the interface was restarted, or "
                "somebody removed it"
            )
        if request["lease_s"] is None and not record["applied"]:
            raise AgentError(
                "a lease without end is given only after a tc configuration was applied"
            )
        record["lease_end_s"] = None if request["lease_s"] is None else _lease_end_s(request)
        record["held"] = not request.get("release", False)
        timer.ensure_running(record)
    return {"lease": state.lease_of(record)}


def apply(request: Request) -> Any:
    """Load {owner, interface, lease_s, text, sysctls, max_segments, replace}: `tc -batch` text.

    Every change is recorded first. With `replace`, a restorable foreign root qdisc is set aside.
    """
    interface = request["interface"]
    host.check_batch(request["text"], interface)
    with state.locked():
        record = state.caller_state(request)
        record.pop("before", None)
        record["lease_end_s"] = _lease_end_s(request)
        replaced = _set_root_aside(record, request["replace"])
        set_sysctls(record, request["sysctls"])
        _set_segments(record, request["max_segments"])
        if request["text"]:
            host.load_batch(request["text"])
        # Without a tc batch either nothing differed, or there are only settings.
        record["applied"] = bool(request["text"]) or host.is_shaped(interface)
        record["lease_end_s"] = _lease_end_s(request)
        timer.remember(record)
    return {"lease": state.lease_of(record), "replaced": replaced}


def divide(request: Request) -> Any:
    """Make the nodes of {owner, interface, lease_s, division}: see `division`.

    They are removed when the lease ends. There can be one division per interface.
    """
    with state.locked():
        record = state.caller_state(request)
        if "division" in record:
            raise AgentError(f"{record['interface']} has its nodes already")
        wanted = request["division"]
        division.check(wanted)
        record["division"] = wanted
        record["lease_end_s"] = _lease_end_s(request)
        timer.remember(record)
        division.make(wanted, record["interface"])
        set_sysctls(record, division.forwarding(wanted, record["interface"]))
        timer.remember(record)
    return {"lease": state.lease_of(record)}


def _set_root_aside(record: state.State, replace: bool) -> str:
    """Delete a foreign root qdisc if asked; return its description, or ""."""
    interface = record["interface"]
    found = host.qdiscs_of(interface)
    if not host.is_foreign(found):
        state.save(record)
        return ""
    root = host.describe(interface)
    text = f"{interface} has a root qdisc that is not netbench's: {root}"
    if not replace:
        raise AgentError(
            f"{text}. It is left as it is; --replace puts netbench's in its place and restores "
            "it afterwards"
        )
    try:
        record["replaced"] = restore_batch(interface, found)
    except AgentError as error:
        raise AgentError(
            f"{text}. It could not be restored exactly ({error}), so it is left as it is; remove "
            f"it yourself with `tc qdisc del dev {interface} root` if nothing needs it"
        ) from None
    record["former"]["qdiscs"] = found
    timer.remember(record)
    host.output_of(["tc", "qdisc", "del", "dev", interface, "root"])
    return root


def _set_segments(record: state.State, wanted: int) -> None:
    """Lower the size of the packets that TCP hands over; never raise it above the former one."""
    former = record["former"]["gso_max_segs"]
    target = min(wanted, former)
    if target == former and record["segments"] is None:
        return
    record["segments"] = target
    state.save(record)
    if host.link_of(record["interface"])["gso_max_segs"] != target:
        host.set_segments(record["interface"], target)


def show(request: Request) -> Any:
    """Read {interface}: tables and classes as `readback.parse` takes them, counters and a clock."""
    interface = request["interface"]
    with state.locked():
        record = state.load(interface)
        text = f"qdisc show dev {interface}\nfilter show dev {interface}\n"
        return {
            "at_s": host.now_s(),
            "tables": host.output_of(["tc", "-s", "-j", "-batch", "-"], text),
            "classes": host.output_of(["tc", "-d", "class", "show", "dev", interface]),
            "lease": None if record is None else state.lease_of(record),
            "changed": [] if record is None else changed_settings(record),
        }


def clear(request: Request) -> Any:
    """Restore {owner, interface, scope, keep}. Safe at any time, any number of times.

    scope: `session` clears only what this process armed, `owner` also its `Owner.runs`, `any`
    everything. Anything else is left alone, which is an error except for `session`. Without a
    record, netbench's qdisc is recognised by its handle. keep: a tc configuration from before
    `arm` that no `apply` changed stays, with its owner and lease then.
    """
    interface, scope = request["interface"], request["scope"]
    nothing: dict[str, Any] = {"cleared": False, "notes": [], "lease": None}
    with state.locked():
        record = state.load(interface)
        if record is None:
            if not request.get("namespace"):
                _remove_unrecorded()
            index = host.ifindex(interface)
            if index is None and scope != "session":
                raise AgentError(f"there is no interface {interface}, and no record of it")
            if index is not None:
                state.drop(index)  # damaged, or of an earlier boot
            if not host.is_shaped(interface):
                return nothing
            host.delete_root(interface)
            unknown = "the former root qdisc, gso_max_segs and TCP settings are unknown"
            return {**nothing, "cleared": True, "notes": [f"there was no record: {unknown}"]}
        is_free = scope == "any" or state.expired(record)
        if not is_free and not _is_owned(record, request["owner"], scope):
            if scope == "session":
                return {**nothing, "notes": [f"{interface} is shaped by {state.who(record)}"]}
            raise AgentError(
                f"{interface} is shaped by {state.who(record)}; --force clears it all the same"
            )
        if request.get("keep") and "before" in record and not state.expired(record):
            record.update(record.pop("before"))
            state.save(record)
            return {**nothing, "lease": state.lease_of(record)}
        lease = state.lease_of(record)
        notes = restore(record)
        timer.release(record)
    return {"cleared": True, "notes": notes, "lease": lease}


def _remove_unrecorded() -> None:
    """Remove nodes of this host whose record was lost, with the timer."""
    known = [record["division"] for record in state.records() if "division" in record]
    if left := [name for lost in division.unrecorded(known) for name in division.remove(lost)]:
        raise AgentError(f"cannot be removed: {', '.join(left)}")


def guard(request: Request) -> Any:
    """Restore where a lease has ended. The request is empty: systemd calls it."""
    return {"restored": timer.sweep()}


OPERATIONS: dict[str, Callable[[Request], Any]] = {
    "facts": facts,
    "arm": arm,
    "beat": beat,
    "apply": apply,
    "divide": divide,
    "show": show,
    "replay": replay,
    "clear": clear,
    "guard": guard,
    "enter": enter,
}
ONCE = ("replay", "enter")
"""Operations that read more than their request."""


def interface_of(request: Request) -> str:
    """Return the interface of {interface, addresses} under the name that it has now."""
    name: str = request["interface"] or host.interface_with(request["addresses"])
    record = state.recorded(name)
    return str(record["interface"]) if record else name


def carry_out(operation: Callable[[Request], Any] | None, text: str, **more: Any) -> Request:
    """Return the answer to a request. more: of it, from this process."""
    try:
        if operation is None:
            raise AgentError(f"expected one operation of: {', '.join(OPERATIONS)}")
        if os.geteuid() != 0:
            raise AgentError(
                "not root: log in as root, or let the user run sudo without a password"
            )
        request = {**json.loads(text or "{}"), **more}
        if request.get("namespace"):
            division.join(request["namespace"])
        if operation not in (facts, guard, enter):
            request["interface"] = interface_of(request)
        return {"ok": operation(request)}
    except (AgentError, OSError, KeyError, ValueError) as error:
        said = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
        return {"error": said}


def serve() -> None:
    """Answer requests until stdin ends. The agent is then deleted, if it was sent.

    Without its file an agent can arm no guard: its controller sends it again.
    """
    timer.remove_agent_at_the_end()
    while (line := sys.stdin.readline()) and Path(sys.argv[0]).exists():
        name, _, text = line.partition(" ")
        operation = None if name in ONCE else OPERATIONS.get(name)
        if '"namespace"' not in text:
            print(json.dumps(carry_out(operation, text)), flush=True)
        elif not _answered_by_child(operation, text):
            return


def _answered_by_child(operation: Callable[[Request], Any] | None, text: str) -> bool:
    """Answer in a child, which may enter a namespace: whoever removes that kills all in it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            print(json.dumps(carry_out(operation, text)), flush=True)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def main() -> int:
    """Read a request from stdin, carry it out, print the answer; return the exit status."""
    umask = os.umask(0o077)
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name == SERVE:
        serve()
        return 0
    operation = OPERATIONS.get(name)
    if operation is enter:
        # A command that is entered reads what follows the request, and its output is its own.
        answer = carry_out(enter, read_line(), umask=umask)
        print(answer["error"], file=sys.stderr)
        return 1
    answer = carry_out(operation, sys.stdin.readline())
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0
