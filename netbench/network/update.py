"""What turns the shaping an interface has into another, while packets flow. Pure.

At every line of the text a destination that both have is matched and in a class with a netem:

- A class and its leaf are changed in place; what is queued stays queued and keeps the time it was
  given. A new destination gets class, leaf, filter; one that goes loses its filter first.
- Of a filter only the class can be changed, by its handle; what it matches never changes.
- A netem never forgets a table of jitter. One that must have none (`uniform`) and may have one is
  replaced by a new one with the other handle of `readback.leaf_handles`. What it held is lost.
- A class cannot change its parent, as it must when a NIC cap comes or goes. Its filters go to a
  second class beside it, and come back when it was made again. What it held is lost.
- From 256 destinations up filters are hashed: the table is filled, then packets are led to it, then
  the filters in turn are removed. Hashed filters stay hashed: fewer of them need no other place.

What netbench never makes (somebody else worked on our qdisc, or an update was cut short while a
class moved) is replaced as a whole. This is the only case with a gap, of the time the kernel needs
to load the program: see `is_replaced`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

from netbench.network.program import CAP_MINOR, HASH_FROM_PEERS, Program
from netbench.network.readback import (
    Filter,
    Found,
    class_differences,
    leaf_differences,
    leaf_handles,
)
from netbench.network.tc import (
    EXEMPT_PRIORITY,
    HANDLE,
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

_SECOND = 0x8000  # of the minor of the class that filters go to while theirs is made again
_CLASS_FIELDS = attrgetter(*(f.name for f in fields(HtbClass) if f.name != "minor"))
_LEAF_FIELDS = attrgetter(*(f.name for f in fields(Leaf) if f.name != "minor"))
_NOT_FORGOTTEN = ("slot", "ecn")  # options of a netem that only a new one is without


def update_text(program: Program, found: Found) -> str:
    """`tc -batch` text that makes an interface hold `program`; "" where it does.

    The whole program for one without a root of ours (the kernel refuses it where there is a foreign
    one). It fails where the interface has changed since it was read; reading it again helps.
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


def is_replaced(program: Program, found: Found) -> bool:
    """Whether our root has to go, and come back with the whole program."""
    cap = _name(CAP_MINOR)
    parents = {name: held["parent"] for name, held in found.classes.items()}
    used = {held.get("handle") for held in found.leaves.values()}
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


def _class_lines(program: Program, found: Found) -> Iterator[str]:
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
            # First the leaf: if nothing comes after, its class tells that it is not done.
            if leaf:
                yield from _changed_leaf_lines(dev, htb, leaf, found, same)
            if not same.classes(htb, found.classes[name]):
                yield class_line("change", dev, htb)


def _changed_leaf_lines(
    dev: str, htb: HtbClass, leaf: Leaf, found: Found, same: _Same
) -> Iterator[str]:
    name = _name(leaf.minor)
    held = found.leaves.get(name)
    if held is None:
        yield _leaf_line("add", dev, leaf, _handle(leaf, found))
        return
    table = found.classes[name].get("mpu", 0)
    no_table = bool(leaf.jitter_us) and leaf.distribution == "uniform"
    if (
        held["kind"] != "netem"
        or held.get("handle") not in leaf_handles(leaf.minor)
        or (no_table and table != TABLES["uniform"])
        or any(held.get("options", {}).get(option) for option in _NOT_FORGOTTEN)
    ):
        yield _leaf_line("replace", dev, leaf, _handle(leaf, found))
    elif table != htb.mpu_bytes or not same.leaves(leaf, held):
        yield f"qdisc change {dev} parent {name} netem {netem_options(leaf, every=True)}"


class _Same:
    """What was compared already: a node has thousands of classes and leaves of a few kinds, which
    `netlink` reads as one object each."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, int], bool] = {}

    def classes(self, planned: HtbClass, held: dict[str, float | str]) -> bool:
        key = (_CLASS_FIELDS(planned), id(held))
        if key not in self._known:
            self._known[key] = not any(class_differences(_name(planned.minor), planned, held))
        return self._known[key]

    def leaves(self, planned: Leaf, held: dict[str, Any]) -> bool:
        """Of leaves whose kind and handle are as planned."""
        key = (_LEAF_FIELDS(planned), id(held["options"]))
        if key not in self._known:
            self._known[key] = not any(leaf_differences(_name(planned.minor), planned, held))
        return self._known[key]


def _move_lines(dev: str, htb: HtbClass, leaf: Leaf, found: Found) -> Iterator[str]:
    """Make a class again, under its new parent; meanwhile a second one has its filters."""
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


def _filter_lines(program: Program, found: Found) -> list[str]:
    dev = f"dev {program.interface}"
    held: dict[tuple[str, int], list[Filter]] = {}
    for rule in found.filters:
        held.setdefault((rule.match, rule.priority), []).append(rule)
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
        """The filter that is there, or with its class changed, or a new one."""
        rules = sorted(held.get(key, ()), key=lambda rule: rule.target != target)
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


def _handle(leaf: Leaf, found: Found) -> str:
    """The one of its two handles that no qdisc has."""
    used = {held.get("handle") for held in found.leaves.values()}
    return next(handle for handle in leaf_handles(leaf.minor) if handle not in used)


def _is_moved(htb: HtbClass, found: Found) -> bool:
    """Whether the class is there, but under another parent."""
    held = found.classes.get(_name(htb.minor))
    return held is not None and held["parent"] != (_name(htb.parent) if htb.parent else "root")


def _destinations(program: Program) -> list[tuple[HtbClass, Leaf | None]]:
    """Every class with its leaf; None for the class of a NIC cap."""
    leaves = {leaf.minor: leaf for leaf in program.leaves}
    return [(htb, leaves.get(htb.minor)) for htb in program.classes]


def _name(minor: int) -> str:
    return f"{HANDLE}{minor:x}"
