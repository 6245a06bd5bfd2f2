"""The page: all sections of one run or of several, as one HTML file without requests."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from netbench.records import Run
from netbench.report.html.charts import vega_script
from netbench.report.html.section import Section
from netbench.report.html.sections import (
    asked,
    breakdown,
    collectives,
    downloads,
    links,
    provenance,
    sweeps,
    timelines,
    times,
    verified,
    versus,
)
from netbench.report.html.study import Study, study
from netbench.report.html.summary import page_title, summary
from netbench.version import __version__

SECTIONS: tuple[Callable[[Study], Section | None], ...] = (
    times.build,
    collectives.build,
    sweeps.build,
    asked.build,
    verified.build,
    breakdown.build,
    timelines.build,
    links.build,
    provenance.build,
    downloads.build,
)
"""Sections of a run, in order."""


def render_page(
    runs: Sequence[Run],
    *,
    command: Sequence[str] = (),
    traces: bool = True,
    watch: Callable[[str], None] = lambda _: None,
) -> str:
    """Return the page of one run, or of several with the first as the baseline.

    command: printed as what makes the page again. traces: attach traces for Perfetto. watch: told
    what is under way. Raises RecordError for a run without iterations.
    """
    studies = []
    for place, run in enumerate(runs):
        watch(f"simulating the plans of {run.run_id}")
        studies.append(study(run, f"run{place + 1}", traces=traces))
    watch("drawing charts")
    sections = [list(_sections(each)) for each in studies]
    comparisons = versus.build(studies)
    charts = {
        chart.key: chart.data
        for section in itertools.chain(comparisons, *sections)
        for chart in section.charts.values()
    }
    scripts = {"vega": vega_script(), "page": _file("page.js")}
    template = _environment().get_template("page.html")
    return template.render(
        title=page_title(studies),
        chapters=[
            {"head": summary(each), "sections": some}
            for each, some in zip(studies, sections, strict=True)
        ],
        comparisons=comparisons,
        data=Markup(_embedded(charts)),
        scripts={name: Markup(text) for name, text in scripts.items()},
        hashes=" ".join(f"'sha256-{_sha256(text)}'" for text in scripts.values()),
        style=Markup(_file("page.css")),
        command=shlex.join(command),
        version=__version__,
    )


def _sections(each: Study) -> Iterator[Section]:
    for build in SECTIONS:
        section = build(each)
        if section is not None:
            yield section


def _environment() -> Environment:
    """Return the templates' environment: all text is escaped, a missing value is an error."""
    return Environment(
        loader=PackageLoader("netbench.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _file(name: str) -> str:
    folder = resources.files("netbench.report.html") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def _embedded(data: Any) -> str:
    """Return JSON that ends no `<script>` element, whatever texts it has."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
