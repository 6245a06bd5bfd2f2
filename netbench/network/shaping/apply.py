"""Apply tc configurations to nodes, read them back, and remove them; all nodes at once.

An unshaped node gets the whole configuration in one `tc -batch`. A shaped node is read first and
gets only the differences (`update`), while packets flow. The kernel decides without a race whether
a root qdisc may be replaced: adding one fails unless the interface still has its default (handle
`0:`). Every other command names netbench's handle and cannot touch a foreign qdisc.

A node that outlives the session needs a dead-man timer (`netbench.network.remote`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from netbench.errors import NetworkError
from netbench.network.nodes import DEADLINE_S, Node, all_or_error, at_once, output_of
from netbench.network.shaping import readback
from netbench.network.shaping.batch import DEFAULT_HANDLE, HANDLE, refusal_text
from netbench.network.shaping.program import MAX_SEGMENTS, Program
from netbench.network.shaping.readback import KernelState
from netbench.network.shaping.update import update_text

Read = Callable[[Program], KernelState]
"""Read the interface of a tc configuration. May raise NetworkError."""

_MARK = "\n--\n"

# No -j for classes: iproute2, up to 6.12 at least, prints them as text in any case.
_SHOW = """\
printf 'qdisc show dev %s\\nfilter show dev %s\\n' "$1" "$1" | tc -s -j -batch - || exit
printf '\\n--\\n'
tc -d class show dev "$1" || exit
printf '\\n--\\n'
exec ip -d -j link show dev "$1"
"""

_ALREADY_THERE = ("Exclusivity flag on", "NLM_F_REPLACE", "File exists")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBack:
    """Comparison of what a node's kernel holds with its tc configuration.

    problems: a sentence per difference. dropped_packets: since `apply`, by leaves without loss.
    """

    node: int
    problems: tuple[str, ...]
    dropped_packets: int


def apply(
    programs: Sequence[Program],
    nodes: Sequence[Node],
    deadline_s: float = DEADLINE_S,
    *,
    read: Read | None = None,
    former: Sequence[Program] = (),
) -> None:
    """Give every node its tc configuration. Only differences are sent.

    read: a faster way to read a node than `tc`. Without it, a node is read only after it refused
    the whole configuration.
    former: configurations that nodes get back if one node fails. A node without one is cleared.
    Raises NetworkError that lists every node that failed. A foreign root qdisc is a failure.
    """
    loads = {p.node: partial(_load, p, nodes[p.node], read) for p in programs}
    results = at_once(loads, deadline_s)
    try:
        all_or_error(results, "shaping")
    except NetworkError:
        cleared = {p.node: partial(_clear, p, nodes[p.node]) for p in programs}
        back = {p.node: partial(_restore, p, nodes[p.node], read) for p in former}
        at_once(cleared | back, deadline_s)
        raise


def clear(programs: Sequence[Program], nodes: Sequence[Node]) -> None:
    """Remove the shaping of every node that has any; never touch a foreign qdisc.

    Raises NetworkError that lists every node that may still be shaped.
    """
    clears = {p.node: partial(_clear, p, nodes[p.node]) for p in programs}
    all_or_error(at_once(clears, DEADLINE_S), "removing the shaping")


def read_back(
    programs: Sequence[Program], nodes: Sequence[Node], *, read: Read | None = None
) -> tuple[ReadBack, ...]:
    """Compare what every node's kernel holds with its tc configuration, field by field.

    Raises NetworkError that lists every node that could not be read.
    """
    reads = {p.node: partial(_compare, p, nodes[p.node], read) for p in programs}
    found = all_or_error(at_once(reads, DEADLINE_S), "reading back the shaping")
    return tuple(found[program.node] for program in programs)


def _load(program: Program, node: Node, read: Read | None) -> None:
    if read is None:
        # One command is enough for an unshaped node, as in every new session.
        status, _, stderr = node.run(_load_command(program, MAX_SEGMENTS), program.text)
        if status == 0:
            return
        if not any(sign in stderr for sign in _ALREADY_THERE):
            raise NetworkError(refusal_text(program.text, stderr))
        found = _read(program, node)
    else:
        found = read(program)
    _refuse_foreign(program, found)
    text = update_text(program, found)
    if text or found.max_segments != program.max_segments:
        status, _, stderr = node.run(_load_command(program, found.max_segments), text)
        if status != 0:
            raise NetworkError(refusal_text(text, stderr))


def _load_command(program: Program, max_segments: int) -> tuple[str, ...]:
    """Return `tc -batch`, preceded by a change of gso_max_segs if the link has another value.

    Connections adopt the setting when they look up their route, so routes are flushed.
    """
    if program.max_segments == max_segments:
        return ("tc", "-batch", "-")
    limit = f"ip link set dev {program.interface} gso_max_segs {program.max_segments}"
    return ("sh", "-c", f"{limit} && ip route flush cache && exec tc -batch -")


def _restore(program: Program, node: Node, read: Read | None) -> None:
    """Load a former configuration, or at least remove the shaping."""
    try:
        _load(program, node, read)
    except NetworkError:
        _clear(program, node)
        raise


def _clear(program: Program, node: Node) -> None:
    if program.max_segments != MAX_SEGMENTS:
        set_link = ("ip", "link", "set", "dev", program.interface)
        output_of(node, (*set_link, "gso_max_segs", str(MAX_SEGMENTS)))
    # It fails without a configuration of netbench, and removes only that.
    argv = ["tc", "qdisc", "del", "dev", program.interface, "root", "handle", HANDLE]
    status, _, stderr = node.run(argv, "")
    show = ("tc", "-j", "qdisc", "show", "dev", program.interface)
    if status != 0 and readback.root_qdisc(output_of(node, show))[1] == HANDLE:
        raise NetworkError(f"`{' '.join(argv)}` exited with {status}: {stderr.strip()}")


def _refuse_foreign(program: Program, found: KernelState) -> None:
    kind, handle = found.root
    if handle not in (HANDLE, DEFAULT_HANDLE):
        raise NetworkError(
            f"{program.interface} has a root qdisc that is not netbench's: {kind} {handle}. "
            f"It is left as it is; remove it with "
            f"`tc qdisc del dev {program.interface} root` if nothing needs it"
        )


def _compare(program: Program, node: Node, read: Read | None) -> ReadBack:
    found = read(program) if read else _read(program, node)
    return ReadBack(
        node=program.node,
        problems=readback.differences(program, found),
        dropped_packets=readback.unwanted_drops(program, found),
    )


def _read(program: Program, node: Node) -> KernelState:
    output = output_of(node, ("sh", "-s", program.interface), _SHOW)
    tables, _, rest = output.partition(_MARK)
    classes, _, link = rest.partition(_MARK)
    return readback.parse(tables, classes, link)
