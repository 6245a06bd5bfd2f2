"""Charts of a page: Vega-Lite, compiled to Vega, and the script that draws it without a network.

Colours of text and lines are signals, which the page sets for its light or dark theme. Data are
Okabe and Ito's palette, for colour-blind people.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import altair
import vl_convert

VEGA_LITE = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
"""Version of the language, e.g. 6.4."""

BLUE, SKY, GREEN, ORANGE, RED, PINK, GREY = (
    "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#8d959d",
)  # fmt: skip

SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY)
"""Colours of lines, in order. Shapes of points tell lines of one colour apart."""

SOURCES: Mapping[str, tuple[str, str]] = {
    "published": (GREY, "square"),
    "simulated": (ORANGE, "diamond"),
    "emulated": (BLUE, "circle"),
    "measured": (GREEN, "triangle-up"),
}
"""Colour and shape by source of a time."""

INK, MUTED, RULE, PAPER = ({"expr": name} for name in ("ink", "muted", "rule", "paper"))
"""Colours that follow the theme."""

THEME = (
    {"name": "ink", "value": "#1d2733"},
    {"name": "muted", "value": "#5b6772"},
    {"name": "rule", "value": "#e3e9ee"},
    {"name": "paper", "value": "#ffffff"},
    {"name": "pale", "value": "#e8ebee"},
    {"name": "warm", "value": "#f3d9cf"},
)
"""Signals of every chart, with their values on light paper."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

CONFIG: Mapping[str, Any] = {
    "background": None,
    "font": FONT,
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": MUTED,
        "gridColor": RULE,
        "domainColor": RULE,
        "tickColor": RULE,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 220,
        "ticks": False,
        "domain": False,
        "labelPadding": 6,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "symbolStrokeWidth": 1.5,
        "orient": "top",
        "title": None,
    },
    "header": {"labelColor": INK, "titleColor": MUTED},
    "title": {"color": INK, "anchor": "start", "fontWeight": "normal", "fontSize": 13},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": MUTED},
}

LEAST_LOG = 5.0
"""Ratio of the longest to the shortest time above which an axis is logarithmic."""

NARROW = 420
"""Width of a chart on a phone, pixels: axes leave more room for text, and legends have rows."""

SNIPPET = "window.netbenchEmbed = vegaEmbed;"
"""The script's own code. The bundle without vegaEmbed lacks what vegaEmbed calls `vega`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart of the page.

    key: of its element. alt: says what it shows, for those who cannot see it. spec: Vega. views:
    what a `<select>` of the page chooses from, by name: values of datasets and signals, and `alt`.
    canvas: drawn in one piece, for charts of thousands of marks. zooms: its x axis spans the
    signals `from_s` and `to_s`.
    """

    key: str
    alt: str
    spec: Mapping[str, Any]
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    canvas: bool = False
    zooms: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """Return what the script of the page reads."""
        return {
            "spec": self.spec,
            "views": list(self.views.values()),
            "canvas": self.canvas,
            "zooms": self.zooms,
        }


def compiled(chart: altair.TopLevelMixin) -> dict[str, Any]:
    """Return the Vega of a chart, in the style of the page."""
    spec = chart.to_dict()
    spec["config"] = CONFIG
    spec["params"] = [*spec.get("params", ()), *THEME]
    return dict(vl_convert.vegalite_to_vega(spec, vl_version=VEGA_LITE))


@cache
def vega_script() -> str:
    """Return vega-embed with all that it needs, as one script without imports."""
    script: str = vl_convert.javascript_bundle(SNIPPET, vl_version=VEGA_LITE)
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def needs_log(values: Iterable[float]) -> bool:
    """Return true if the values differ by more than a linear axis from zero can show."""
    found = [value for value in values if value > 0]
    return bool(found) and max(found) > LEAST_LOG * min(found)


def rounded(value: float, digits: int = 6) -> float | None:
    """Return a value with few digits, for a short page; None if it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
