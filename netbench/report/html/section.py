"""A section of a page: a heading, the template that renders it, and its charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from netbench.report.html.charts import Chart


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section of the page, not `netbench.scenario.schema.Section`.

    key: its id on the page. template: file in `templates`. content: what the template reads.
    """

    key: str
    title: str
    template: str
    content: Mapping[str, Any]
    charts: Mapping[str, Chart] = field(default_factory=dict)
