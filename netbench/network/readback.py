"""What `tc ... show` prints, parsed, and compared with a program. Pure.

Tolerances are those of tc's own printing: rates of classes are cut to 3 to 4 digits, times go
through ticks of 64 ns and are cut to whole microseconds, bursts are stored as times.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from netbench.errors import NetworkError
from netbench.network.program import HANDLE, HtbClass, Leaf, Program

_RATE_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIME_CUT_S = 1.5e-6
_RELATIVE_CUT = 1e-4  # JSON numbers are printed with 6 digits
_RATE_CUT = 2e-3
_BURST_CUT = 1e-2


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What an interface holds, in the terms of a program. `leaves`: by HTB class, e.g. `6e62:2`.

    matches: (destination address, class) of every filter; sorted, so that doubles can be seen.
    """

    root: tuple[str, str]
    default_class: str
    classes: dict[str, dict[str, float | str]]
    leaves: dict[str, dict[str, Any]]
    matches: tuple[tuple[str, str], ...]


def root_qdisc(text: str) -> tuple[str, str]:
    """Kind and handle of the root in the output of `tc -j qdisc show dev X`."""
    for qdisc in _arrays(text)[0]:
        if qdisc.get("root"):
            return str(qdisc["kind"]), str(qdisc["handle"])
    return "none", "0:"


def parse(tables: str, classes: str) -> Found:
    """Parse `tc -s -j` of qdiscs, then filters, and `tc -d class show`. Raises NetworkError."""
    arrays = _arrays(tables)
    if len(arrays) != 2:
        raise NetworkError(f"tc printed {len(arrays)} tables instead of 2: {tables[:200]!r}")
    qdiscs, filters = arrays
    root: dict[str, Any] = next((q for q in qdiscs if q.get("root")), {})
    return Found(
        root=(str(root.get("kind", "none")), str(root.get("handle", "0:"))),
        default_class=str(root.get("options", {}).get("default", "0")).removeprefix("0x"),
        classes=dict(_parse_class(line) for line in classes.splitlines() if " htb " in line),
        leaves={str(q.get("parent")): q for q in qdiscs if not q.get("root")},
        matches=tuple(sorted(_matches(filters))),
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
    problems += _missing("class", set(planned_classes), set(found.classes))
    problems += _missing("netem in class", set(planned_leaves), set(found.leaves))
    for name in sorted(planned_classes.keys() & found.classes.keys()):
        problems += _class_differences(name, planned_classes[name], found.classes[name])
    for name in sorted(planned_leaves.keys() & found.leaves.keys()):
        problems += _leaf_differences(name, planned_leaves[name], found.leaves[name])
    return (*problems, *_match_differences(program, found))


def unwanted_drops(program: Program, found: Found) -> int:
    """Packets dropped by leaves that were not asked to lose any."""
    lossless = [f"{HANDLE}{leaf.minor:x}" for leaf in program.leaves if leaf.loss == 0]
    return sum(int(found.leaves.get(name, {}).get("drops", 0)) for name in lossless)


def _class_differences(
    name: str, planned: HtbClass, found: dict[str, float | str]
) -> Iterator[str]:
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
    )
    for field, value, cut, unit in wanted:
        if field == "quantum" and leafless:
            continue
        actual = float(found.get(field, math.nan))
        if not math.isclose(actual, value, rel_tol=cut, abs_tol=16 if cut == _BURST_CUT else 0):
            yield f"class {name} has {field} {actual:.10g} {unit}, planned {value} {unit}"


def _leaf_differences(name: str, planned: Leaf, found: dict[str, Any]) -> Iterator[str]:
    if found["kind"] != "netem":
        yield f"class {name} holds a {found['kind']} qdisc, planned netem"
        return
    options = found.get("options", {})
    delay = options.get("delay", {})
    loss = options.get("loss-random", {}).get("loss", 0.0)
    wanted = (
        ("limit", options.get("limit"), planned.limit_packets, 0.0, "packets"),
        ("delay", delay.get("delay", 0.0), planned.delay_us * 1e-6, _TIME_CUT_S, "s"),
        ("jitter", delay.get("jitter", 0.0), planned.jitter_us * 1e-6, _TIME_CUT_S, "s"),
        ("loss", loss, planned.loss, 1e-9, "of packets"),
        ("rate", 8 * options.get("rate", {}).get("rate", 0), planned.rate_bps, 0.0, "bit/s"),
    )
    for field, actual, value, cut, unit in wanted:
        relative = _RELATIVE_CUT if cut else 0.0
        if not math.isclose(float(actual or 0), value, rel_tol=relative, abs_tol=cut):
            yield f"netem in class {name} has {field} {actual} {unit}, planned {value:g} {unit}"
    if found.get("handle") != f"{planned.minor:x}:":
        yield f"netem in class {name} is {found.get('handle')}, planned {planned.minor:x}:"


def _match_differences(program: Program, found: Found) -> Iterator[str]:
    planned = Counter((address, f"{HANDLE}{minor:x}") for address, minor in program.matches)
    actual = Counter(found.matches)
    for (address, name), count in sorted((planned - actual).items()):
        yield f"no filter sends {address} to class {name} (planned {count})"
    for (address, name), count in sorted((actual - planned).items()):
        yield f"{count} filter(s) send {address} to class {name}, not planned"


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


def _matches(filters: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in filters:
        options = entry.get("options", {})
        name = options.get("flowid") or options.get("classid")
        if name:
            words = sorted(options.get("match", []), key=lambda word: int(word["off"]))
            yield _address(words), str(name)


def _address(words: list[dict[str, Any]]) -> str:
    """The destination a rule matches: one word at 16 is IPv4, four from 24 are IPv6."""
    offsets = [int(word["off"]) for word in words]
    full = all(word["mask"] == "ffffffff" for word in words)
    packed = b"".join(int(word["value"], 16).to_bytes(4, "big") for word in words)
    if full and offsets in ([16], [24, 28, 32, 36]):
        return str(ipaddress.ip_address(packed))
    return f"something other than one destination ({words})"


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
    return words[2], found
