"""Change settings of a host, and restore whatever netbench changed, and only that.

A setting belongs to the network namespace, so several shaped interfaces share it. It keeps the
largest value that any of them needs, and gets its former value back with the last of them. What
somebody else has changed since stays as it is, and so does a foreign root qdisc.

Call these functions inside `state.locked`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from netbench.network.remote.agent import division, host, state

_BUFFERS = ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")
"""Settings that are only ever raised: the machine may be tuned for more than the network needs."""


def restore(record: state.State) -> list[str]:
    """Restore everything that can be; return a note about each thing that somebody else changed.

    The kernel is read back: an interface that is still shaped is an error. Raises AgentError with
    all failures. Then call it again.
    """
    notes: list[str] = []
    failed: list[str] = []
    for part in (_remove_nodes, _restore_qdisc, _restore_segments, restore_sysctls):
        try:
            part(record, notes)
        except (host.AgentError, OSError) as error:
            failed.append(str(error))
    if failed:
        raise host.AgentError("; ".join(failed))
    return notes


def _remove_nodes(record: state.State, notes: list[str]) -> None:
    made = record.get("division")
    if made and (left := division.remove(made)):
        raise host.AgentError(f"cannot be removed: {', '.join(left)}")


def _restore_qdisc(record: state.State, notes: list[str]) -> None:
    interface = record["interface"]
    if host.ifindex(interface) != record["ifindex"]:
        notes.append(f"{interface} has gone")
        return
    if host.is_shaped(interface):
        host.delete_root(interface)
    found = host.qdiscs_of(interface)
    if host.is_foreign(found):
        if found != record["former"]["qdiscs"]:
            notes.append(
                f"{interface} now has a root qdisc of somebody else: {host.describe(interface)}"
            )
    elif record["replaced"]:
        try:
            host.load_batch(re.sub(r"(?<= dev )\S+", interface, record["replaced"]))
        except host.AgentError:
            # A root loaded by half would be taken for somebody else's on the next attempt.
            with suppress(host.AgentError):
                host.delete_root(interface, host.root_of(record["former"]["qdiscs"])["handle"])
            raise
        if host.qdiscs_of(interface) != record["former"]["qdiscs"]:
            notes.append(f"the former qdisc came back different: {host.describe(interface)}")


def _restore_segments(record: state.State, notes: list[str]) -> None:
    interface, wanted = record["interface"], record["former"]["gso_max_segs"]
    if record["segments"] is None or host.ifindex(interface) != record["ifindex"]:
        return
    found = host.link_of(interface)["gso_max_segs"]
    if found == record["segments"]:
        host.set_segments(interface, wanted)
    elif found != wanted:
        notes.append(f"gso_max_segs was changed to {found} and stays so")


def set_sysctls(record: state.State, wanted: dict[str, str]) -> None:
    """Apply `wanted`; restore settings of an earlier configuration that are not in it."""
    known = record["sysctls"]
    for name in sorted(set(known) - set(wanted)):
        restore_sysctls({**record, "sysctls": {name: known[name]}}, [])
        del known[name]
    for name, value in wanted.items():
        found = host.read_sysctl(name)
        if found is not None:
            others = _of_others(record, name)
            ours = [other for other in others if other["set"].split() == found.split()]
            former = ours[0]["former"] if ours else found
            former = known[name]["former"] if name in known else former
            least = max([former, *(other["set"] for other in others)], key=_size)
            is_larger = name in _BUFFERS and _size(least) >= _size(value)
            value = " ".join(least.split()) if is_larger else value
            known[name] = {"former": former, "set": value}
    state.save(record)
    for name, values in known.items():
        if (host.read_sysctl(name) or "").split() != values["set"].split():
            host.write_sysctl(name, values["set"])


def restore_sysctls(record: state.State, notes: list[str]) -> None:
    """Restore former values, except those that another interface still needs."""
    for name, values in sorted(record["sysctls"].items()):
        found = host.read_sysctl(name)
        others = _of_others(record, name)
        needed = [other["set"] for other in others]
        wanted = max(needed, key=_size) if needed else values["former"]
        theirs = [other["set"] for other in others if other["set"].split() != values["set"].split()]
        if found is None or found.split() in [value.split() for value in (*theirs, wanted)]:
            continue
        if found.split() == values["set"].split():
            host.write_sysctl(name, wanted)
        else:
            notes.append(f"{name} was changed to {' '.join(found.split())} and stays so")


def changed_settings(record: state.State) -> list[str]:
    """Describe settings that no longer have the value netbench gave them."""
    found = []
    for name, values in sorted(record["sysctls"].items()):
        value = host.read_sysctl(name) or ""
        expected = [values, *_of_others(record, name)]
        if value.split() not in [other["set"].split() for other in expected]:
            found.append(f"{name} is {' '.join(value.split())}, set to {values['set']}")
    if record["segments"] is not None:
        segments = host.link_of(record["interface"])["gso_max_segs"]
        if segments != record["segments"]:
            found.append(f"gso_max_segs is {segments}, set to {record['segments']}")
    return found


def _of_others(record: state.State, name: str) -> list[dict[str, Any]]:
    """Return what other interfaces of this namespace recorded of a setting."""
    others = [other for other in state.records() if other["ifindex"] != record["ifindex"]]
    return [other["sysctls"][name] for other in others if name in other["sysctls"]]


def _size(value: str) -> int:
    """Return the number, or the last and largest of several, in a setting."""
    last = value.split()[-1]
    return int(last) if last.isdigit() else 0
