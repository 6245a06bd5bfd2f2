"""`results/README.md`: every published table, simulated and emulated times beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from netbench.errors import RecordError
from netbench.records import FILE_NAME, Run, read_run
from netbench.report.anomalies import anomalies_markdown
from netbench.report.comparison import compare, run_source
from netbench.report.grid import Grid, markdown
from netbench.report.predictions import predictions_markdown
from netbench.report.published import CASES, Sample, reproduced, sample
from netbench.report.run import run_markdown
from netbench.report.simulated import (
    PLACED_NAME,
    placed_seconds,
    simulated_markdown,
    simulated_sample,
    simulated_settings,
)
from netbench.report.tables import (
    NOTABLE,
    honest_efficiencies,
    printed_times,
    reproduced_efficiencies,
    setting_name,
    spread_text,
)

RECORDED = "recorded"
"""Folder of `results` with the runs that are kept in the repository."""

GLANCE = (24, 1024)
"""Layers and batch of the summary: the smallest setting, which every column has."""

GLANCE_VARIANTS = ("megatron-p8", "dtfm-random", "dtfm-scheduled", "zero3")
OWN_ROW = "dtfm, netbench placement"
"""How a recorded run names the row of what netbench's scheduler placed."""

INTRO = """\
<!-- Written by `netbench reproduce` (`make reproduce-table`); edit netbench/report instead. -->

# Results

Training GPT-XL on 64 V100s over five networks, and other models on smaller ones: the published
figures, and beside them what netbench simulated and emulated. Published figures are from the
experiment notes of *Decentralized Training of Foundation Models in Heterogeneous Environments*
(Yuan et al., NeurIPS 2022); the data, and what each file is, are in
[published/](published/README.md).
"""

READING = """\
## How to read the tables

- `L24 B1024` is a model of 24 layers trained with a global batch of 1024 sequences of 2048 tokens.
- *Iteration time* is seconds per iteration, as printed, one column per seed.
- *Efficiency* is work over time, in PFLOPS. {same} of {total} printed cells are reproduced here
  from the times, to the last digit, each with the [estimator](#anomalies) of its column.
- *Mean over the seeds* puts the honest mean beside each printed cell: work over the mean time, ±
  half the range of the seeds. **Bold**: the printed figure is more than {notable} away.
- *Simulated* times come from `netbench.simulator`, the model of these runs as flows over links.
- *Emulated* times come from runs of netbench over a real TCP stack and `tc netem`, with compute
  modelled by a [device profile](../netbench/workload/profiles), which says what it is derived
  from. Beneath each table is where it ran, and whether its network was as asked for.
"""

NO_RUN = """\
No run of this case has been recorded. To make one: `netbench run {case}`, then copy its folder from
`results/` to `results/recorded/` and `make reproduce-table`."""


def results_markdown(results: Path) -> str:
    """The whole file, from the published figures, `results/simulated` and the runs in
    `results/recorded`.

    The same input gives the same bytes. Raises RecordError for a file that cannot be read, and if
    a printed cell is not reproduced.
    """
    same, total = reproduced()
    if same != total:
        raise RecordError(
            f"only {same} of {total} printed efficiency cells follow from the published times; "
            "a file in results/published was changed: restore it"
        )
    runs = recorded_runs(results / RECORDED)
    others = [name for name in runs if name not in CASES]
    sections = [
        INTRO,
        _contents(others),
        _glance(results, runs),
        READING.format(same=same, total=total, notable=f"{NOTABLE:.0%}"),
        f"## Simulated\n\n{simulated_markdown(results)}",
        f"## Predictions\n\n{predictions_markdown(results)}",
        *(_case(case, runs.get(case, ())) for case in CASES),
        *(_other(name, runs[name]) for name in others),
        f"## Anomalies\n\n{ANOMALIES}\n{anomalies_markdown()}\n",
    ]
    return "\n".join(sections)


ANOMALIES = """\
What a reader of the published tables should know. *Computed* findings follow from the files in
[published/](published/README.md); *notes* are what the experiment notes and scripts tell.
"""


def recorded_runs(folder: Path) -> dict[str, list[Run]]:
    """The runs in a folder by scenario, sorted by the name of their folder."""
    runs: dict[str, list[Run]] = {}
    for path in sorted(folder.glob(f"*/{FILE_NAME}")):
        run = read_run(path)
        if run.records:
            runs.setdefault(run.records[0].scenario, []).append(run)
    return dict(sorted(runs.items()))


def _contents(others: Sequence[str]) -> str:
    titles = [
        "At a glance",
        "How to read the tables",
        "Simulated",
        "Predictions",
        *(_case_title(case) for case in CASES),
        *(_other_title(name) for name in others),
        "Anomalies",
    ]
    return "\n".join(f"- [{title}](#{_anchor(title)})" for title in titles) + "\n"


def _glance(results: Path, runs: dict[str, list[Run]]) -> str:
    layers, batch = GLANCE
    simulated, placed = simulated_settings(results), placed_seconds(results)
    last = (PLACED_NAME,) if placed else ()
    rows = []
    for case, about in CASES.items():
        published = [sample(case, variant, layers, batch) for variant in GLANCE_VARIANTS]
        rows.append((case, about.title, "published", *map(_time, published), *("-" for _ in last)))
        if simulated is not None:
            times = [simulated_sample(simulated, case, v, layers, batch) for v in GLANCE_VARIANTS]
            ours = [_single(placed.get((case, layers, batch))) for _ in last]
            rows.append(("", "", "simulated", *map(_time, [*times, *ours])))
        for run in runs.get(case, ())[-1:]:
            found = {(c.name, c.layers, c.batch): c.found for c in compare(run)}
            names = (*GLANCE_VARIANTS, *(OWN_ROW for _ in last))
            times = [found.get((name, layers, batch)) for name in names]
            rows.append(("", "", run_source(run), *map(_time, times)))
    grid = Grid(
        head=("Case", "Network", "Source", *GLANCE_VARIANTS, *last), rows=tuple(rows), num_labels=3
    )
    return (
        "## At a glance\n\n"
        f"Seconds per iteration at {setting_name(layers, batch)}, mean ± half the range:\n\n"
        f"{markdown(grid)}\n"
    )


def _single(time_s: float | None) -> Sample | None:
    if time_s is None:
        return None
    return Sample(mean_s=time_s, min_s=time_s, max_s=time_s, num=1)


def _time(times: Sample | None) -> str:
    return spread_text(times) if times else "-"


def _case(case: str, runs: Sequence[Run]) -> str:
    emulated = "\n\n".join(run_markdown(run) for run in runs) or NO_RUN.format(case=case)
    return f"""\
## {_case_title(case)}

{CASES[case].hardware}

### Emulated beside published

{emulated}

### Iteration time (s)

{markdown(printed_times(case))}

### Efficiency (PFLOPS)

{markdown(reproduced_efficiencies(case))}

### Efficiency (PFLOPS), mean over the seeds

{markdown(honest_efficiencies(case))}
"""


def _other(name: str, runs: Sequence[Run]) -> str:
    tables = "\n\n".join(run_markdown(run) for run in runs)
    return f"## {_other_title(name)}\n\n{tables}\n"


def _case_title(case: str) -> str:
    return f"Case {case.removeprefix('case')}: {CASES[case].title}"


def _other_title(name: str) -> str:
    return f"Scenario {name}"


def _anchor(title: str) -> str:
    """GitHub's id of a heading: lower case, punctuation gone, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
