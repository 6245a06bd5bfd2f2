"""All generated pages of `results/`, and the front page, `README.md`, which sums them up."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from netbench.errors import RecordError
from netbench.records import FILE_NAME, Run, read_run
from netbench.report.numbers import seconds_text
from netbench.report.page.accuracy import (
    CLOSE,
    FAR,
    FITTED,
    NOT_FITTED,
    PREDICTED,
    RIGHT_ORDER_GOAL,
    accuracy,
    far_columns,
    far_markdown,
    mean_absolute_error,
    of_cases,
    order_list,
    order_text,
    orders,
)
from netbench.report.page.anomalies import anomalies_page
from netbench.report.page.blind import predictions
from netbench.report.page.case import case_page
from netbench.report.page.emulated import FILE as EMULATED
from netbench.report.page.emulated import emulated_csv, emulated_page
from netbench.report.page.fluidstack import fluidstack_page
from netbench.report.page.ledger import check_registered, ledger_page
from netbench.report.page.multicloud.data import PREFIX as CLOUDS
from netbench.report.page.multicloud.data import experiments
from netbench.report.page.multicloud.page import multicloud_page
from netbench.report.page.predictions import predictions_page
from netbench.report.page.published import CASES, KEY, case_title, reproduced, settings
from netbench.report.page.simulated import (
    FOLDER,
    NOT_SIMULATED,
    PICTURE,
    PLACED_NAME,
    all_settings,
    placed_seconds,
    simulated_settings,
)
from netbench.report.page.under_tc.emulated import FILE as EMULATED_SMALL
from netbench.report.page.under_tc.emulated import emulated_cells_csv
from netbench.report.page.under_tc.page import under_tc_page
from netbench.report.page.under_tc.small import NAME as SMALL_CELLS
from netbench.report.tables.comparison import compare, run_source
from netbench.report.tables.grid import Grid, markdown

RECORDED = "recorded"
"""Folder of `results` with the runs that are kept in the repository."""

HEADER = """\
<!-- Written by `netbench reproduce` (`make reproduce-table`); edit netbench/report instead. -->

"""


GLANCE = (24, 1024)
"""Layers and batch of the summary: the smallest setting, which every case and system has."""

GLANCE_VARIANTS = ("megatron-p8", "dtfm-random", "dtfm-scheduled", "zero3")

PLACED_ROW = "dtfm, netbench placement"
"""Name of the row that netbench's scheduler placed, in a recorded run."""

INTRO = """\
# Results

netbench predicts how fast distributed training runs on a network. This page shows how well it does.
The reference is a set of published times: GPT-XL trained on 64 V100 GPUs over five networks, called
cases ([data](published/README.md), from the experiment notes of *Decentralized Training of
Foundation Models in Heterogeneous Environments*, Yuan et al., NeurIPS 2022). They are compared with

- *simulated* times, from [a model](../docs/simulator.md) of the runs as flows over links;
- *emulated* times, from runs over a real TCP stack and `tc netem`. Only the computation is
  modelled, by a [device profile](../netbench/workload/profiles).
"""


def results_pages(results: Path) -> dict[str, str]:
    """Text of every generated page by its file name; the same input gives the same bytes.

    Raises RecordError for a file that cannot be read, and if a printed figure is not reproduced.
    """
    same, total = reproduced()
    if same != total:
        raise RecordError(
            f"only {same} of {total} printed efficiency cells follow from the published times; "
            "a file in results/published was changed: restore it"
        )
    clouds = experiments()
    check_registered(results, clouds, predictions())
    runs = recorded_runs(results / RECORDED)
    others = {
        name: found
        for name, found in runs.items()
        if name not in (*CASES, SMALL_CELLS) and not name.startswith(CLOUDS)
    }
    pages = {
        "README.md": front_page(results, runs),
        **{f"{case}.md": case_page(results, case, runs.get(case, ())) for case in CASES},
        "emulated.md": emulated_page(results, runs),
        "fluidstack.md": fluidstack_page(results),
        "under_tc.md": under_tc_page(results, runs.get(SMALL_CELLS, ())),
        "predictions.md": predictions_page(results, others),
        "anomalies.md": anomalies_page(),
        "multicloud.md": multicloud_page(clouds, runs),
        "ledger.md": ledger_page(results),
    }
    tables = {
        EMULATED: emulated_csv(results, runs),
        EMULATED_SMALL: emulated_cells_csv(results, runs.get(SMALL_CELLS, ())),
    }
    return {name: HEADER + text for name, text in pages.items()} | tables


def recorded_runs(folder: Path) -> dict[str, list[Run]]:
    """The runs in a folder by scenario, sorted by the name of their folder."""
    runs: dict[str, list[Run]] = {}
    for path in sorted(folder.glob(f"*/{FILE_NAME}")):
        run = read_run(path)
        if run.records:
            runs.setdefault(run.records[0].scenario, []).append(run)
    return dict(sorted(runs.items()))


def front_page(results: Path, runs: Mapping[str, Sequence[Run]]) -> str:
    """The page. runs: recorded ones by scenario, oldest first."""
    simulated = simulated_settings(results)
    parts = [INTRO, _glance(results, simulated, runs)]
    if simulated is None:
        parts.append(NOT_SIMULATED)
    else:
        parts += [
            _accuracy(simulated),
            _who_wins(results),
            _known_wrong(results, simulated),
            _why_fitted(simulated),
        ]
    return "\n".join([*parts, _pages()])


def _glance(
    results: Path, simulated: pd.DataFrame | None, runs: Mapping[str, Sequence[Run]]
) -> str:
    layers, batch = GLANCE
    placed = placed_seconds(results)
    last = (PLACED_NAME,) if placed else ()
    rows = []
    for case in CASES:
        published = _means(settings().rename(columns={"mean_s": "seconds"}), case)
        rows.append((case_title(case), "published", *_texts(published, (*GLANCE_VARIANTS, *last))))
        if simulated is not None:
            times = _means(simulated.rename(columns={"simulated_s": "seconds"}), case)
            times |= {name: placed.get((case, layers, batch)) for name in last}
            rows.append(("", "simulated", *_texts(times, (*GLANCE_VARIANTS, *last))))
        newest: dict[str, dict[str, float]] = {}  # runs of one source may have different systems
        for run in runs.get(case, ()):
            newest.setdefault(run_source(run), {}).update(
                (row.name, row.found.mean_s)
                for row in compare(run)
                if row.found and (row.workload.layers, row.workload.batch) == GLANCE
            )
        for source, found in newest.items():
            names = (*GLANCE_VARIANTS, *(PLACED_ROW for _ in last))
            rows.append(("", source, *_texts(found, names)))
    grid = Grid(head=("Case", "Source", *GLANCE_VARIANTS, *last), rows=tuple(rows), num_labels=2)
    return f"""\
## At a glance

Seconds per iteration of {layers} layers and {batch} sequences of 2048 tokens, means over the seeds.

{markdown(grid)}

*megatron-p8* and *dtfm* run 8 pipelines of 8 stages. dtfm's ranks are placed at *random*, as its
authors *scheduled* them, or by `netbench schedule` (*{PLACED_NAME}*). *zero3* is ZeRO stage 3.
"""


def _means(rows: pd.DataFrame, case: str) -> dict[str, float | None]:
    """Seconds of each system at `GLANCE`."""
    rows = rows[(rows[[KEY[0], *KEY[2:]]] == [case, *GLANCE]).all(axis=1)]
    return dict(zip(rows["system"], rows["seconds"], strict=True))


def _texts(times: Mapping[str, float | None], names: Sequence[str]) -> list[str]:
    return [seconds_text(time) if (time := times.get(name)) else "-" for name in names]


def _accuracy(simulated: pd.DataFrame) -> str:
    return f"""\
## Accuracy

![Simulated and emulated over published seconds, and relative errors]({FOLDER}/{PICTURE}.svg)

All {simulated["num"].sum()} published times are simulated, and [some emulated](emulated.md). They
belong to {len(simulated)} settings: combinations of case, system, layers and batch. Mean absolute
error of the simulated times over these settings:

{markdown(accuracy(simulated))}
"""


def _who_wins(results: Path) -> str:
    settings = all_settings(results)
    assert settings is not None
    found = orders(settings)
    return f"""\
## Who wins

Of two systems in one setting whose published times differ by more than {CLOSE:.0%}, the simulator
names the faster one for **{order_text(found)}**. The goal is {RIGHT_ORDER_GOAL:.0%}.
{order_list(found)}
"""


def _known_wrong(results: Path, simulated: pd.DataFrame) -> str:
    columns = list(far_columns(results, simulated))
    num_far = sum(len(column.errors) for column in columns)
    return f"""\
## What is known to be wrong

{num_far} of {len(simulated)} settings are simulated more than {FAR:.0%} off:

{far_markdown(columns) or "None."}

The published tables contain [inconsistencies](anomalies.md) themselves. All {reproduced()[1]}
printed efficiencies are reproduced from the printed times, to the last digit.
"""


def _why_fitted(simulated: pd.DataFrame) -> str:
    fitted, predicted = of_cases(simulated, FITTED), of_cases(simulated, PREDICTED)
    others = mean_absolute_error(fitted[~fitted["system"].isin(NOT_FITTED)])
    return f"""\
## Why "fitted" is worse than "predicted"

Constants of the simulator are fitted on cases 1 and 2, none on cases 3 to 5
([calibration](../docs/calibration.md)). Yet the error is {mean_absolute_error(fitted):.1%} in the
former and {mean_absolute_error(predicted):.1%} in the latter, for two reasons:

- The fit does not use every system. Compute constants come from dtfm-scheduled, from Megatron's
  tensor-parallel layouts and from zero3. Without the others ({", ".join(NOT_FITTED)}),
  the error of cases 1 and 2 is {others:.1%}.
- In cases 1 and 2 up to eight GPUs share the NIC of a node, on a network that was not shaped. In
  cases 3 to 5 every node has one GPU, and `tc` sets the rate and delay of every link. Why GPUs that
  share a NIC are slow is not understood. None of the
  [mechanisms tried](../docs/calibration.md#what-was-tried) explains it without making other systems
  or cases worse, so none was adopted.

Cases 3 to 5 are not blind predictions: the choice of mechanisms was informed by them.
"""


def _pages() -> str:
    cases = ", ".join(f"[{number}]({case}.md)" for number, case in enumerate(CASES, start=1))
    return f"""\
## All pages

- Case {cases}: all times, placements, layouts
- [Emulated](emulated.md): which published times are emulated, and their errors
- [FluidStack](fluidstack.md): rented machines in two and three regions
- [Under tc](under_tc.md): GPT-3 small and collectives on equal machines
- [Predictions](predictions.md): other networks and models, layouts, transfers, collectives
- [Clouds and continents](multicloud.md): Hivemind on rented machines, throughput and cost
- [Ledger](ledger.md): predictions registered before they were compared
- [Anomalies](anomalies.md) of the published tables
- [Fidelity](fidelity.md): how closely the local testbeds deliver the network they are asked for

Data: [published](published/README.md), [simulated](simulated/README.md),
[emulated]({EMULATED}), [placements](placements/README.md), [recorded runs](recorded).
`make reproduce-table` regenerates all pages; `make simulate` also repeats the simulations.
"""
