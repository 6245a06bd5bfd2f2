"""Quantities as people write them, `1.12Gbit`, `11ms`, `8MiB`, `64M`, `0.1%`, as SI numbers.

Parsers take text and raise ValueError saying what was found and what to write; formatters give
text that parses back to the very same number. Bandwidth is decimal and in bits, as `tc` has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

UNLIMITED = ("inf", "unlimited")

_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A kind of value: its units (name -> factor, ascending) and what is accepted.

    aliases: other spellings of a unit. zero: 0 is a value. unlimited: `inf` is a value.
    bare: the number alone is a value, in the base unit. families: the last so many units that do
    not exceed a value are tried when formatting, and the shortest is taken (bytes have two
    families, of 1000 and 1024; 65 s is not 1.08333 min).
    """

    name: str
    example: str
    units: Mapping[str, Decimal]
    aliases: Mapping[str, str]
    zero: bool = True
    unlimited: bool = False
    bare: bool = False
    families: int = 1


def _decimal(suffix: str, prefixes: str) -> dict[str, Decimal]:
    """Units of powers of 1000: `prefixes` is one letter per power, the first for 1000."""
    return {suffix: Decimal(1)} | {
        prefix + suffix: Decimal(1000) ** power for power, prefix in enumerate(prefixes, 1)
    }


BANDWIDTH = Quantity(
    name="bandwidth",
    example="1.12Gbit",
    units=_decimal("bit", "KMGT"),
    aliases={"kbit": "Kbit", "bit/s": "bit"} | {f"{p}bit/s": f"{p}bit" for p in "KMGT"},
    zero=False,
    unlimited=True,
)
TIME = Quantity(
    name="time",
    example="11ms",
    units={
        "ns": Decimal("1e-9"),
        "us": Decimal("1e-6"),
        "ms": Decimal("1e-3"),
        "s": Decimal(1),
        "min": Decimal(60),
        "h": Decimal(3600),
    },
    aliases={"µs": "us"},
    families=2,
)
BYTES = Quantity(
    name="size",
    example="8MiB",
    units={"B": Decimal(1)}
    | {
        unit: factor
        for power, prefix in enumerate("KMGT", 1)
        for unit, factor in (
            (f"{prefix}B", Decimal(1000) ** power),
            (f"{prefix}iB", Decimal(1024) ** power),
        )
    },
    aliases={"kB": "KB"},
    families=2,
)
FLOPS = Quantity(
    name="speed",
    example="55TFLOPS",
    units=_decimal("FLOPS", "KMGTP"),
    aliases={"FLOP/s": "FLOPS"} | {f"{p}FLOP/s": f"{p}FLOPS" for p in "KMGTP"},
    zero=False,
)
COUNT = Quantity(
    name="count",
    example="24",
    units=_decimal("", "KMGT"),
    aliases={"k": "K", "B": "G"},
    bare=True,
)
PERCENT = Quantity(
    name="share",
    example="0.1%",
    units={"%": Decimal("0.01")},
    aliases={},
)


def parse_bandwidth(text: str) -> float:
    """bit/s; `inf` and `unlimited` are inf. Zero is refused: a link that carries nothing."""
    return _parse(text, BANDWIDTH)


def parse_time(text: str) -> float:
    """Seconds."""
    return _parse(text, TIME)


def parse_bytes(text: str) -> int:
    """Bytes, a whole number."""
    return _whole(text, BYTES)


def parse_count(text: str) -> int:
    """A whole number; a unit is not needed."""
    return _whole(text, COUNT)


def parse_flops(text: str) -> float:
    """FLOP/s."""
    return _parse(text, FLOPS)


def parse_percent(text: str) -> float:
    """A share of 0..1, written in percent."""
    value = _parse(text, PERCENT)
    if value > 1:
        raise ValueError(f'"{text}" is more than 100%')
    return value


def format_bandwidth(bandwidth_bps: float, digits: int | None = None) -> str:
    """E.g. 1.12Gbit. digits: significant ones to keep; None = all, so that it parses back."""
    return _format(bandwidth_bps, BANDWIDTH, digits)


def format_time(seconds: float, digits: int | None = None) -> str:
    """E.g. 11ms."""
    return _format(seconds, TIME, digits)


def format_bytes(size_bytes: float, digits: int | None = None) -> str:
    """E.g. 8MiB: the unit, of 1000 or 1024, that is shorter to write."""
    return _format(size_bytes, BYTES, digits)


def format_count(count: float, digits: int | None = None) -> str:
    """E.g. 64M."""
    return _format(count, COUNT, digits)


def format_flops(flops: float, digits: int | None = None) -> str:
    """E.g. 55TFLOPS."""
    return _format(flops, FLOPS, digits)


def format_percent(share: float, digits: int | None = None) -> str:
    """E.g. 0.1% for 0.001."""
    return _format(share, PERCENT, digits)


def counted(number: int, noun: str, plural: str = "") -> str:
    """E.g. 1 device, 4 devices. plural: where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _parse(text: str, quantity: Quantity) -> float:
    return float(_exact(text, quantity))


def _whole(text: str, quantity: Quantity) -> int:
    value = _exact(text, quantity)
    if value != value.to_integral_value():
        raise ValueError(f'"{text}" is not a whole number; write e.g. "{quantity.example}"')
    return int(value)


def _exact(text: str, quantity: Quantity) -> Decimal:
    """The value in the base unit. Decimal, so that 11ms is the float 0.011 and not a neighbour."""
    stripped = text.strip()
    if quantity.unlimited and stripped in UNLIMITED:
        return Decimal("inf")
    match = _NUMBER.fullmatch(stripped)
    hint = f'write e.g. "{quantity.example}"' + (' or "unlimited"' if quantity.unlimited else "")
    if match is None:
        raise ValueError(f'"{text}" is not a {quantity.name}; {hint}')
    number, unit = Decimal(match[1]), quantity.aliases.get(match[2], match[2])
    if not unit and not quantity.bare:
        unit = re.sub(r"^[\d.]+", "", quantity.example)
        raise ValueError(f'"{text}" has no unit; write e.g. "{match[1].lstrip("+-")}{unit}"')
    if unit not in quantity.units:
        known = ", ".join(name for name in quantity.units if name)
        raise ValueError(f'"{text}" has an unknown unit "{match[2]}"; expected one of {known}')
    if number < 0:
        raise ValueError(f'"{text}" is negative; {hint}')
    if number == 0 and not quantity.zero:
        raise ValueError(f'"{text}" is zero; a {quantity.name} must be positive, {hint}')
    value = number * quantity.units[unit]
    if float(value) == float("inf"):
        raise ValueError(f'"{text}" is too large; {hint}')
    return value


def _format(value: float, quantity: Quantity, digits: int | None) -> str:
    if value == float("inf"):
        return "unlimited"
    exact = Decimal(repr(value))
    if digits is not None and exact:
        exact = round(exact, digits - 1 - exact.adjusted())
    units = [(unit, factor) for unit, factor in quantity.units.items() if factor <= exact]
    if not exact:
        units = [(unit, factor) for unit, factor in quantity.units.items() if factor == 1]
    units = units[-quantity.families :] or list(quantity.units.items())[:1]
    written = [_written(exact / factor) + unit for unit, factor in reversed(units)]
    return min(written, key=len)


def _written(number: Decimal) -> str:
    """Plain decimals, no exponent, no trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
