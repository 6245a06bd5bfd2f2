"""Parse what `tc ... show` prints and compare it with a tc configuration. Pure.

tc truncates rates of classes to 3 or 4 digits, and times, which pass through ticks of 64 ns, to
whole microseconds. It prints fractions with 6 digits and stores bursts as times.
"""

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
from netbench.network.shaping.batch import HANDLE
from netbench.network.shaping.program import Program
from netbench.network.shaping.tc import EXEMPT_PRIORITY, HtbClass, Leaf, gemodel, ip_version
from netbench.scenario.model import NO_BURSTS
from netbench.units import counted

_CLASS_FIELDS = (
    ("rate", "bit", 1000), ("ceil", "bit", 1000), ("burst", "b", 1024), ("cburst", "b", 1024),
    ("quantum", "", 1000), ("mpu", "b", 1024),
)  # fmt: skip
"""Fields of a class as tc prints them: name, unit, and the factor of a prefix."""

_TIME_CUT_S = 1.5e-6
_RELATIVE_CUT = 1e-4  # JSON numbers are printed with 6 digits
_RATE_CUT = 2e-3
_BURST_CUT = 1e-2
_FRACTION_CUT = 1e-9

_LEAF_FIELDS = {
    "limit": ("limit", 0.0, "packets"),
    "delay.delay": ("delay", _TIME_CUT_S, "s"),
    "delay.jitter": ("jitter", _TIME_CUT_S, "s"),
    "delay.correlation": ("jitter correlation", _FRACTION_CUT, ""),
    "loss-random.loss": ("loss", _FRACTION_CUT, "of packets"),
    "loss-random.correlation": ("loss correlation", _FRACTION_CUT, ""),
    "loss-gemodel.p": ("bursts to_bad", _FRACTION_CUT, "of packets"),
    "loss-gemodel.r": ("bursts to_good", _FRACTION_CUT, "of packets"),
    "loss-gemodel.1-h": ("bursts loss_bad", _FRACTION_CUT, "of packets"),
    "loss-gemodel.1-k": ("bursts loss_good", _FRACTION_CUT, "of packets"),
    "duplicate.duplicate": ("duplication", _FRACTION_CUT, "of packets"),
    "duplicate.correlation": ("duplication correlation", _FRACTION_CUT, ""),
    "corrupt.corrupt": ("corruption", _FRACTION_CUT, "of packets"),
    "corrupt.correlation": ("corruption correlation", _FRACTION_CUT, ""),
    "reorder.reorder": ("reordering", _FRACTION_CUT, "of packets"),
    "reorder.correlation": ("reordering correlation", _FRACTION_CUT, ""),
    "gap": ("reordering gap", 0.0, "packets"),
    "rate.rate": ("rate", 0.0, "bit/s"),
    "rate.packetoverhead": ("overhead", 0.0, "bytes a packet"),
    "rate.cellsize": ("cell size", 0.0, "bytes"),
    "rate.celloverhead": ("cell overhead", 0.0, "bytes"),
    "ecn": ("ecn", 0.0, ""),
}
"""Option of netem as tc prints it -> its name here, tolerance and unit. An option that is not
printed is 0. Other options, for example a seed, are ignored, except `_OTHER_MODELS`."""

_OTHER_MODELS = ("loss-state", "slot")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """A u32 filter that assigns packets to a class. handle: e.g. `800::801`.

    match: a destination address, `IPv4 TCP from port 22`, or a description of any other match.
    target: the class, e.g. `6e62:2`, or `6e62:`, the root itself, which sends at once.
    """

    protocol: str
    priority: int
    handle: str
    match: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An entry of the kernel's list of u32 filters. filter: None = it assigns no packets.

    table, bucket: location of the entry. is_hashed: the entry is a table of several buckets.
    leads_to: (table, mask, offset) of the hash by which it sends every packet to a table.
    last_byte, last_at: last byte that it matches, and the offset of that word, the input of a hash.
    """

    filter: Filter | None
    table: str
    bucket: int
    is_hashed: bool
    leads_to: tuple[str, str, int] | None
    last_byte: int
    last_at: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelState:
    """Qdiscs, classes and filters of an interface, in the terms of a tc configuration.

    leaves: by HTB class, e.g. `6e62:2`. filters: in the order the kernel tries them. tables: of
    hashed filters, e.g. `4`. led_to: tables that packets are sent to. max_segments: 0 = not read.
    fair_quanta: bytes that a connection sends in its turn, by the handle of the netem above.
    """

    root: tuple[str, str]
    default_class: str
    classes: dict[str, dict[str, float | str]]
    leaves: dict[str, dict[str, Any]]
    filters: tuple[Filter, ...]
    tables: tuple[str, ...] = ()
    led_to: tuple[str, ...] = ()
    max_segments: int = 0
    fair_quanta: tuple[tuple[str, int], ...] = ()


def root_qdisc(text: str) -> tuple[str, str]:
    """Return kind and handle of the root in the output of `tc -j qdisc show dev X`."""
    for qdisc in _arrays(text)[0]:
        if qdisc.get("root"):
            return str(qdisc["kind"]), str(qdisc["handle"])
    return "none", "0:"


def parse(tables: str, classes: str, link: str = "[]") -> KernelState:
    """Parse `tc -s -j` of qdiscs and filters, `tc -d class show`, and `ip -d -j link show`.

    link: only needed where `max_segments` is compared. Raises NetworkError.
    """
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
) -> KernelState:
    """Assemble qdiscs, as `tc -j` prints them, and rules in the kernel's order."""
    hashed = {rule.table for rule in rules if rule.is_hashed}
    linked = {rule.leads_to for rule in rules if rule.leads_to}
    root: dict[str, Any] = next((q for q in qdiscs if q.get("root")), {})
    return KernelState(
        root=(str(root.get("kind", "none")), str(root.get("handle", "0:"))),
        default_class=str(root.get("options", {}).get("default", "0")).removeprefix("0x"),
        classes=classes,
        leaves={
            str(q.get("parent")): q
            for q in qdiscs
            if not q.get("root") and str(q.get("parent")).startswith(HANDLE)
        },
        filters=tuple(_placed(rule, hashed, linked) for rule in rules if rule.filter),
        tables=tuple(sorted(hashed)),
        led_to=tuple(sorted(hashed & {table for table, mask, _ in linked if mask == "ff"})),
        max_segments=max_segments,
        fair_quanta=tuple(
            (f"{str(q.get('parent')).partition(':')[0]}:", int(q["options"]["quantum"]))
            for q in qdiscs
            if q["kind"] == "fq_codel" and not q.get("root")
        ),
    )


def differences(program: Program, found: KernelState) -> tuple[str, ...]:
    """Describe every difference, one sentence each."""
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
    return (*problems, *_fair_differences(program, found), *_filter_differences(program, found))


def unwanted_drops(program: Program, found: KernelState) -> int:
    """Count packets dropped by leaves without loss whose queue is long enough for all packets."""
    return sum(
        int(found.leaves.get(f"{HANDLE}{leaf.minor:x}", {}).get("drops", 0))
        for leaf in program.leaves
        if leaf.loss == 0 and leaf.bursts == NO_BURSTS and not leaf.may_overflow
    )


def class_differences(name: str, planned: HtbClass, found: dict[str, float | str]) -> Iterator[str]:
    """Describe every difference of a class, one sentence each."""
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
    """Describe every difference of a leaf, one sentence each."""
    if found["kind"] != "netem":
        yield f"class {name} holds a {found['kind']} qdisc, planned netem"
        return
    options = found.get("options", {})
    wanted, existing = _planned_options(planned), _flat(options)
    if not existing.get("delay.jitter"):  # tc prints a jitter of 1 us as 0
        wanted["delay.correlation"] = 0.0
    for field, (what, cut, unit) in _LEAF_FIELDS.items():
        actual, value = float(existing.get(field, 0)), wanted.get(field, 0)
        if not math.isclose(actual, value, rel_tol=_RELATIVE_CUT if cut else 0.0, abs_tol=cut):
            text = f"netem in class {name} has {what} {actual:.10g} {unit}".rstrip()
            yield f"{text}, planned {value:.10g} {unit}".rstrip()
    for model in _OTHER_MODELS:
        if model in options:
            yield f"netem in class {name} has a {model} model, planned none"
    if found.get("handle") not in leaf_handles(planned.minor):
        yield f"netem in class {name} is {found.get('handle')}, planned {planned.minor:x}:"


def leaf_handles(minor: int) -> tuple[str, str]:
    """Return the two handles that a leaf may have: replacing it alternates between them."""
    return f"{minor:x}:", f"{minor | 0x8000:x}:"


def _planned_options(leaf: Leaf) -> dict[str, float]:
    """Return the options of a leaf under the names of `_LEAF_FIELDS`."""
    options = {
        "limit": leaf.limit_packets,
        "delay.delay": leaf.delay_us * 1e-6,
        "delay.jitter": leaf.jitter_us * 1e-6,
        "delay.correlation": leaf.jitter_correlation if leaf.jitter_us else 0.0,
        "duplicate.duplicate": leaf.duplication,
        "corrupt.corrupt": leaf.corruption,
        "reorder.reorder": leaf.reordering,
        "gap": 1 if leaf.reordering else 0,
        "rate.rate": leaf.rate_bps,
    }
    if leaf.bursts == NO_BURSTS:
        return {**options, "loss-random.loss": leaf.loss}
    return {**options, **{f"loss-gemodel.{x}": p for x, p in gemodel(leaf.bursts).items()}}


def _flat(options: dict[str, Any]) -> dict[str, Any]:
    """Flatten `{"delay": {"jitter": 1}}` to `{"delay.jitter": 1}`, with rates in bit/s.

    Drops what netem keeps unused: the correlation of a jitter of 0, reordering with a gap of 0.
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


def _fair_differences(program: Program, found: KernelState) -> Iterator[str]:
    planned = {
        f"{leaf.minor:x}:": leaf.fair_quantum_bytes
        for leaf in program.leaves
        if leaf.fair_quantum_bytes
    }
    existing = dict(found.fair_quanta)
    for handle in sorted(planned.keys() | existing.keys()):
        have, want = existing.get(handle, 0), planned.get(handle, 0)
        if have != want:
            yield f"connections below netem {handle} send {have} bytes in turn, planned {want}"


def _filter_differences(program: Program, found: KernelState) -> Iterator[str]:
    planned = Counter(planned_filters(program))
    actual = Counter((f.match, f.target, f.priority) for f in found.filters)
    for (match, target, priority), count in sorted((planned - actual).items()):
        where = f"(planned {count}, priority {priority})"
        yield f"no filter sends {match} to {_place(target)} {where}"
    for (match, target, priority), count in sorted((actual - planned).items()):
        where = f"{_place(target)} with priority {priority}"
        yield f"{count} filter(s) send {match} to {where}, not planned"


def planned_filters(program: Program) -> list[tuple[str, str, int]]:
    """Return (match, target, priority) of every planned filter, in the terms of `Filter`."""
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
    """Parse consecutive JSON arrays, one per command of the batch."""
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
    """Collect the matches of u32, which prints each under the same key."""
    found: dict[str, Any] = dict(pairs)
    if "match" in found:
        found["match"] = [value for key, value in pairs if key == "match"]
    return found


def rule(entry: dict[str, Any]) -> Rule:
    """Parse what `tc -j` prints of a filter."""
    options = entry.get("options", {})
    words = sorted(options.get("match", []), key=lambda word: int(word["off"]))
    leads_to = None
    if "link" in options and all(word["mask"] == "0" for word in words):
        table = str(options["link"]).rstrip(":")
        leads_to = (table, str(options.get("hash_mask")), int(options.get("hash_off", 0)))
    target = options.get("flowid") or options.get("classid")
    found = None
    if target:
        found = Filter(
            protocol=str(entry.get("protocol")),
            priority=int(entry.get("pref", 0)),
            handle=str(options["fh"]),
            match=_match(words),
            target=str(target),
        )
    return Rule(
        filter=found,
        table=str(options.get("key_ht", options.get("fh"))).rstrip(":"),
        bucket=int(str(options.get("bkt", 0)), 16),
        is_hashed=int(options.get("ht_divisor", 1)) > 1,
        leads_to=leads_to,
        last_byte=int(words[-1]["value"], 16) & 0xFF if words else 0,
        last_at=int(words[-1]["off"]) if words else 0,
    )


def _placed(rule: Rule, hashed: set[str], linked: set[tuple[str, str, int]]) -> Filter:
    """Return the filter of a rule, marked if no packet is sent to its table."""
    assert rule.filter is not None
    is_led_to = (rule.table, "ff", rule.last_at) in linked and rule.last_byte == rule.bucket
    if rule.table not in hashed or is_led_to:
        return rule.filter
    where = f"in bucket {rule.bucket:x} of table {rule.table}, where nothing looks for it"
    return replace(rule.filter, match=f"{rule.filter.match} ({where})")


def _match(words: list[dict[str, Any]]) -> str:
    """Describe what a rule matches: a destination, an exempt port, or anything else."""
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
    """Parse `class htb 6e62:1 root leaf 1: prio 0 quantum 1514 rate 1120Kbit ... burst 1513b/1`."""
    words = line.split()
    found: dict[str, float | str] = {
        "parent": words[words.index("parent") + 1] if "parent" in words else "root"
    }
    for field, unit, factor in _CLASS_FIELDS:
        if match := re.search(rf" {field} ([\d.]+)([KMGT]?){unit}", line):
            found[field] = float(match[1]) * factor ** " KMGT".index(match[2] or " ")
    return words[2], found
