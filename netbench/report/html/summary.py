"""The head of a run: what it is, what it found, and whether it can be trusted."""

from __future__ import annotations

import statistics
from typing import Any

from netbench.report.html.sections.times import prediction_error
from netbench.report.html.study import Study
from netbench.report.numbers import seconds_text
from netbench.report.page.published import CASES, case_title
from netbench.report.tables.comparison import Comparison, run_source
from netbench.report.tables.run import MODE_WORDS, TRUSTED, provenance
from netbench.units import counted, shortened


def summary(study: Study) -> dict[str, Any]:
    """Return what the template shows above the sections of a run."""
    run, source = study.run, run_source(study.run)
    session = run.sessions[-1]
    scenario, verdict = run.records[0].scenario, provenance(run)[-1]
    return {
        "key": study.key,
        "run_id": run.run_id,
        "title": case_title(scenario) if scenario in CASES else scenario,
        "scenario": scenario,
        "source": source,
        "date": run.sessions[0].created[:10],
        "where": MODE_WORDS[session.environment.mode],
        "host": session.environment.machine,
        "facts": _facts(study, source),
        "reasons": run.shared_reasons,
        "is_finished": bool(run.verdicts),
        "verdict": verdict,
        "is_trusted": verdict.startswith(TRUSTED),
    }


def _facts(study: Study, source: str) -> list[dict[str, str]]:
    """Return a few figures with their meaning: what a reader asks first."""
    rows = [row for row in study.rows if row.found]
    if not rows:
        plans = counted(len(study.collectives), "operation")
        return [{"value": plans, "label": "timed"}] if study.collectives else []
    setting = rows[0].setting
    of_setting = sorted(
        (row for row in rows if row.setting == setting), key=lambda row: _mean_s(row)
    )
    best, worst = of_setting[0], of_setting[-1]
    facts = [{"value": f"{seconds_text(_mean_s(best))} s", "label": _best_label(best, rows)}]
    if len(of_setting) > 1:
        factor = _mean_s(worst) / _mean_s(best)
        label = f"time of {worst.name}, the slowest, over the fastest"
        facts.append({"value": f"{factor:.3g}×", "label": label})
    errors = [abs(row.error) for row in rows if row.error is not None]
    if errors:
        facts.append(
            {
                "value": f"{statistics.fmean(errors):.1%}",
                "label": f"mean difference between {source} and published, "
                f"{counted(len(errors), 'row')}",
            }
        )
    differences = [abs(error) for row in rows if (error := prediction_error(row)) is not None]
    if differences:
        facts.append(
            {
                "value": f"{statistics.fmean(differences):.1%}",
                "label": f"mean difference between simulated and {source}",
            }
        )
    return facts


def _best_label(best: Comparison, rows: list[Comparison]) -> str:
    where = f" in setting {best.setting}" if len({row.setting for row in rows}) > 1 else ""
    return f"per iteration with {best.name}, the fastest{where}"


def _mean_s(row: Comparison) -> float:
    assert row.found is not None
    return row.found.mean_s


def page_title(studies: list[Study]) -> str:
    """Return the title of the page."""
    scenarios = list(dict.fromkeys(each.run.records[0].scenario for each in studies))
    names = shortened([case_title(name) if name in CASES else name for name in scenarios])
    return f"{names}: {counted(len(studies), 'run')}" if len(studies) > 1 else names
