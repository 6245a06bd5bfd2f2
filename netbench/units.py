"""Parse and format quantities such as `1.12Gbit`, `11ms`, `8MiB`, `64M` and `0.1%`.

Parsers return SI numbers; they raise ValueError with the text found and an example. Formatted text
parses back to the same number. Bandwidth is decimal and in bits, as in `tc`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

UNLIMITED = ("inf", "unlimited")

_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """Kind of value: its units (name -> factor, ascending) and the values it accepts.

    least, most: limits in the base unit. aliases: other spellings of a unit. zero: accept 0.
    unlimited: accept `inf`. bare: accept a number without a unit. families: number of largest
    fitting units that formatting tries, to take the shortest text (bytes have units of 1000 and of
    1024; 65 s is not 1.08333 min).
    """

    name: str
    example: str
    units: Mapping[str, Decimal]
    most: float
    least: float = 0.0
    aliases: Mapping[str, str] = field(default_factory=dict)
    zero: bool = True
    unlimited: bool = False
    bare: bool = False
    families: int = 1

    def parse(self, text: str) -> float:
        """Return the value in the base unit; `inf` and `unlimited` are inf where accepted."""
        return float(self._exact(text))

    def parse_whole(self, text: str) -> int:
        """Return a whole number of the base unit."""
        value = self._exact(text)
        if value != value.to_integral_value():
            raise ValueError(f'"{text}" is not a whole number; write e.g. "{self.example}"')
        return int(value)

    def format(self, value: float, digits: int | None = None) -> str:
        """Return the shortest text of a value. digits: significant digits; None = all."""
        if value == float("inf"):
            return "unlimited"
        exact = Decimal(repr(value))
        if digits is not None and exact:
            exact = round(exact, digits - 1 - exact.adjusted())
        units = [(unit, factor) for unit, factor in self.units.items() if factor <= exact]
        if not exact:
            units = [(unit, factor) for unit, factor in self.units.items() if factor == 1]
        units = units[-self.families :] or list(self.units.items())[:1]
        written = [_written(exact / factor) + unit for unit, factor in reversed(units)]
        return min(written, key=len)

    def _exact(self, text: str) -> Decimal:
        """Return the value in the base unit, as a Decimal: 11ms must become the float 0.011."""
        stripped = text.strip()
        if self.unlimited and stripped in UNLIMITED:
            return Decimal("inf")
        match = _NUMBER.fullmatch(stripped)
        hint = f'write e.g. "{self.example}"' + (' or "unlimited"' if self.unlimited else "")
        if match is None:
            raise ValueError(f'"{text}" is not a {self.name}; {hint}')
        number, unit = Decimal(match[1]), self.aliases.get(match[2], match[2])
        if not unit and not self.bare:
            unit = re.sub(r"^[\d.]+", "", self.example)
            raise ValueError(f'"{text}" has no unit; write e.g. "{match[1].lstrip("+-")}{unit}"')
        if unit not in self.units:
            known = ", ".join(name for name in self.units if name)
            raise ValueError(f'"{text}" has an unknown unit "{match[2]}"; expected one of {known}')
        if number < 0:
            raise ValueError(f'"{text}" is negative; {hint}')
        if number == 0 and not self.zero:
            raise ValueError(f'"{text}" is zero; a {self.name} must be positive, {hint}')
        factor = self.units[unit]  # a product could overflow
        if number > Decimal(self.most) / factor:
            raise ValueError(f'"{text}" is too large; at most {self.format(self.most)}')
        if 0 < number < Decimal(repr(self.least)) / factor:
            raise ValueError(f'"{text}" is too small; at least {self.format(self.least)}')
        return number * factor


def _decimal(suffix: str, prefixes: str) -> dict[str, Decimal]:
    """Units in powers of 1000; `prefixes` has one letter per power, the first for 1000."""
    return {suffix: Decimal(1)} | {
        prefix + suffix: Decimal(1000) ** power for power, prefix in enumerate(prefixes, 1)
    }


BANDWIDTH = Quantity(
    name="bandwidth",
    example="1.12Gbit",
    units=_decimal("bit", "KMGT"),
    least=1e3,
    most=1e15,
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
    least=1e-15,
    most=366 * 24 * 3600.0,
    aliases={"µs": "us"},
    families=2,
)
DELAY = replace(TIME, most=60.0)
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
    most=1e15,
    aliases={"kB": "KB"},
    families=2,
)
FLOPS = Quantity(
    name="speed",
    example="55TFLOPS",
    units=_decimal("FLOPS", "KMGTP"),
    least=1e6,
    most=1e18,
    aliases={"FLOP/s": "FLOPS"} | {f"{p}FLOP/s": f"{p}FLOPS" for p in "KMGTP"},
    zero=False,
)
MEMORY_SPEED = Quantity(
    name="speed of memory",
    example="900GB/s",
    units=_decimal("B/s", "KMGT"),
    least=1e3,
    most=1e18,
    zero=False,
)
COUNT = Quantity(
    name="count",
    example="24",
    units=_decimal("", "KMGT"),
    most=1e15,
    aliases={"k": "K", "B": "G"},
    bare=True,
)
PERCENT = Quantity(
    name="percentage", example="0.1%", units={"%": Decimal("0.01")}, least=1e-12, most=1.0
)


parse_bandwidth, format_bandwidth = BANDWIDTH.parse, BANDWIDTH.format
"""Bit/s, e.g. 1.12Gbit."""

parse_time, format_time = TIME.parse, TIME.format
"""Seconds, e.g. 11ms."""

parse_delay = DELAY.parse
"""Seconds, of a link."""

parse_bytes, format_bytes = BYTES.parse_whole, BYTES.format
"""Bytes, e.g. 8MiB; formatted in the shorter of units of 1000 and of 1024."""

parse_count, format_count = COUNT.parse_whole, COUNT.format
"""A whole number, e.g. 64M or 24."""

parse_flops, format_flops = FLOPS.parse, FLOPS.format
"""FLOP/s, e.g. 55TFLOPS."""

parse_memory_speed, format_memory_speed = MEMORY_SPEED.parse, MEMORY_SPEED.format
"""Bytes/s, e.g. 900GB/s."""

parse_percent, format_percent = PERCENT.parse, PERCENT.format
"""A fraction from 0 to 1 as a percentage, e.g. 0.1% for 0.001."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Number with its noun, e.g. 1 device, 4 devices. plural: if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def shortened(names: Sequence[str], shown: int = 4) -> str:
    """Join names: `a, b, c, d and 60 more`."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _written(number: Decimal) -> str:
    """Write a number without exponent and trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
