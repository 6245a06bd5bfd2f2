"""`results/multicloud.md`: Hivemind across clouds and continents, published beside simulated and
emulated."""

import textwrap
from collections.abc import Mapping, Sequence

from netbench.cost.bill import per_million_usd
from netbench.errors import RecordError
from netbench.records import Run
from netbench.report.numbers import or_dash, percent_text
from netbench.report.page.anomalies import NOTES, Anomaly
from netbench.report.page.multicloud.data import (
    CALIBRATION,
    Experiment,
    measured,
    published,
    timed_fraction,
)
from netbench.report.page.multicloud.emulated import (
    emulated_grid,
    emulated_note,
    emulated_rounds,
    interrupted_grid,
    interrupted_rounds,
)
from netbench.report.tables.cost import CostRow, cost_grid, egress_grid, money
from netbench.report.tables.grid import WIDTH, Grid, markdown, table_of

SCALING_PICTURE, COST_PICTURE = "multicloud-scaling", "multicloud-cost"
TBS = 32768
THROUGHPUT_LIMITS = {"CONV": 0.03, "RXLM": 0.06}
"""Largest errors of the throughput of the calibration part at `TBS`."""

COMMUNICATION_LIMIT = 0.10
NO_RUNS: Mapping[str, Sequence[Run]] = {}

INTRO = """\
# Across clouds and continents

Hivemind on rented machines: single GPUs in zones of four continents and four clouds, and together
with machines on premises. Published: Erben, Mayer, Jacobsen, "How Can We Train Deep Learning Models
Across Clouds and Continents? An Experimental Study" (PVLDB 17(6), 2024);
[files and definitions](published/multicloud/README.md). Simulated and emulated: `hivemind-swarm`
([mechanisms](../docs/local-steps.md#hivemind-swarm)), in the scenarios `multicloud-*`.

The constants of averaging were fitted to the calibration part. All other experiments are held out:
their predictions are in the [ledger](ledger.md), and their results are in no file here. CONV is
ConvNextLarge (197.8M parameters), RXLM is RoBERTa-XLM (560.1M).

![Throughput and granularity against peers](simulated/multicloud-scaling.svg)
"""

CALIBRATED = """\
## Calibration part

Runs that the constants were fitted to. Granularity is as published: its timers miss part of the
computation, and the simulated value misses the same part. Rounds shorter than about 1.2 times the
matchmaking time (5 s on 2 May, 20 s on other days) are irregular in the logs and not modelled:
RN18 and RBase at 8192, WhisperTiny. Runs of April with small models were limited by data loading,
and are left out here; the device profiles of `multicloud-a10-april` have their rates.
"""

PREDICTED = """\
## Held out: predictions

Simulated throughput in samples per second, and granularity of the wall clock. The
[ledger](ledger.md) has the other quantities.
"""

EMULATED = """\
## Emulated

Rounds of `hivemind-swarm` over TCP in a guest kernel, at a target batch size of 32768, beside the
same rounds simulated and, for the calibration part, published
([how](../docs/local-steps.md#emulated)). A link that one TCP stream fills at less than the rate of
the NICs is not limited in its rate: the window of the connection is what the rate carries in a
round trip. Samples per second, and seconds per round in which the mean peer does not compute.
"""

INTERRUPTED = """\
### Machines that go

The same while spot machines go and come, far more often than in a market, so that a few rounds show
it. Simulated and emulated under the same trace ([how](../docs/clouds.md#machines-that-go)). Goodput
is samples per second that reached the model; $ per million samples are of spot machines.
"""

COSTS = """\
## Cost

$ per hour and per million samples of the machines of each experiment at a target batch size of
32768, simulated. Prices are those of April and May 2023. Machines on premises cost nothing here.
The share is that of egress in the cost of spot machines. $/M is per million samples.

The picture has the experiments whose machines are all rented, with CONV.

![Cost against throughput](simulated/multicloud-cost.svg)
"""

POINTS = """\
### Printed prices and throughputs

Costs per million samples from published throughputs and prices, with the formulas of the paper
(the [README](published/multicloud/README.md#definitions) has them). The points of eight T4 add the
internal share of egress of A-4, a third of what a machine sends, and no data loading, as the paper
does.
"""


def check_calibration(experiments: Sequence[Experiment]) -> None:
    """Raise RecordError if a simulation of the calibration part at `TBS` is off by more than the
    limits."""
    known = measured()
    for experiment in experiments:
        name, model, batch = experiment.key
        if model not in THROUGHPUT_LIMITS or batch != TBS or experiment.key not in known:
            continue
        found, values = experiment.round, known[experiment.key]
        for quantity, value, limit in (
            ("throughput", found.throughput, THROUGHPUT_LIMITS[model]),
            ("comm_time_per_round", found.communication_s, COMMUNICATION_LIMIT),
        ):
            if quantity in values and abs(value / values[quantity] - 1) > limit:
                raise RecordError(
                    f"{name} {model}: simulated {quantity} is {value:.4g}, published "
                    f"{values[quantity]:.4g}; expected within {limit:.0%}: fit the constants again "
                    "with python -m benchmarks.fit_swarm"
                )


def multicloud_page(
    experiments: Sequence[Experiment], runs: Mapping[str, Sequence[Run]] = NO_RUNS
) -> str:
    """Return the page. runs: recorded ones by scenario. Raises RecordError if the calibration is
    out of its limits."""
    check_calibration(experiments)
    fitted = [each for each in experiments if each.key in measured() and _is_shown(each)]
    blind = [each for each in experiments if each.part != CALIBRATION]
    priced = [each for each in experiments if _is_priced(each)]
    parts = [INTRO, CALIBRATED, markdown(_calibration(fitted)), "", PREDICTED]
    parts += [markdown(_predictions(blind)), ""]
    if emulated := emulated_rounds(experiments, runs):
        parts += [EMULATED, markdown(emulated_grid(emulated)), "", emulated_note(emulated), ""]
    if interrupted := interrupted_rounds(experiments, runs):
        parts += [INTERRUPTED, markdown(interrupted_grid(interrupted)), ""]
    parts += [COSTS, markdown(_costs(priced)), ""]
    parts += [markdown(_egress(priced)), "", POINTS, markdown(_points()), "", _anomalies_text()]
    return "\n".join(parts)


def _is_shown(experiment: Experiment) -> bool:
    return not experiment.name.endswith("-april")


def _is_priced(experiment: Experiment) -> bool:
    _, model, batch = experiment.key
    return batch == TBS and model in THROUGHPUT_LIMITS and _is_shown(experiment)


def _calibration(experiments: Sequence[Experiment]) -> Grid:
    known = measured()

    def both(quantity: str, value: float, key: tuple[str, str, int]) -> tuple[str, str, str]:
        printed = known[key].get(quantity)
        error = None if printed is None else value / printed - 1
        return or_dash(_short, printed), _short(value), or_dash(percent_text, error)

    rows = []
    for experiment in experiments:
        name, model, batch = experiment.key
        found = experiment.round
        rows.append(
            (
                name, model, str(batch),
                *both("throughput", found.throughput, experiment.key),
                *both("comm_time_per_round", found.communication_s, experiment.key),
                *both("granularity", found.granularity * timed_fraction(experiment),
                      experiment.key)[:2],
            )
        )  # fmt: skip
    head = (
        "Run", "Model", "TBS", "published /s", "simulated", "error", "communication s",
        "simulated", "error", "granularity", "simulated",
    )  # fmt: skip
    return Grid(head=head, rows=tuple(rows), num_labels=3)


def _predictions(experiments: Sequence[Experiment]) -> Grid:
    columns = [
        ("Experiment", lambda each: each.name),
        ("Model", lambda each: each.key[1]),
        ("TBS", lambda each: str(each.key[2])),
        ("peers", lambda each: str(each.plan.layout.num_ranks)),
        ("samples/s", lambda each: _short(each.round.throughput)),
        ("granularity", lambda each: _short(each.round.granularity)),
        ("communication s", lambda each: _short(each.round.communication_s)),
    ]
    return table_of(experiments, columns, num_labels=3)


def _costs(experiments: Sequence[Experiment]) -> Grid:
    return cost_grid(("Experiment", "Model"), [_cost_row(each) for each in experiments])


def _egress(experiments: Sequence[Experiment]) -> Grid:
    sending = [each for each in experiments if sum(each.bill.egress_usd.values())]
    return egress_grid(("Experiment", "Model"), [_cost_row(each) for each in sending])


def _cost_row(experiment: Experiment) -> CostRow:
    return CostRow(labels=experiment.key[:2], bill=experiment.bill)


def _points() -> Grid:
    """Cost points of the paper whose inputs are in the files."""
    rate = {
        model: measured()["A-4", model, TBS]["egress_rate_per_peer"] for model in ("CONV", "RXLM")
    }
    vm = {
        (row.provider, row.instance, row.kind): row.usd
        for row in reversed(list(published("prices").itertuples()))
        if row.item == "vm"
    }
    base = {
        (row.device, row.model): row.throughput_published_sps
        for row in published("baselines").itertuples()
    }
    zone = published("prices").query("provider == 'GC' and scope == 'between zones of a region'")
    zone_usd = float(zone["usd"].iloc[0])
    t4 = vm["GC", "1xT4, 8 vCPU", "spot"]
    rows: list[tuple[str, str, float, float]] = []
    for model in ("CONV", "RXLM"):
        # 1 MB/s of the figures is 1000 / 1024 MB of 1024 kB, so GB / h are 3.6 of them.
        egress = rate[model] * 3600 / 1000 / 3 * zone_usd
        rate_8 = measured()["A-8", model, TBS]["throughput"]
        rows.append(("8xT4, spot", model, 8 * (t4 + egress), rate_8))
    rows.append(("4xT4 in one machine, spot", "CONV", 4 * t4, base["4xT4", "CONV"]))
    for market in ("spot", "on_demand"):
        usd = vm["GC", "DGX-2 (8xV100)", market]
        for model in ("CONV", "RXLM"):
            name = f"DGX-2, {market.replace('_', ' ')}"
            rows.append((name, model, usd, base["DGX-2 (8xV100)", model]))
    for model in ("CONV", "RXLM"):
        rows.append(("1xA10, on demand", model, vm["Lambda", "1xA10", "on_demand"],
                     base["A10", model]))  # fmt: skip
    rows.append(("4xT4 in one machine, spot", "WhisperSmall", 4 * t4, base["4xT4", "WhisperSmall"]))
    rows.append(("1xA100, on demand", "WhisperSmall", vm["vast.ai", "1xA100 80GB", "on_demand"],
                 base["A100 80GB", "WhisperSmall"]))  # fmt: skip
    cells = tuple(
        (name, model, money(usd), f"{sps:.4g}", money(per_million_usd(usd, sps)))
        for name, model, usd, sps in rows
    )
    return Grid(
        head=("Machines", "Model", "$/h", "samples/s", "$/million"), rows=cells, num_labels=2
    )


def anomalies() -> tuple[Anomaly, ...]:
    """Return inconsistencies of the paper, computed where the files allow it."""
    vm = published("prices").query("provider == 'GC' and item == 'vm' and kind == 'spot'")
    t4 = float(vm[vm["scope"] == "us-west"]["usd"].iloc[0])
    table = published("hivemind_penalty")
    high = (table["baseline_published_sps"] / table["baseline_wall_sps"]).describe()
    links = published("links").dropna(subset=["printed_gbps", "throughput_gbps"])
    off = links[(links["throughput_gbps"] / links["printed_gbps"] - 1).abs() > 0.05]
    streams = off[off["streams"] == 1]
    listed = "; ".join(
        f"{row['from']} to {row['to']} {row['printed_gbps']:g}, {row['throughput_gbps']:.3g}"
        for _, row in streams.iterrows()
    )
    aws = links[(links["from"] == "AWS US-west-2") & (links["to"] == "AWS US-west-2")].iloc[0]
    far = published("links").query(
        "`from`.str.startswith('on-prem') and to in ['GC US (E, F)', 'Lambda US']"
    )
    return (
        Anomaly(
            title="Eight T4 have two prices",
            text="Section 2.2 prices eight T4 at $0.72 per hour. Eight at the price of table 1 are "
            f"${8 * t4:.2f}; $0.72 are {0.72 / t4:.0f}.",
        ),
        Anomaly(
            title="Published baselines are too high",
            text="Rates of single machines come from timers that do not wait for the GPU. They are "
            f"{high['min']:.2f} to {high['max']:.2f} times those of the wall clock (mean "
            f"{high['mean']:.2f}). Printed penalties and speedups are mostly this artefact, and "
            "so are the costs of single machines above.",
        ),
        Anomaly(
            title="All machines of C-8 are billed the same classes of egress",
            text="Costs of C-8 take 8/20 of the traffic as internal, 6/20 as between continents "
            "and 6/20 to or from Oceania, for every machine. All-to-all traffic between two "
            "machines in each of four regions is 1/7 internal. From Oceania, 6/7 is Oceania's. "
            "The bills above count the bytes of every pair.",
            rests_on=NOTES,
        ),
        Anomaly(
            title="Costs of eight T4 use the traffic of four",
            text="The points of eight T4 add the egress of A-4, in which a machine sends "
            f"{(3 / 4) / (7 / 8):.2f} of what it sends in A-8 per round.",
        ),
        Anomaly(
            title="The throughput inside AWS is misprinted",
            text=f"Table 4 prints {aws['printed_gbps']:g} Gbit/s; every line of the log says "
            f"{aws['throughput_gbps']:g}.",
        ),
        Anomaly(
            title="Other printed rates are rounded to two decimals",
            text=f"Slow links lose a digit that counts (printed, measured, Gbit/s): {listed}.",
        ),
        Anomaly(
            title="A round trip is twice what the logs have",
            text="Section 7 speaks of 300 to 318 ms between the machines on premises and the US; "
            f"the logs have {far['rtt_min_ms'].min():.0f} to {far['rtt_max_ms'].max():.0f} ms.",
        ),
        Anomaly(
            title="B-6 has two divisions",
            text="Four machines in the US and two in the EU in the preprint, the notebook and the "
            "hosts; table 2 of the final paper reads as three and three.",
            rests_on=NOTES,
        ),
    )  # fmt: skip


def _anomalies_text() -> str:
    parts = ["## Anomalies of the published figures\n"]
    for number, found in enumerate(anomalies(), start=1):
        text = textwrap.fill(f"({found.rests_on}) {found.text}", WIDTH)
        parts.append(f"### {number}. {found.title}\n\n{text}\n")
    return "\n".join(parts)


def _short(value: float) -> str:
    return f"{value:.4g}"


def rented(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the experiments of the tables of costs whose machines are all rented."""
    return [
        each
        for each in experiments
        if _is_priced(each)
        and all(each.scenario.prices.places[node.region].on_demand_usd[node.device]
                for node in each.scenario.nodes if each.scenario.prices)
    ]  # fmt: skip
