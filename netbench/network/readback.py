"""What `tc ... show` prints, parsed, and compared with a program. Pure.

Tolerances are those of tc's own printing: rates of classes are cut to 3 to 4 digits, times go
through ticks of 64 ns and are cut to whole microseconds, shares are printed with 6 digits, bursts
are stored as times. The distribution of a jitter is not compared: the kernel gives no table back.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from netbench.errors import NetworkError
from netbench.network.program import Program
from netbench.network.tc import EXEMPT_PRIORITY, HANDLE, HtbClass, Leaf, ip_version
from netbench.scenario.model import NO_BURSTS
from netbench.units import counted

_RATE_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIME_CUT_S = 1.5e-6
_RELATIVE_CUT = 1e-4  # JSON numbers are printed with 6 digits
_RATE_CUT = 2e-3
_BURST_CUT = 1e-2
_SHARE_CUT = 1e-9

_LEAF_FIELDS = {
    "limit": ("limit", 0.0, "packets"),
    "delay.delay": ("delay", _TIME_CUT_S, "s"),
    "delay.jitter": ("jitter", _TIME_CUT_S, "s"),
    "delay.correlation": ("jitter correlation", _SHARE_CUT, ""),
    "loss-random.loss": ("loss", _SHARE_CUT, "of packets"),
    "loss-random.correlation": ("loss correlation", _SHARE_CUT, ""),
    "loss-gemodel.p": ("bursts to_bad", _SHARE_CUT, "of packets"),
    "loss-gemodel.r": ("bursts to_good", _SHARE_CUT, "of packets"),
    "loss-gemodel.1-h": ("bursts loss_bad", _SHARE_CUT, "of packets"),
    "loss-gemodel.1-k": ("bursts loss_good", _SHARE_CUT, "of packets"),
    "duplicate.duplicate": ("duplication", _SHARE_CUT, "of packets"),
    "duplicate.correlation": ("duplication correlation", _SHARE_CUT, ""),
    "corrupt.corrupt": ("corruption", _SHARE_CUT, "of packets"),
    "corrupt.correlation": ("corruption correlation", _SHARE_CUT, ""),
    "reorder.reorder": ("reordering", _SHARE_CUT, "of packets"),
    "reorder.correlation": ("reordering correlation", _SHARE_CUT, ""),
    "gap": ("reordering gap", 0.0, "packets"),
    "rate.rate": ("rate", 0.0, "bit/s"),
    "rate.packetoverhead": ("overhead", 0.0, "bytes a packet"),
    "rate.cellsize": ("cell size", 0.0, "bytes"),
    "rate.celloverhead": ("cell overhead", 0.0, "bytes"),
    "ecn": ("ecn", 0.0, ""),
}
"""netem's options as tc prints them -> what they are called here, tolerance and unit. What is not
printed is 0. Others (a seed, say) change nothing that was asked for; `_OTHER_MODELS` do."""

_OTHER_MODELS = ("loss-state", "slot")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """A u32 filter that sends what it matches somewhere. handle: e.g. `800::801`.

    match: a destination address, `IPv4 TCP from port 22`, or what else it matches in words.
    target: the class, e.g. `6e62:2`, or `6e62:`, the root itself, which sends at once.
    """

    protocol: str
    priority: int
    handle: str
    match: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An entry of the kernel's list of u32 filters. filter: None = it sends nothing anywhere.

    table, bucket: where it is. is_hashed: it is itself that table, of more than one bucket.
    leads_to: (table, mask, offset) of the hash by which it leads every packet to a table.
    last_byte, last_at: of what it matches, and the offset of its word: what such a hash goes by.
    """

    filter: Filter | None
    table: str
    bucket: int
    is_hashed: bool
    leads_to: tuple[str, str, int] | None
    last_byte: int
    last_at: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What an interface holds, in the terms of a program. `leaves`: by HTB class, e.g. `6e62:2`.

    filters: in the order the kernel tries them. tables: of hashed filters, e.g. `4`; those packets
    are led to are in `led_to`. max_segments: 0 = was not asked.
    """

    root: tuple[str, str]
    default_class: str
    classes: dict[str, dict[str, float | str]]
    leaves: dict[str, dict[str, Any]]
    filters: tuple[Filter, ...]
    tables: tuple[str, ...] = ()
    led_to: tuple[str, ...] = ()
    max_segments: int = 0

    @property
    def matches(self) -> tuple[tuple[str, str], ...]:
        """(destination address, class) of every filter but those of ports that are not shaped;
        sorted, so that doubles can be seen."""
        return tuple(sorted((f.match, f.target) for f in self.filters if f.target != HANDLE))


def root_qdisc(text: str) -> tuple[str, str]:
    """Kind and handle of the root in the output of `tc -j qdisc show dev X`."""
    for qdisc in _arrays(text)[0]:
        if qdisc.get("root"):
            return str(qdisc["kind"]), str(qdisc["handle"])
    return "none", "0:"


def parse(tables: str, classes: str, link: str = "[]") -> Found:
    """Parse `tc -s -j` of qdiscs, then filters, `tc -d class show`, and `ip -d -j link show` where
    its setting counts. Raises NetworkError."""
    arrays = _arrays(tables)
    if len(arrays) != 2:
        raise NetworkError(f"tc printed {len(arrays)} tables instead of 2: {tables[:200]!r}")
    qdiscs, filters = arrays
    found = dict(_parse_class(line) for line in classes.splitlines() if " htb " in line)
    segments = max((int(x.get("gso_max_segs", 0)) for x in _arrays(link)[0]), default=0)
    return found_from(qdiscs, [rule(entry) for entry in filters], found, segments)


def found_from(
    qdiscs: list[dict[str, Any]],
    rules: Sequence[Rule],
    classes: dict[str, dict[str, float | str]],
    max_segments: int,
) -> Found:
    """From qdiscs in the words of `tc -j`, and rules in the order the kernel has them."""
    hashed = {rule.table for rule in rules if rule.is_hashed}
    linked = {rule.leads_to for rule in rules if rule.leads_to}
    root: dict[str, Any] = next((q for q in qdiscs if q.get("root")), {})
    return Found(
        root=(str(root.get("kind", "none")), str(root.get("handle", "0:"))),
        default_class=str(root.get("options", {}).get("default", "0")).removeprefix("0x"),
        classes=classes,
        leaves={str(q.get("parent")): q for q in qdiscs if not q.get("root")},
        filters=tuple(_placed(rule, hashed, linked) for rule in rules if rule.filter),
        tables=tuple(sorted(hashed)),
        led_to=tuple(sorted(hashed & {table for table, mask, _ in linked if mask == "ff"})),
        max_segments=max_segments,
    )


def differences(program: Program, found: Found) -> tuple[str, ...]:
    """One sentence per thing that is not as planned."""
    if found.root != ("htb", HANDLE):
        kind, handle = found.root
        return (f"the root qdisc is {kind} {handle}, planned htb {HANDLE}",)
    planned_classes = {f"{HANDLE}{htb.minor:x}": htb for htb in program.classes}
    planned_leaves = {f"{HANDLE}{leaf.minor:x}": leaf for leaf in program.leaves}
    problems = []
    if found.default_class != "0":
        problems.append(f"unmatched traffic goes to class {found.default_class}, planned 0")
    if found.max_segments not in (0, program.max_segments):
        have, want = found.max_segments, program.max_segments
        problems.append(
            f"TCP may hand over {counted(have, 'frame')} at once (gso_max_segs), planned {want}"
        )
    problems += _missing("class", set(planned_classes), set(found.classes))
    problems += _missing("netem in class", set(planned_leaves), set(found.leaves))
    for name in sorted(planned_classes.keys() & found.classes.keys()):
        problems += class_differences(name, planned_classes[name], found.classes[name])
    for name in sorted(planned_leaves.keys() & found.leaves.keys()):
        problems += leaf_differences(name, planned_leaves[name], found.leaves[name])
    return (*problems, *_filter_differences(program, found))


def unwanted_drops(program: Program, found: Found) -> int:
    """Packets dropped by leaves that were not asked to lose any, and hold all there can be."""
    lossless = [
        f"{HANDLE}{leaf.minor:x}"
        for leaf in program.leaves
        if leaf.loss == 0 and leaf.bursts == NO_BURSTS and not leaf.may_overflow
    ]
    return sum(int(found.leaves.get(name, {}).get("drops", 0)) for name in lossless)


def class_differences(name: str, planned: HtbClass, found: dict[str, float | str]) -> Iterator[str]:
    """One sentence per thing a class has not as planned."""
    parent = f"{HANDLE}{planned.parent:x}" if planned.parent else "root"
    if found["parent"] != parent:
        yield f"class {name} is under {found['parent']}, planned {parent}"
    leafless = "quantum" not in found  # tc prints no quantum for a class that has classes
    wanted = (
        ("rate", planned.rate_bps, _RATE_CUT, "bit/s"),
        ("ceil", planned.ceil_bps, _RATE_CUT, "bit/s"),
        ("burst", planned.burst_bytes, _BURST_CUT, "bytes"),
        ("cburst", planned.ceil_burst_bytes, _BURST_CUT, "bytes"),
        ("quantum", planned.quantum_bytes, 0.0, "bytes"),
        ("mpu", planned.mpu_bytes, 0.0, "bytes (its netem's table of jitter)"),
    )
    for field, value, cut, unit in wanted:
        if field == "quantum" and leafless:
            continue
        actual = float(found.get(field, 0 if field == "mpu" else math.nan))
        if not math.isclose(actual, value, rel_tol=cut, abs_tol=16 if cut == _BURST_CUT else 0):
            yield f"class {name} has {field} {actual:.10g} {unit}, planned {value} {unit}"


def leaf_differences(name: str, planned: Leaf, found: dict[str, Any]) -> Iterator[str]:
    """One sentence per thing a leaf has not as planned."""
    if found["kind"] != "netem":
        yield f"class {name} holds a {found['kind']} qdisc, planned netem"
        return
    options = found.get("options", {})
    wanted, held = _planned_options(planned), _flat(options)
    for field, (what, cut, unit) in _LEAF_FIELDS.items():
        actual, value = float(held.get(field, 0)), wanted.get(field, 0)
        if not math.isclose(actual, value, rel_tol=_RELATIVE_CUT if cut else 0.0, abs_tol=cut):
            text = f"netem in class {name} has {what} {actual:.10g} {unit}".rstrip()
            yield f"{text}, planned {value:.10g} {unit}".rstrip()
    for model in _OTHER_MODELS:
        if model in options:
            yield f"netem in class {name} has a {model} model, planned none"
    if found.get("handle") not in leaf_handles(planned.minor):
        yield f"netem in class {name} is {found.get('handle')}, planned {planned.minor:x}:"


def leaf_handles(minor: int) -> tuple[str, str]:
    """A leaf has the first, or the second once it was replaced: two cannot share one."""
    return f"{minor:x}:", f"{minor | 0x8000:x}:"


def _planned_options(leaf: Leaf) -> dict[str, float]:
    """The leaf in the words of `_LEAF_FIELDS`."""
    bursts = leaf.bursts
    in_bursts = bursts != NO_BURSTS
    return {
        "limit": leaf.limit_packets,
        "delay.delay": leaf.delay_us * 1e-6,
        "delay.jitter": leaf.jitter_us * 1e-6,
        "delay.correlation": leaf.jitter_correlation if leaf.jitter_us else 0.0,
        "loss-random.loss": 0.0 if in_bursts else leaf.loss,
        "loss-gemodel.p": bursts.to_bad if in_bursts else 0.0,
        "loss-gemodel.r": bursts.to_good if in_bursts else 0.0,
        "loss-gemodel.1-h": bursts.loss_bad if in_bursts else 0.0,
        "loss-gemodel.1-k": bursts.loss_good if in_bursts else 0.0,
        "duplicate.duplicate": leaf.duplication,
        "corrupt.corrupt": leaf.corruption,
        "reorder.reorder": leaf.reordering,
        "gap": 1 if leaf.reordering else 0,
        "rate.rate": leaf.rate_bps,
    }


def _flat(options: dict[str, Any]) -> dict[str, Any]:
    """`{"delay": {"jitter": 1}}` as `{"delay.jitter": 1}`, rates in bit/s; without what netem keeps
    of an earlier setting and does not use: a correlation of no jitter, reordering with a gap of 0.
    """
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": number for key, number in value.items()}
        else:
            flat[name] = value
    flat["rate.rate"] = 8 * flat.get("rate.rate", 0)
    if not flat.get("delay.jitter"):
        flat.pop("delay.correlation", None)
    if not flat.get("gap"):
        flat.pop("reorder.reorder", None)
    return flat


def _filter_differences(program: Program, found: Found) -> Iterator[str]:
    planned = Counter(planned_filters(program))
    actual = Counter((f.match, f.target, f.priority) for f in found.filters)
    for (match, target, priority), count in sorted((planned - actual).items()):
        where = f"(planned {count}, priority {priority})"
        yield f"no filter sends {match} to {_place(target)} {where}"
    for (match, target, priority), count in sorted((actual - planned).items()):
        where = f"{_place(target)} with priority {priority}"
        yield f"{count} filter(s) send {match} to {where}, not planned"


def planned_filters(program: Program) -> list[tuple[str, str, int]]:
    """(match, target, priority) of every filter of a program, as `Filter` has them."""
    versions = {address: ip_version(address) for address, _ in program.matches}
    filters = [
        (address, f"{HANDLE}{minor:x}", versions[address]) for address, minor in program.matches
    ]
    return filters + [
        (f"IPv{version} TCP {end} port {port}", HANDLE, EXEMPT_PRIORITY[version])
        for version in sorted(set(versions.values()))
        for port in program.exempt_ports
        for end in ("from", "to")
    ]


def _place(target: str) -> str:
    return "the root, unshaped" if target == HANDLE else f"class {target}"


def _missing(what: str, planned: set[str], found: set[str]) -> list[str]:
    return [f"{what} {name} is missing" for name in sorted(planned - found)] + [
        f"{what} {name} was not planned" for name in sorted(found - planned)
    ]


def _arrays(text: str) -> list[list[dict[str, Any]]]:
    """The JSON arrays that follow one another in `text`, one per command of the batch."""
    decoder = json.JSONDecoder(object_pairs_hook=_keep_matches)
    arrays, at = [], 0
    try:
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            array, at = decoder.raw_decode(text, at)
            arrays.append(array)
    except json.JSONDecodeError as error:
        raise NetworkError(f"tc printed what is not JSON: {text[at : at + 200]!r}") from error
    return arrays or [[]]


def _keep_matches(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """u32 prints one "match" per word under the same key; a plain dict would keep the last."""
    found: dict[str, Any] = dict(pairs)
    if "match" in found:
        found["match"] = [value for key, value in pairs if key == "match"]
    return found


def rule(entry: dict[str, Any]) -> Rule:
    """From what `tc -j` prints of a filter."""
    options = entry.get("options", {})
    words = sorted(options.get("match", []), key=lambda word: int(word["off"]))
    leads_to = None
    if "link" in options and all(word["mask"] == "0" for word in words):
        table = str(options["link"]).rstrip(":")
        leads_to = (table, str(options.get("hash_mask")), int(options.get("hash_off", 0)))
    return Rule(
        filter=_filter(entry, words),
        table=str(options.get("key_ht", options.get("fh"))).rstrip(":"),
        bucket=int(str(options.get("bkt", 0)), 16),
        is_hashed=int(options.get("ht_divisor", 1)) > 1,
        leads_to=leads_to,
        last_byte=int(words[-1]["value"], 16) & 0xFF if words else 0,
        last_at=int(words[-1]["off"]) if words else 0,
    )


def _filter(entry: dict[str, Any], words: list[dict[str, Any]]) -> Filter | None:
    options = entry.get("options", {})
    target = options.get("flowid") or options.get("classid")
    if not target:
        return None
    return Filter(
        protocol=str(entry.get("protocol")),
        priority=int(entry.get("pref", 0)),
        handle=str(options["fh"]),
        match=_match(words),
        target=str(target),
    )


def _placed(rule: Rule, hashed: set[str], linked: set[tuple[str, str, int]]) -> Filter:
    """The filter of a rule; one that is where no packet is led to says so."""
    assert rule.filter is not None
    is_led_to = (rule.table, "ff", rule.last_at) in linked and rule.last_byte == rule.bucket
    if rule.table not in hashed or is_led_to:
        return rule.filter
    where = f"in bucket {rule.bucket:x} of table {rule.table}, where nothing looks for it"
    return replace(rule.filter, match=f"{rule.filter.match} ({where})")


def _match(words: list[dict[str, Any]]) -> str:
    """What a rule matches: one word at 16 is an IPv4 destination, four from 24 an IPv6 one; a
    protocol and a port are what is not shaped."""
    offsets = [int(word["off"]) for word in words]
    masks = [word["mask"] for word in words]
    values = [int(word["value"], 16) for word in words]
    if offsets in ([16], [24, 28, 32, 36]) and set(masks) == {"ffffffff"}:
        return _address(tuple(values))
    for version, where, tcp in ((4, [8, 20], (0x60000, "ff0000")), (6, [4, 40], (0x600, "ff00"))):
        if offsets == where and (values[0], masks[0]) == tcp:
            if masks[1] == "ffff0000":
                return f"IPv{version} TCP from port {values[1] >> 16}"
            if masks[1] == "ffff":
                return f"IPv{version} TCP to port {values[1]}"
    return f"something other than one destination ({words})"


@lru_cache(maxsize=8192)
def _address(words: tuple[int, ...]) -> str:
    packed = b"".join(word.to_bytes(4, "big") for word in words)
    return str(ipaddress.ip_address(packed))


def _parse_class(line: str) -> tuple[str, dict[str, float | str]]:
    """`class htb 6e62:1 root leaf 1: prio 0 quantum 1514 rate 1120Kbit ceil ... burst 1513b/1`"""
    words = line.split()
    found: dict[str, float | str] = {
        "parent": words[words.index("parent") + 1] if "parent" in words else "root"
    }
    for field in ("rate", "ceil"):
        if match := re.search(rf" {field} ([\d.]+)([KMGT]?)bit", line):
            found[field] = float(match[1]) * _RATE_UNITS[match[2]]
    for field in ("burst", "cburst"):
        if match := re.search(rf" {field} ([\d.]+)([KMG]?)b", line):
            found[field] = float(match[1]) * _SIZE_UNITS[match[2]]
    if match := re.search(r" quantum (\d+)", line):
        found["quantum"] = float(match[1])
    if match := re.search(r" mpu (\d+)b", line):
        found["mpu"] = float(match[1])
    return words[2], found
