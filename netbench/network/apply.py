"""Make nodes hold shaping programs, read them back, take them away.

All nodes at once. A node that has none gets the whole program in one `tc -batch`; one that has an
earlier one is read, and gets only the difference (`update`), while packets flow. Whether a root
qdisc may be replaced is decided by the kernel, without a race: adding one fails unless the
interface still has its default (handle `0:`, e.g. noqueue, mq, fq_codel); all else names our
handle, so nothing foreign can be hit.

Nodes here are namespaces that vanish with the session, and their shaping with them. On a node that
outlives the session a dead-man timer has to be armed before `apply` and fed until `clear`; it needs
only `CLEAR`, which is safe to run at any time, any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from netbench.errors import NetworkError
from netbench.network import readback
from netbench.network.agent import quoted
from netbench.network.command import DEADLINE_S, Run, all_or_error, at_once, output_of
from netbench.network.program import MAX_SEGMENTS, Program
from netbench.network.readback import Found
from netbench.network.tc import HANDLE
from netbench.network.update import update_text

CLEAR = ("tc", "qdisc", "del", "dev", "{interface}", "root", "handle", HANDLE)
"""Removes a netbench program, and only that. It fails where there is none."""

Read = Callable[[Program], Found]
"""What a program's interface holds now. May raise NetworkError."""

_MARK = "\n--\n"

# Classes without -j: they are printed as text up to iproute2 6.12 at least, with -j or without.
_SHOW = """\
printf 'qdisc show dev %s\\nfilter show dev %s\\n' "$1" "$1" | tc -s -j -batch - || exit
printf '\\n--\\n'
tc -d class show dev "$1" || exit
printf '\\n--\\n'
exec ip -d -j link show dev "$1"
"""

_ALREADY_THERE = ("Exclusivity flag on", "NLM_F_REPLACE", "File exists")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What a node holds, against its program.

    problems: one sentence per field that differs; empty when the node holds what was asked for.
    dropped_packets: dropped by leaves that were not asked to lose any, since `apply`.
    """

    node: int
    problems: tuple[str, ...]
    dropped_packets: int


def apply(
    programs: Sequence[Program],
    run: Run,
    deadline_s: float = DEADLINE_S,
    *,
    read: Read | None = None,
    former: Sequence[Program] = (),
) -> None:
    """Make every node hold its program. What it holds already is not sent again.

    read: a faster way to ask than `tc`; without, a node is only asked once the program was refused.
    former: the programs nodes had before, which they get back when one fails (with what is queued
    dropped only where `update` says so). A node without one is cleared.
    Raises NetworkError that lists every node that failed; a foreign root qdisc is a failure.
    """
    loads = {program.node: partial(_load, program, run, read) for program in programs}
    results = at_once(loads, deadline_s)
    try:
        all_or_error(results, "shaping")
    except NetworkError:
        back = {program.node: partial(_restore, program, run, read) for program in former}
        cleared = {p.node: partial(_clear, p, run) for p in programs}
        at_once(cleared | back, deadline_s)
        raise


def clear(programs: Sequence[Program], run: Run, deadline_s: float = DEADLINE_S) -> None:
    """Remove the shaping of every node. Fine where there is none; never touches a foreign qdisc.

    Raises NetworkError that lists every node that may still be shaped.
    """
    clears = {program.node: partial(_clear, program, run) for program in programs}
    all_or_error(at_once(clears, deadline_s), "removing the shaping")


def read_back(
    programs: Sequence[Program],
    run: Run,
    deadline_s: float = DEADLINE_S,
    *,
    read: Read | None = None,
) -> tuple[Difference, ...]:
    """Compare what every node's kernel holds with its program, field by field.

    Raises NetworkError that lists every node that could not be read.
    """
    reads = {program.node: partial(_compare, program, run, read) for program in programs}
    found = all_or_error(at_once(reads, deadline_s), "reading back the shaping")
    return tuple(found[program.node] for program in programs)


def _load(program: Program, run: Run, read: Read | None) -> None:
    if read is None:
        # One command where nothing is there yet, as in every new session.
        status, _, stderr = run(program.node, _load_command(program, MAX_SEGMENTS), program.text)
        if status == 0:
            return
        if not any(sign in stderr for sign in _ALREADY_THERE):
            raise NetworkError(quoted(program.text, stderr))
        found = _read(program, run)
    else:
        found = read(program)
    _refuse_foreign(program, found)
    text = update_text(program, found)
    if text or found.max_segments != program.max_segments:
        status, _, stderr = run(program.node, _load_command(program, found.max_segments), text)
        if status != 0:
            raise NetworkError(quoted(text, stderr))


def _load_command(program: Program, max_segments: int) -> tuple[str, ...]:
    """`tc -batch`, after the link's own setting where the link has `max_segments`, another one.

    Connections take over the setting when they look up their route: flushing makes them.
    """
    if program.max_segments == max_segments:
        return ("tc", "-batch", "-")
    limit = f"ip link set dev {program.interface} gso_max_segs {program.max_segments}"
    return ("sh", "-c", f"{limit} && ip route flush cache && exec tc -batch -")


def _restore(program: Program, run: Run, read: Read | None) -> None:
    """Back to a former program, or at least to no shaping."""
    try:
        _load(program, run, read)
    except NetworkError:
        _clear(program, run)
        raise


def _clear(program: Program, run: Run) -> None:
    if program.max_segments != MAX_SEGMENTS:
        set_link = ("ip", "link", "set", "dev", program.interface)
        output_of(run, program.node, (*set_link, "gso_max_segs", str(MAX_SEGMENTS)))
    argv = [word.format(interface=program.interface) for word in CLEAR]
    status, _, stderr = run(program.node, argv, "")
    if status != 0 and _root(program, run)[1] == HANDLE:
        raise NetworkError(f"`{' '.join(argv)}` exited with {status}: {stderr.strip()}")


def _refuse_foreign(program: Program, found: Found) -> None:
    kind, handle = found.root
    if handle not in (HANDLE, "0:"):
        raise NetworkError(
            f"{program.interface} has a root qdisc that is not netbench's: {kind} {handle}. "
            f"It is left as it is; remove it with "
            f"`tc qdisc del dev {program.interface} root` if nothing needs it"
        )


def _root(program: Program, run: Run) -> tuple[str, str]:
    """Kind and handle of the root qdisc."""
    argv = ("tc", "-j", "qdisc", "show", "dev", program.interface)
    return readback.root_qdisc(output_of(run, program.node, argv))


def _compare(program: Program, run: Run, read: Read | None) -> Difference:
    found = read(program) if read else _read(program, run)
    return Difference(
        node=program.node,
        problems=readback.differences(program, found),
        dropped_packets=readback.unwanted_drops(program, found),
    )


def _read(program: Program, run: Run) -> Found:
    """In one command."""
    output = output_of(run, program.node, ("sh", "-s", program.interface), _SHOW)
    tables, _, rest = output.partition(_MARK)
    classes, _, link = rest.partition(_MARK)
    return readback.parse(tables, classes, link)
