"""Turn one tc configuration of an interface into another while packets flow. Pure.

A destination of both configurations has a filter, a class and a netem after every line:

- A class and its leaf are changed in place. Queued packets stay queued and keep their send time. A
  new destination gets class, leaf and filter in that order; a removed one first loses its filter.
- A netem never forgets a table of jitter. If it must not have one (`uniform`) but may, a new netem
  with the other handle of `readback.leaf_handles` replaces it. Its queued packets are lost.
- A class cannot change its parent, as it must when a NIC cap is added or removed. Its filters move
  to a second class and return when it has been made again. Its queued packets are lost.
- Many filters are hashed: the table is filled, packets are sent to it, then the linear filters are
  removed. Hashed filters stay hashed, even if few are left.

A configuration that netbench never makes is replaced as a whole (`is_replaced`), with a gap:
somebody else changed the qdisc, or an update was interrupted while a class moved. So is one with
fair queues, which only runs in virtual time have, between their iterations.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import CAP_MINOR, HASH_FROM_PEERS, Program
from netbench.network.shaping.readback import (
    Filter,
    KernelState,
    class_differences,
    differences,
    leaf_differences,
    leaf_handles,
)
from netbench.network.shaping.tc import (
    EXEMPT_PRIORITY,
    TABLES,
    HtbClass,
    Leaf,
    class_line,
    exempt_line,
    hash_lines,
    ip_version,
    match_line,
    netem_options,
)
from netbench.units import counted

_SECOND = 0x8000  # in the minor of the class that has the filters of a class that is made again
_CLASS_FIELDS = attrgetter(*(f.name for f in fields(HtbClass) if f.name != "minor"))
_LEAF_FIELDS = attrgetter(*(f.name for f in fields(Leaf) if f.name != "minor"))
_NOT_FORGOTTEN = ("slot", "ecn")  # options that a netem keeps until it is replaced
_VERBS = {"add": "add", "change": "change", "replace": "change", "del": "delete"}  # to print
_PLURALS = {"leaf": "leaves", "class": "classes"}


def update_text(program: Program, found: KernelState) -> str:
    """Return `tc -batch` text that gives an interface `program`, or "" if it has it already.

    An interface without netbench's root gets the whole configuration, which the kernel refuses if
    the root is foreign. The text fails if the interface has changed since it was read.
    """
    if found.root[1] != HANDLE:
        return program.text
    if is_replaced(program, found):
        return f"qdisc del dev {program.interface} root handle {HANDLE}\n{program.text}"
    dev = f"dev {program.interface}"
    lines = list(_class_lines(program, found))
    lines += _filter_lines(program, found)
    planned = {_name(htb.minor) for htb in program.classes}
    gone = [name for name in found.classes if name not in planned]
    gone.sort(key=lambda name: found.classes[name]["parent"] == "root")  # children first
    lines += [f"class del {dev} classid {name}" for name in gone]
    return "".join(f"{line}\n" for line in lines)


def summary(text: str) -> str:
    """Count what a `tc -batch` text does: `add 7 classes, 7 leaves; delete 1 class`."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        what, verb = line.split()[:2]
        kind = "leaf" if what == "qdisc" else what
        counts[_VERBS[verb], "root" if " root handle " in line else kind] += 1
    parts: dict[str, list[str]] = {verb: [] for verb in _VERBS.values()}
    for (verb, what), count in counts.items():
        parts[verb].append(counted(count, what, _PLURALS.get(what, "")))
    done = [f"{verb} {', '.join(things)}" for verb, things in parts.items() if things]
    return "; ".join(done) or "nothing"


def is_replaced(program: Program, found: KernelState) -> bool:
    """Return whether the root must be removed and the whole configuration loaded again."""
    if found.fair_quanta or any(leaf.fair_quantum_bytes for leaf in program.leaves):
        return bool(differences(program, found))
    cap = _name(CAP_MINOR)
    parents = {name: existing["parent"] for name, existing in found.classes.items()}
    used = {existing.get("handle") for existing in found.leaves.values()}
    if (
        found.root != ("htb", HANDLE)
        or found.default_class != "0"
        or parents.get(cap, "root") != "root"
        or not set(parents.values()) <= {cap, "root"}
        or not found.leaves.keys() <= parents.keys() - {cap}
    ):
        return True
    return any(
        used.issuperset(leaf_handles(leaf.minor))
        or (_is_moved(htb, found) and _name(htb.minor | _SECOND) in parents)
        for htb, leaf in _destinations(program)
        if leaf
    )


def _class_lines(program: Program, found: KernelState) -> Iterator[str]:
    dev = f"dev {program.interface}"
    same = _Same()
    for htb, leaf in _destinations(program):
        name = _name(htb.minor)
        if name not in found.classes:
            yield class_line("add", dev, htb)
            if leaf:
                yield _leaf_line("add", dev, leaf, _handle(leaf, found))
        elif leaf and _is_moved(htb, found):
            yield from _move_lines(dev, htb, leaf, found)
        else:
            # The leaf first: if the update is interrupted, its class shows that it is incomplete.
            if leaf:
                yield from _changed_leaf_lines(dev, htb, leaf, found, same)
            if not same.classes(htb, found.classes[name]):
                yield class_line("change", dev, htb)


def _changed_leaf_lines(
    dev: str, htb: HtbClass, leaf: Leaf, found: KernelState, same: "_Same"
) -> Iterator[str]:
    name = _name(leaf.minor)
    existing = found.leaves.get(name)
    if existing is None:
        yield _leaf_line("add", dev, leaf, _handle(leaf, found))
        return
    table = found.classes[name].get("mpu", 0)
    no_table = bool(leaf.jitter_us) and leaf.distribution == "uniform"
    if (
        existing["kind"] != "netem"
        or existing.get("handle") not in leaf_handles(leaf.minor)
        or (no_table and table != TABLES["uniform"])
        or any(existing.get("options", {}).get(option) for option in _NOT_FORGOTTEN)
    ):
        yield _leaf_line("replace", dev, leaf, _handle(leaf, found))
    elif table != htb.mpu_bytes or not same.leaves(leaf, existing):
        yield f"qdisc change {dev} parent {name} netem {netem_options(leaf, every=True)}"


class _Same:
    """Cache of comparisons: `netlink` returns equal classes and leaves as one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, int], bool] = {}

    def classes(self, planned: HtbClass, existing: dict[str, float | str]) -> bool:
        key = (_CLASS_FIELDS(planned), id(existing))
        if key not in self._known:
            self._known[key] = not any(class_differences(_name(planned.minor), planned, existing))
        return self._known[key]

    def leaves(self, planned: Leaf, found: dict[str, Any]) -> bool:
        """Compare leaves whose kind and handle are as planned."""
        key = (_LEAF_FIELDS(planned), id(found["options"]))
        if key not in self._known:
            self._known[key] = not any(leaf_differences(_name(planned.minor), planned, found))
        return self._known[key]


def _move_lines(dev: str, htb: HtbClass, leaf: Leaf, found: KernelState) -> Iterator[str]:
    """Make a class again under its new parent, while a second class has its filters."""
    name, second = _name(htb.minor), replace(htb, minor=htb.minor | _SECOND)
    there = _name(second.minor)
    mine = [rule for rule in found.filters if rule.target == name]
    former = str(found.leaves.get(name, {}).get("handle", leaf_handles(leaf.minor)[0]))
    ours = former if former in leaf_handles(leaf.minor) else leaf_handles(leaf.minor)[0]
    other = next(handle for handle in leaf_handles(leaf.minor) if handle != ours)
    yield class_line("add", dev, second)
    yield _leaf_line("add", dev, replace(leaf, minor=second.minor), other)
    yield from (_change_line(dev, rule, there) for rule in mine)
    yield f"class del {dev} classid {name}"
    yield class_line("add", dev, htb)
    yield _leaf_line("add", dev, leaf, ours)
    yield from (_change_line(dev, rule, name) for rule in mine)
    yield f"class del {dev} classid {there}"


def _filter_lines(program: Program, found: KernelState) -> list[str]:
    dev = f"dev {program.interface}"
    existing: dict[tuple[str, int], list[Filter]] = {}
    for rule in found.filters:
        existing.setdefault((rule.match, rule.priority), []).append(rule)
    made: list[str] = []
    kept: set[str] = set()
    versions = {address: ip_version(address) for address, _ in program.matches}
    counts = Counter(versions.values())
    hashing = [
        version for version, count in sorted(counts.items())
        if count >= HASH_FROM_PEERS and str(version) not in found.led_to
    ]  # fmt: skip
    tables = {version: hash_lines(dev, version) for version in hashing}
    made += [table for version, (table, _) in tables.items() if str(version) not in found.tables]

    def keep(key: tuple[str, int], target: str, line: Callable[[], str]) -> None:
        """Keep a filter, or change its class, or add one."""
        rules = sorted(existing.get(key, ()), key=lambda rule: rule.target != target)
        if key[1] in hashing or not rules:
            made.append(line())
            return
        kept.add(rules[0].handle)
        if rules[0].target != target:
            made.append(_change_line(dev, rules[0], target))

    for version in sorted(counts):
        for port in program.exempt_ports:
            for end, way in (("sport", "from"), ("dport", "to")):
                key = (f"IPv{version} TCP {way} port {port}", EXEMPT_PRIORITY[version])
                keep(key, HANDLE, partial(exempt_line, dev, version, port, end))
    for address, minor in program.matches:
        version = versions[address]
        hashed = version in hashing or str(version) in found.led_to
        line = partial(match_line, dev, address, minor, hashed=hashed)
        keep((address, version), _name(minor), line)
    made += [lead for _, lead in tables.values()]
    return made + [
        f"filter del {dev} {_at(rule)}" for rule in found.filters if rule.handle not in kept
    ]


def _change_line(dev: str, rule: Filter, target: str) -> str:
    return f"filter change {dev} {_at(rule)} flowid {target}"


def _at(rule: Filter) -> str:
    return f"parent {HANDLE} protocol {rule.protocol} prio {rule.priority} handle {rule.handle} u32"


def _leaf_line(verb: str, dev: str, leaf: Leaf, handle: str) -> str:
    at = f"parent {_name(leaf.minor)} handle {handle}"
    return f"qdisc {verb} {dev} {at} netem {netem_options(leaf)}"


def _handle(leaf: Leaf, found: KernelState) -> str:
    """Return the handle of a leaf that no qdisc has."""
    used = {existing.get("handle") for existing in found.leaves.values()}
    return next(handle for handle in leaf_handles(leaf.minor) if handle not in used)


def _is_moved(htb: HtbClass, found: KernelState) -> bool:
    """Return whether the class exists under another parent."""
    existing = found.classes.get(_name(htb.minor))
    return existing is not None and existing["parent"] != (
        _name(htb.parent) if htb.parent else "root"
    )


def _destinations(program: Program) -> list[tuple[HtbClass, Leaf | None]]:
    """Return every class with its leaf; None for the class of a NIC cap."""
    leaves = {leaf.minor: leaf for leaf in program.leaves}
    return [(htb, leaves.get(htb.minor)) for htb in program.classes]


def _name(minor: int) -> str:
    return f"{HANDLE}{minor:x}"
