"""The page as text: what it says, what it embeds, and that texts of runs stay texts."""

from __future__ import annotations

import base64
import csv
import dataclasses
import gzip
import html
import io
import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from netbench.records import RunStore, read_run
from netbench.report.html import page
from netbench.report.html.page import render_page
from netbench.report.html.sections import verified
from netbench.report.html.sections.timelines import build as build_timelines
from netbench.report.html.study import study
from tests.report.html.recorded import (
    CASE3,
    HOSTILE,
    check,
    hostile_plan,
    small_plans,
    write_small_run,
)
from tests.runs import ENVIRONMENT

MAX_BYTES = 3_000_000
SIM = dataclasses.replace(ENVIRONMENT, mode="sim", kernel="none", scale=1.0)


@cache
def case3() -> str:
    """Return the page of the recorded run of case 3."""
    return render_page([read_run(CASE3)], command=["netbench", "report", "case3"])


def words(text: str) -> str:
    """Return the text of a page without markup, scripts and style."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def files(text: str) -> dict[str, bytes]:
    """Return the files that a page offers to download, by name."""
    links = re.findall(r'<a download="([^"]*)" href="data:[^;]*;base64,([^"]*)"', text)
    return {html.unescape(name): base64.b64decode(data) for name, data in links}


def test_the_page_of_case3_is_small() -> None:
    """At most 3 MB with the charts' library, all timelines and traces."""
    assert len(case3().encode()) <= MAX_BYTES


def test_every_figure_of_the_table_is_on_the_page() -> None:
    """Published, simulated and emulated times of case 3, and how they differ."""
    text = words(case3())
    for figure in ("18.87 ±0.21", "18.46", "18.56", "-1.6%", "163.4", "161.9"):
        assert figure in text
    assert "11 ms 1.12 Gbit/s" in text  # the matrix of what was asked
    assert "node2 node32 11.7 / 11.7 23.4 / 23.4 1112 / 1112 good" in text  # what was measured
    assert "Collective. 6.51 s of 18.5 s (35%)" in text  # a loss, with its evidence
    assert "Twice the bandwidth between regions" in text  # and its remedy
    assert "netbench run case3" in text
    assert "ad02c7a3c0a7" in text


def test_records_and_traces_are_embedded() -> None:
    """The record file is equal to the byte, so its checks hold; every trace has events."""
    found = files(case3())
    name = CASE3.name
    assert found[f"{name}.jsonl"] == (CASE3 / "records.jsonl").read_bytes()
    lines = json.loads(found[f"{name}.json"])
    assert [line["kind"] for line in lines].count("iteration") == 4
    rows = list(csv.DictReader(io.StringIO(found[f"{name}-iterations.csv"].decode())))
    assert len(rows) == 4
    assert float(rows[0]["forward_s"]) > 0
    traces = [data for file, data in found.items() if file.endswith(".json.gz")]
    assert len(traces) == 4
    assert all(json.loads(gzip.decompress(data))["traceEvents"] for data in traces)


def test_the_page_allows_no_request() -> None:
    """Its policy names the two scripts, and nothing is loaded by address."""
    assert "default-src 'none'; script-src 'sha256-" in html.unescape(case3())
    markup = re.sub(r"<script>.*?</script>", "", case3(), flags=re.DOTALL)
    assert re.findall(r'\bsrc="', markup) == []
    assert set(re.findall(r'href="(https?:[^"]*)"', markup)) == {"https://ui.perfetto.dev"}


def test_texts_of_runs_are_escaped(tmp_path: Path) -> None:
    """Names of regions, nodes and scenarios, reasons, hosts and commands come from others."""
    environment = dataclasses.replace(ENVIRONMENT, machine=f"host {HOSTILE}")
    run = write_small_run(
        tmp_path,
        {hostile_plan(): [1.0, 1.1]},
        checks=[check(0.5)],
        reasons=[f"reason {HOSTILE}"],
        environment=environment,
        command=["netbench", "run", HOSTILE],
    )
    text = render_page([run])
    assert "<img" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "</script><script>window" not in text
    assert html.unescape(text).count(f"reason {HOSTILE}") >= 1
    assert f"{HOSTILE}A" in words(text) or "hacked" in words(text)


def test_an_untrustworthy_run_says_so_before_any_figure(tmp_path: Path) -> None:
    """The reasons are beneath the title."""
    plan = small_plans()[0]
    run = write_small_run(tmp_path, {plan: [1.2345]}, checks=[check(0.5)], reasons=["too slow"])
    text = words(render_page([run], traces=False))
    assert text.index("Not trustworthy.") < text.index("too slow") < text.index("1.234")
    assert "1 of them outside" in text


def test_bandwidths_are_those_of_the_scenario_at_every_scale(tmp_path: Path) -> None:
    """1 Gbit/s measured at scales 200 and 1000; a probe of old has the scale of its run, 1000."""
    plan = small_plans()[0]
    run = write_small_run(tmp_path, {plan: [1.0]})
    with RunStore.open(run.path) as store:
        for scale, goodput_bps in ((200.0, 5e6), (1000.0, 1e6), (None, 2e6)):
            link = check(quantity="goodput_bps", expected=goodput_bps)
            known = {} if scale is None else {"scale": scale}
            store.append_probe(
                {"tolerance": 0.02, "checks": [asdict(link)], "reasons": [], **known}
            )
    networks = [*verified._networks(study(read_run(run.path), "run"))]
    assert [each.expected for (each,) in networks] == [1e9, 2e9]
    assert [each.measured for (each,) in networks] == [1e9, 2e9]


def test_a_simulated_run_varies_what_its_sweep_varies(tmp_path: Path) -> None:
    """Two batches are a sweep; no network was shaped, so none was verified."""
    plan, other, larger = small_plans()
    run = write_small_run(tmp_path, {plan: [1.0], other: [1.1], larger: [2.0]}, environment=SIM)
    text = words(render_page([run], traces=False))
    assert "Across batches" in text
    assert "Asked against measured network" not in text
    assert "a simulation" in text.lower()


def test_plans_that_cannot_be_read_leave_their_times(tmp_path: Path) -> None:
    """The page says which sections it lacks, and why."""
    from tests.runs import CASE3_TIMES, write_run

    run = read_run(write_run(tmp_path, CASE3_TIMES))
    text = words(render_page([run], traces=False))
    assert "16.05 ±0.05" in text
    assert "cannot be read" in text


def test_two_runs_are_compared_with_the_first(tmp_path: Path) -> None:
    """The comparison stands above both runs."""
    plan = small_plans()[0]
    runs = [
        write_small_run(tmp_path / name, {plan: times_s})
        for name, times_s in (("a", [1.0, 1.01, 0.99]), ("b", [1.2, 1.21, 1.19]))
    ]
    text = words(render_page(runs, traces=False))
    assert "Comparison of the two runs" in text
    assert re.search(r"1\.200 \+20\.0% .* slower", text)
    assert text.index("Comparison of the two") < text.index("Run 1, the baseline")


def test_timelines_unfold_to_the_activity_of_the_ranks(tmp_path: Path) -> None:
    """The integers of a view give the stretches of `explain.activity`, to a millionth."""
    plan = small_plans()[0]
    found = study(write_small_run(tmp_path, {plan: [1.0]}), "run1", traces=False)
    section = build_timelines(found)
    assert section is not None
    (view,) = section.charts["timeline"].views.values()
    (each,) = found.detailed
    assert each.detail is not None
    tick_s = view["timeline"]["tick_s"]
    for row, kind, _, pairs in view["timeline"]["slices"]:
        expected = list(each.detail.activity.values())[row][kind]
        start = 0
        for (from_s, to_s), (step, length) in zip(
            expected.tolist(), zip(pairs[::2], pairs[1::2], strict=True), strict=True
        ):
            start += step
            assert start * tick_s == pytest.approx(from_s, abs=tick_s)
            assert (start + length) * tick_s == pytest.approx(to_s, abs=2 * tick_s)


def test_text_has_contrast_in_both_themes() -> None:
    """At least 4.5 to 1 on the page, as WCAG 2.1 asks of text (success criterion 1.4.3)."""
    style = page._file("page.css")
    themes = re.findall(r"--ink: [^}]*", style)
    assert len(themes) == 3
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for name in ("ink", "muted", "accent", "alarm", "good"):
            assert contrast(colours[name], colours["paper"]) >= 4.5, (name, colours[name])


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.1."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
