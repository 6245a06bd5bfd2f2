"""Parse `netbench sweep --vary`: `bandwidth=0.1x..10x:9`, `delay=1ms,10ms`, `batch=64,128`."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from netbench import units
from netbench.errors import nearest
from netbench.limits import MAX_FACTOR, MAX_POINTS
from netbench.plan.what_if import Amount
from netbench.report.tables.sweep import Axis

DIGITS = 3
"""Significant digits of a range's inner values in text; computation uses all digits."""

NETWORK_VARIABLES = ("bandwidth", "delay")

_RANGE = re.compile(r"(?P<first>.+)\.\.(?P<last>.+):(?P<num>\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable(Axis):
    """Variable of a sweep with its values. relative: values are factors on the scenario's."""

    name: str
    relative: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class VariableKind:
    """Parser and formatter of a variable's values. title, key: as in `Axis`."""

    parse: Callable[[str], float]
    write: Callable[[float], str]
    title: str
    key: str


VARIABLES = {
    "bandwidth": VariableKind(
        parse=units.parse_bandwidth,
        write=lambda value: units.format_bandwidth(value, DIGITS),
        title="bandwidth",
        key="bandwidth_bps",
    ),
    "delay": VariableKind(
        parse=units.parse_delay,
        write=lambda value: units.format_time(value, DIGITS),
        title="one-way delay",
        key="one_way_delay_s",
    ),
    **{
        name: VariableKind(
            parse=units.parse_count,
            write=lambda count: f"{count:.0f}",
            title=name,
            key=name.replace("-", "_"),
        )
        for name in ("batch", "layers", "micro-batch")
    },
}


def parse_vary(text: str) -> Variable:
    """Parse `NAME=VALUE,...`: values with units, factors (`0.1x`), geometric ranges (`a..b:n`)."""
    name, equals, rest = text.partition("=")
    if name not in VARIABLES:
        raise ValueError(f'"{name}" cannot be varied; {nearest(name, VARIABLES)}')
    if not equals or not rest:
        raise ValueError(f"{name} has no values; write e.g. {_example(name)}")
    parts = [part.strip() for part in rest.split(",")]
    if again := [part for i, part in enumerate(parts) if part in parts[:i]]:
        raise ValueError(f'"{again[0]}" is given twice; keep one of the two')
    found = [_parse_part(name, part) for part in parts]
    relative = {amount.relative for part in found for amount in part}
    if len(relative) > 1:
        raise ValueError(f'"{rest}" mixes factors with values; write either')
    numbers = [amount.value for part in found for amount in part]
    if name not in NETWORK_VARIABLES:
        numbers = [float(round(number)) for number in numbers]
        if min(numbers) < 1:
            raise ValueError(f"{name} is {min(numbers):g}; expected a positive whole number")
    numbers = list(dict.fromkeys(numbers))
    kind, by_factors = VARIABLES[name], True in relative
    write = write_factor if by_factors else kind.write
    return Variable(
        name=name,
        title=kind.title,
        key=f"{name}_factor" if by_factors else kind.key,
        relative=by_factors,
        geometric=any(len(part) > 1 for part in found) or _is_wide(numbers),
        values=tuple(numbers),
        texts=tuple(write(number) for number in numbers),
    )


def _parse_part(name: str, text: str) -> list[Amount]:
    """Parse one value or a geometric range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        if ".." in text:
            raise ValueError(f'"{text}" has no number of values; write e.g. "{text}:5"')
        return [_parse_value(name, text)]
    first, last = _parse_value(name, match["first"]), _parse_value(name, match["last"])
    num = int(match["num"])
    if not 2 <= num <= MAX_POINTS:
        raise ValueError(f'"{text}" has {num} points; expected 2 to {MAX_POINTS}')
    if first.relative != last.relative:
        raise ValueError(f'"{text}" mixes a factor with a value; write either')
    for end in (first.value, last.value):
        if end == 0 or math.isinf(end):
            raise ValueError(
                f'"{text}" is geometric, so it cannot end at {end:g}; write that value before the '
                f"range, e.g. {name}=0ms,1ms..100ms:5"
            )
    ratio = (last.value / first.value) ** (1 / (num - 1))
    inner = [first.value * ratio**i for i in range(1, num - 1)]
    return [
        Amount(value=value, relative=first.relative) for value in (first.value, *inner, last.value)
    ]


def _parse_value(name: str, text: str) -> Amount:
    if not text.endswith("x"):
        return Amount(value=float(VARIABLES[name].parse(text)))
    if name not in NETWORK_VARIABLES:
        raise ValueError(f'"{text}" is a factor; {name} takes whole numbers, {_example(name)}')
    try:
        value = float(text[:-1])
    except ValueError:
        raise ValueError(f'"{text}" is not a factor; write e.g. 0.5x') from None
    if not (0 <= value <= MAX_FACTOR) or (value < 1 / MAX_FACTOR and name == "bandwidth"):
        raise ValueError(f'"{text}" is not a factor up to {MAX_FACTOR:.0f}; write e.g. 0.5x')
    return Amount(value=value, relative=True)


def _example(name: str) -> str:
    examples = {
        "bandwidth": "bandwidth=1Gbit,5Gbit or bandwidth=0.1x..10x:9",
        "delay": "delay=1ms,10ms or delay=0.5x,2x",
    }
    return examples.get(name, f"{name}=8,16,32 or {name}=8..64:4")


def write_factor(value: float) -> str:
    """Format a factor, e.g. `0.316x`."""
    return f"{float(f'{value:.{DIGITS}g}'):g}x"


def _is_wide(numbers: Sequence[float]) -> bool:
    """Return true if values suit a logarithmic axis: three or more, over at least a decade."""
    positive = [number for number in numbers if number > 0]
    return len(positive) > 2 and max(positive) >= 10 * min(positive)
