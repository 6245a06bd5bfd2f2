"""What `netbench sweep --vary` takes: `bandwidth=0.1x..10x:9`, `delay=1ms,10ms`, `batch=64,128`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from netbench import units
from netbench.errors import nearest
from netbench.plan.what_if import Amount

DIGITS = 3
"""Of values between the ends of a range, as written; they are computed with in full."""

NETWORK_VARIABLES = ("bandwidth", "delay")

_RANGE = re.compile(r"(?P<first>.+)\.\.(?P<last>.+):(?P<num>\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """What `--vary` asks for. relative: values are factors on what the scenario has."""

    name: str
    relative: bool
    geometric: bool
    values: tuple[float, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A thing that can vary: how its values are read and written. title, key: as in `Axis`."""

    parse: Callable[[str], float]
    write: Callable[[float], str]
    title: str
    key: str


KINDS = {
    "bandwidth": Kind(
        parse=units.parse_bandwidth,
        write=lambda value: units.format_bandwidth(value, DIGITS),
        title="bandwidth",
        key="bandwidth_bps",
    ),
    "delay": Kind(
        parse=units.parse_time,
        write=lambda value: units.format_time(value, DIGITS),
        title="one-way delay",
        key="one_way_delay_s",
    ),
    "batch": Kind(parse=units.parse_count, write=lambda n: f"{n:.0f}", title="batch", key="batch"),
    "layers": Kind(
        parse=units.parse_count, write=lambda n: f"{n:.0f}", title="layers", key="layers"
    ),
    "micro-batch": Kind(
        parse=units.parse_count, write=lambda n: f"{n:.0f}", title="micro-batch", key="micro_batch"
    ),
}


def parse_vary(text: str) -> Variable:
    """`NAME=VALUE,...`: values with units, factors (`0.1x`), or geometric ranges (`a..b:n`)."""
    name, equals, rest = text.partition("=")
    if name not in KINDS:
        raise ValueError(f'"{name}" cannot be varied; {nearest(name, KINDS)}')
    if not equals or not rest:
        raise ValueError(f"{name} has no values; write e.g. {_example(name)}")
    found = [_parse_part(name, part.strip()) for part in rest.split(",")]
    relative = {amount.relative for part in found for amount in part}
    if len(relative) > 1:
        raise ValueError(f'"{rest}" mixes factors with values; write one kind')
    numbers = [amount.value for part in found for amount in part]
    if name not in NETWORK_VARIABLES:
        numbers = [float(round(number)) for number in numbers]
        if min(numbers) < 1:
            raise ValueError(f"{name} is {min(numbers):g}; expected a positive whole number")
    numbers = list(dict.fromkeys(numbers))
    write = write_factor if True in relative else KINDS[name].write
    return Variable(
        name=name,
        relative=True in relative,
        geometric=any(len(part) > 1 for part in found) or _spread(numbers),
        values=tuple(numbers),
        texts=tuple(write(number) for number in numbers),
    )


def _parse_part(name: str, text: str) -> list[Amount]:
    """One value, or a geometric range of them."""
    match = _RANGE.fullmatch(text)
    if match is None:
        if ".." in text:
            raise ValueError(f'"{text}" does not say how many values; write e.g. "{text}:5"')
        return [_parse_value(name, text)]
    first, last = _parse_value(name, match["first"]), _parse_value(name, match["last"])
    num = int(match["num"])
    if num < 2:
        raise ValueError(f'"{text}" has {num} points; expected at least 2')
    if first.relative != last.relative:
        raise ValueError(f'"{text}" goes from a factor to a value; write one kind')
    for end in (first.value, last.value):
        if end == 0 or math.isinf(end):
            raise ValueError(
                f'"{text}" is geometric, so it cannot end at {end:g}; give that value beside the '
                f"range, e.g. {name}=0ms,1ms..100ms:5"
            )
    ratio = (last.value / first.value) ** (1 / (num - 1))
    inner = [first.value * ratio**i for i in range(1, num - 1)]
    return [
        Amount(value=value, relative=first.relative) for value in (first.value, *inner, last.value)
    ]


def _parse_value(name: str, text: str) -> Amount:
    if not text.endswith("x"):
        return Amount(value=float(KINDS[name].parse(text)))
    if name not in NETWORK_VARIABLES:
        raise ValueError(f'"{text}" is a factor; {name} takes whole numbers, {_example(name)}')
    try:
        value = float(text[:-1])
    except ValueError:
        raise ValueError(f'"{text}" is not a factor; write e.g. 0.5x') from None
    if not (0 <= value < math.inf) or (value == 0 and name == "bandwidth"):
        raise ValueError(f'"{text}" is not a positive factor; write e.g. 0.5x')
    return Amount(value=value, relative=True)


def _example(name: str) -> str:
    examples = {
        "bandwidth": "bandwidth=1Gbit,5Gbit or bandwidth=0.1x..10x:9",
        "delay": "delay=1ms,10ms or delay=0.5x,2x",
    }
    return examples.get(name, f"{name}=8,16,32 or {name}=8..64:4")


def write_factor(value: float) -> str:
    """E.g. `0.316x`."""
    return f"{float(f'{value:.{DIGITS}g}'):g}x"


def _spread(numbers: Sequence[float]) -> bool:
    """Whether values are better seen on a logarithmic axis: three or more, over a decade."""
    positive = [number for number in numbers if number > 0]
    return len(positive) > 2 and max(positive) >= 10 * min(positive)
