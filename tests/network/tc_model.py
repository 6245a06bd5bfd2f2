"""A model of what HTB, netem and u32 make of `tc -batch` lines, for tests without a kernel.

It refuses what the kernel refuses (a class that is in use cannot go, no handle is given twice), and
keeps what the kernel keeps (netem: every field that is not sent, and its table for good).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from netbench.network.shaping.readback import Filter, KernelState

ROOT = "6e62:"
UNITS = {"bit": 1 / 8, "us": 1e-6, "%": 0.01, "b": 1.0}


class RefusedError(Exception):
    """The kernel would refuse this line."""


@dataclass
class Rule:
    """A u32 filter. where: an address, `TCP sport 22`, or "" for all; link: table it leads to."""

    protocol: str
    priority: int
    table: str
    bucket: int
    node: int
    where: str
    target: str = ""
    link: str = ""

    @property
    def handle(self) -> str:
        bucket = "" if self.table.startswith("8") else f"{self.bucket:x}"
        return f"{self.table}:{bucket}:{self.node:x}"


@dataclass
class Interface:
    """One interface and its shaping. leaves: by class; `options` as `tc -j` prints them."""

    default: str | None = None
    classes: dict[str, dict[str, float | str]] = field(default_factory=dict)
    leaves: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    roots: dict[tuple[str, int], str] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)

    def run(self, line: str) -> None:
        """Obey one line of a batch. Raises RefusedError."""
        what, verb, *words = line.split()
        assert words[:2] == ["dev", "eth0"]
        {"qdisc": self._qdisc, "class": self._class, "filter": self._filter}[what](verb, words[2:])

    def lookup(self, address: str, port: int | None = None) -> str:
        """The class of a packet to this address, of TCP from this port; "" = unmatched."""
        protocol = "ip" if ipaddress.ip_address(address).version == 4 else "ipv6"
        for key in sorted(self.roots, key=lambda key: key[1]):
            if key[0] == protocol:
                for target in self._search(self.roots[key], 0, address, port):
                    return target
        return ""

    def found(self) -> KernelState:
        """Return this state as `readback.parse` would."""
        names = {"ip": "IPv4", "ipv6": "IPv6"}
        words = {"sport": "from", "dport": "to"}
        led = {rule.link for rule in self.rules if rule.link}
        filters = []
        for rule in self.rules:
            match = rule.where
            if match.startswith("TCP"):
                _, end, port = match.split()
                match = f"{names[rule.protocol]} TCP {words[end]} port {port}"
            elif rule.table in self.tables and rule.table not in led:
                match += " (where nothing looks for it)"
            if rule.target:
                filters.append(
                    Filter(
                        protocol=rule.protocol,
                        priority=rule.priority,
                        handle=rule.handle,
                        match=match,
                        target=rule.target,
                    )
                )
        return KernelState(
            root=("none", "0:") if self.default is None else ("htb", ROOT),
            default_class=self.default or "0",
            classes=self.classes,
            leaves=self.leaves,
            filters=tuple(filters),
            tables=tuple(sorted(self.tables)),
            led_to=tuple(sorted(self.tables & led)),
        )

    def effective(self) -> dict[str, Any]:
        """Everything that counts for a packet in a class: class, netem, and its table if used."""
        state = {}
        for name, leaf in self.leaves.items():
            options = dict(leaf["options"])
            if not options["delay"]["jitter"]:
                options["delay"] = {"delay": options["delay"]["delay"]}
                options.pop("table", None)
            state[name] = (self.classes[name], {k: v for k, v in options.items() if v})
        return state

    def _search(self, table: str, bucket: int, address: str, port: int | None) -> Iterator[str]:
        mine = [rule for rule in self.rules if (rule.table, rule.bucket) == (table, bucket)]
        for rule in sorted(mine, key=lambda rule: rule.node):
            if rule.link:
                last = ipaddress.ip_address(address).packed[-1]
                yield from self._search(rule.link, last, address, port)
            elif rule.where == address or rule.where.removeprefix("TCP sport ") == str(port):
                yield rule.target

    def _qdisc(self, verb: str, words: list[str]) -> None:
        if words[0] == "root":
            return self._root(verb, words)
        _, parent, *words = words
        handle = words[1] if words[0] == "handle" else ""
        options = words[words.index("netem") + 1 :]
        held = self.leaves.get(parent)
        if parent not in self.classes or (verb, held is None) in (("add", False), ("change", True)):
            raise RefusedError(f"{verb} {parent}: {held}")
        if verb == "change" or (held and held["handle"] == handle):
            assert held is not None
            netem(held["options"], options)
            return None
        if handle in {leaf["handle"] for leaf in self.leaves.values()}:
            raise RefusedError(f"two qdiscs {handle}")
        new: dict[str, Any] = {}
        netem(new, options)
        self.leaves[parent] = {
            "kind": "netem", "handle": handle, "parent": parent, "options": new
        }  # fmt: skip
        return None

    def _root(self, verb: str, words: list[str]) -> None:
        assert words[1:3] == ["handle", ROOT]
        if (verb == "add") == (self.default is not None):
            raise RefusedError(f"{verb} root")
        self.__init__()  # type: ignore[misc]
        if verb == "add":
            assert words[3:] == ["htb", "default", "0"]
            self.default = "0"

    def _class(self, verb: str, words: list[str]) -> None:
        given = dict(zip(words[::2], words[1::2], strict=False))
        name = given["classid"]
        if (verb == "add") == (name in self.classes):
            raise RefusedError(f"{verb} {name}, held: {sorted(self.classes)}")
        if verb == "del":
            if any(held["parent"] == name for held in self.classes.values()):
                raise RefusedError(f"{name} has classes")
            if any(rule.target == name for rule in self.rules):
                raise RefusedError(f"{name} is in use")
            self.leaves.pop(name, None)
            del self.classes[name]
            return
        words = words[words.index("htb") + 1 :]
        values = {key: number(value) for key, value in zip(words[::2], words[1::2], strict=True)}
        values |= {"rate": 8 * values["rate"], "ceil": 8 * values["ceil"]}
        parent = "root" if given["parent"] == ROOT else given["parent"]
        if parent != "root" and parent not in self.classes:
            raise RefusedError(f"no parent {parent}")
        if verb == "change":
            parent = str(self.classes[name]["parent"])
        else:
            self.leaves.pop(parent, None)
        self.classes[name] = {"mpu": 0.0, **values, "parent": parent}

    def _filter(self, verb: str, words: list[str]) -> None:
        at = words.index("u32")
        given = dict(zip(words[:at:2], words[1:at:2], strict=True))
        assert given["parent"] == ROOT
        key, rest = (given["protocol"], int(given["prio"])), words[at + 1 :]
        if verb != "add":
            named = (*key, given["handle"])
            rule = {(r.protocol, r.priority, r.handle): r for r in self.rules}.get(named)
            if rule is None:
                raise RefusedError(f"no filter {given['handle']}")
            if verb == "del":
                self.rules.remove(rule)
                return
            assert rest[0] == "flowid"
            rule.target = self._target(rest[1])
            return
        used = {*self.roots.values()}
        root = self.roots.setdefault(
            key, next(f"{n:x}" for n in range(0x800, 0xFFF) if f"{n:x}" not in used)
        )
        if "divisor" in rest:
            if (table := given["handle"].rstrip(":")) in self.tables:
                raise RefusedError(f"two tables {table}")
            self.tables.add(table)
            return
        table, bucket = root, 0
        if rest[0] == "ht":
            table, last = rest[1].rstrip(":").split(":")
            bucket = int(last, 16)
            if table not in self.tables:
                raise RefusedError(f"no table {table}")
        nodes = {r.node for r in self.rules if (r.table, r.bucket) == (table, bucket)}
        new = Rule(
            *key, table, bucket, next(n for n in range(0x800, 0xFFF) if n not in nodes), where(rest)
        )
        if "link" in rest:
            new.link = rest[rest.index("link") + 1].rstrip(":")
            if new.link not in self.tables:
                raise RefusedError(f"no table {new.link}")
        else:
            new.target = self._target(rest[rest.index("flowid") + 1])
        self.rules.append(new)

    def _target(self, flowid: str) -> str:
        if flowid in (ROOT, f"{ROOT}0"):
            return ROOT
        if flowid not in self.classes:
            raise RefusedError(f"no class {flowid}")
        return flowid


def where(words: list[str]) -> str:
    """Return the packets that a filter matches."""
    if "dst" in words:
        return words[words.index("dst") + 1].partition("/")[0]
    for end in ("sport", "dport"):
        if end in words:
            return f"TCP {end} {words[words.index(end) + 1]}"
    return ""


def number(text: str) -> float:
    """`5us` in seconds, `5bit` in bytes a second, `5%` as 0.05, `5b` as 5."""
    digits = text.rstrip("bitus%")
    return float(digits) * UNITS.get(text[len(digits) :], 1.0)


def netem(held: dict[str, Any], words: list[str]) -> None:
    """Give options to a netem, new (`held` is empty) or not."""
    held |= {"loss-random": {}, "loss-gemodel": {}, "duplicate": {}, "gap": 0}
    names = ("limit", "delay", "distribution", "loss", "duplicate", "corrupt", "reorder", "rate")
    starts = [i for i, word in enumerate(words) if word in names]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        name, values = words[start], words[start + 1 : end]
        if name == "limit":
            held["limit"] = int(values[0])
        elif name == "delay":
            keys = ("delay", "jitter", "correlation")
            held.setdefault("delay", {"correlation": 0.0})
            held["delay"] |= dict(zip(keys, map(number, values), strict=False))
        elif name == "distribution":
            held["table"] = values[0]
        elif name == "loss" and values[0] == "gemodel":
            chances = ("p", "r", "1-h", "1-k")
            held["loss-gemodel"] = dict(zip(chances, map(number, values[1:]), strict=True))
        elif name == "loss":
            held["loss-random"] = {"loss": number(values[0])} if number(values[0]) else {}
        elif name == "rate":
            held["rate"] = {"rate": number(values[0])}
        else:
            share = number(values[0])
            held[name] = {name: share} if share else {}
            held["gap"] = 1 if name == "reorder" and share else held["gap"]
