"""Inconsistencies of the published tables, computed from the published figures where possible.

Each finding says what it rests on: `computed`, or `notes` if only the experiment notes and scripts
show it. Numbers in the text are computed too, so a corrected CSV corrects the text.
"""

from dataclasses import dataclass

import pandas as pd

from netbench.report.numbers import percent_text
from netbench.report.page.published import (
    CASES,
    KEY,
    PUBLISHED_MODEL,
    efficiencies,
    iteration_times,
    load,
    setting_name,
    settings,
)
from netbench.report.page.published_tables import BLANK_COLUMNS, NOTABLE, PRINTED_TYPOS
from netbench.report.tables.grid import Grid, markdown
from netbench.scenario.model import Workload
from netbench.workload.costs import pflop_per_iteration

COMPUTED, NOTES = "computed", "notes"
INTRO = """\
# Anomalies of the published tables

Known inconsistencies of the published figures of [cases 1 to 5](README.md). *Computed* findings
follow from the files in [published/](published/README.md). *Notes* are findings from the experiment
notes and scripts.
"""
NUM_WORST = 10
"""Rows of the table of cells farthest from the mean over the seeds."""

CASE5_REGIONS = (
    "Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland",
)  # fmt: skip
"""Regions of case 5, among the ten that were measured. Source: DT-FM notes."""

ASYMMETRIC = 1.1
"""Factor between the throughputs of two directions above which they count as different."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anomaly:
    """One finding. rests_on: `COMPUTED` or `NOTES`. text: a paragraph of markdown."""

    title: str
    text: str
    rests_on: str = COMPUTED
    table: Grid | None = None


def anomalies() -> tuple[Anomaly, ...]:
    """All findings: first those that change a figure, then those that change its meaning."""
    return (
        estimators_differ(),
        far_from_mean(),
        blank_column(),
        misprinted_setting(),
        rounded_work(),
        few_digits(),
        single_runs(),
        heads_differ(),
        one_direction(),
        one_link_two_rates(),
        rate_in_notes(),
        delay_applied_twice(),
        regions_in_notes(),
        throughput_as_rate(),
    )


def anomalies_page() -> str:
    """`results/anomalies.md`: all findings, numbered."""
    parts = [INTRO]
    for number, anomaly in enumerate(anomalies(), start=1):
        parts.append(f"## {number}. {anomaly.title}\n\n({anomaly.rests_on}) {anomaly.text}\n")
        if anomaly.table:
            parts.append(markdown(anomaly.table) + "\n")
    return "\n".join(parts)


def estimators_differ() -> Anomaly:
    """The columns of one table divide by different times."""
    cells = efficiencies()
    counts = cells["estimator"].value_counts()
    listed = ", ".join(f"{name}: {counts[name]}" for name in counts.index)
    return Anomaly(
        title="The efficiency columns use different estimators",
        text=f"All {len(cells)} printed cells are work over a time, but not over the same kind of "
        f"time ({listed}). DT-FM and multi-seed Megatron columns use the time of seed 2022 and "
        "ignore the other two. ZeRO columns use the mean of three.",
    )


def far_from_mean() -> Anomaly:
    """The effect of the estimators on the figures."""
    cells = efficiencies()
    cells = cells.assign(off=cells["printed"] / cells["mean_pflops"] - 1)
    far = cells[cells["off"].abs() > NOTABLE]
    rounding = far[far["estimator"] != "seed 2022"]
    worst = far.sort_values("off", key=abs, ascending=False, kind="stable").head(NUM_WORST)
    first = worst.iloc[0]
    rows = tuple(
        (
            row.case,
            setting_name(row.layers, row.batch),
            row.printed_as,
            row.estimator,
            f"{row.printed:.3f}",
            f"{row.mean_pflops:.3f}",
            percent_text(row.off),
        )
        for row in worst.itertuples()
    )
    return Anomaly(
        title=f"{len(far)} cells are more than {NOTABLE:.0%} away from the mean",
        text=f"The worst is {abs(first['off']):.1%} off: {first['case']}, {first['printed_as']}, "
        f"{setting_name(first['layers'], first['batch'])}. The estimator explains "
        f"{len(far) - len(rounding)} of them. The other {len(rounding)} are small figures, which "
        f"three decimals round by as much (see number 6). The {len(rows)} farthest:",
        table=Grid(
            head=("Case", "Setting", "Column", "Estimator", "Printed", "Mean", "Off"),
            rows=rows,
            num_labels=4,
        ),
    )


def blank_column() -> Anomaly:
    """Figures that were measured but not printed."""
    ((case, head),) = BLANK_COLUMNS.items()
    rows = settings()
    rows = rows[(rows["case"] == case) & (rows["system"] == "zero3")]
    return Anomaly(
        title=f"The {head} column of {case}'s efficiency table is blank",
        text=f"All {int(rows['n'].sum())} times behind it are published. With the estimator of the "
        "other ZeRO columns (mean of 3 seeds) it would have read, in PFLOPS:",
        table=Grid(
            head=tuple(
                setting_name(layers, batch)
                for layers, batch in zip(rows["layers"], rows["batch"], strict=True)
            ),
            rows=(tuple(f"{x:.3f}" for x in rows["pflop"] / rows["mean_s"]),),
            num_labels=0,
        ),
    )


def misprinted_setting() -> Anomaly:
    """A label with a batch that was not run."""
    (((case, layers, batch), label),) = PRINTED_TYPOS.items()
    cells = efficiencies().set_index(KEY)
    cell = cells.loc[(case, "megatron-p8", layers, batch)]
    wrong_batch = int(label.partition(" B")[2])
    wrong = cell["pflop"] * wrong_batch / batch / cell["seed_s"]
    return Anomaly(
        title=f"`{label}` in {case}'s efficiency table is {setting_name(layers, batch)}",
        text=f"No time was published for a batch of {wrong_batch}. The work of {batch} sequences "
        f"gives the printed figures ({cell['printed_as']}: {cell['pflop']:.2f} / "
        f"{cell['seed_s']:.2f} s = {cell['pflops']:.3f}); that of {wrong_batch} would give "
        f"{wrong:.3f}.",
    )


def rounded_work() -> Anomaly:
    """Work per iteration is a rounded figure, multiplied."""
    cells = efficiencies()
    pairs = zip(cells["layers"], cells["batch"], strict=True)
    cells = cells.assign(exact=[published_work(layers, batch) for layers, batch in pairs])
    exact = cells["exact"]
    moved = (cells["pflops"] * exact / cells["pflop"]).map("{:.3f}".format)
    num_moved = int((moved != cells["printed"].map("{:.3f}".format)).sum())
    error = (cells["pflop"] / exact - 1).abs().max()
    base = cells[cells["layers"] == 24].drop_duplicates("batch").sort_values("batch")
    listed = ", ".join(f"{row.pflop:.2f} at B{row.batch}" for row in base.itertuples())
    return Anomaly(
        title="Work at B2048 and B4096 is a multiple of the rounded work at B1024",
        text=f"For L24 the notes print {listed} PFLOP, exact multiples; the formula "
        f"96 B s L h² (1 + s/6h) gives {base['exact'].iloc[-1]:.2f} for the last. All nine values "
        f"agree with the formula within {error:.3%}. With unrounded work {num_moved} of "
        f"{len(cells)} printed cells would differ in their last digit.",
    )


def few_digits() -> Anomaly:
    """Three decimals are not always three digits."""
    cells = efficiencies()
    small = cells[cells["printed"] < 0.1]
    least = small["printed"].min()
    cases = ", ".join(sorted(small["case"].unique()))
    return Anomaly(
        title="Three decimals leave two digits",
        text=f"{len(small)} printed cells (ZeRO S3, {cases}) are below 0.1 PFLOPS. The smallest, "
        f"{least:.3f}, has a rounding error of up to ±{0.0005 / least:.1%}.",
    )


def single_runs() -> Anomaly:
    """Columns whose repeatability is unknown."""
    rows = settings()
    spread = ((rows["max_s"] - rows["min_s"]) / rows["mean_s"])[rows["n"] > 1]
    alone = rows[rows["n"] == 1]
    columns = alone.groupby(["case", "system"], sort=False).size()
    listed = "; ".join(
        f"{case}: " + ", ".join(f"{name} ({num})" for (_, name), num in columns[[case]].items())
        for case in CASES
        if case in columns.index.get_level_values(0)
    )
    worst = rows.loc[spread.idxmax()]
    return Anomaly(
        title="Some columns are single runs",
        text=f"{len(alone)} of {len(rows)} settings of a system were measured once, without a seed "
        f"({listed}). "
        f"Where there are three seeds, their range is {spread.min():.1%} to "
        f"{spread.max():.1%} of the mean (widest: {worst['case']}, {worst['system']}, "
        f"{setting_name(worst['layers'], worst['batch'])}). A seed changes the placement only in "
        "columns without a scheduler. In other columns it is a repetition.",
    )


def heads_differ() -> Anomaly:
    """One system under several names."""
    heads = ["case", "system", "printed_as"]
    times = iteration_times()[heads].drop_duplicates()
    pairs = times.merge(
        efficiencies()[heads].drop_duplicates(), on=["case", "system"], suffixes=("", "_pflops")
    )
    pairs = pairs[pairs["printed_as"] != pairs["printed_as_pflops"]]
    return Anomaly(
        title="Column heads differ between the two tables of a case",
        text=f"{len(pairs)} columns differ. The times show which Megatron layout is meant:",
        table=Grid(
            head=("Case", "netbench", "Iteration-time table", "Efficiency table"),
            rows=tuple(pairs.itertuples(index=False, name=None)),
            num_labels=4,
        ),
    )


def one_direction() -> Anomaly:
    """Case 5 uses the throughput of one direction of each link for both."""
    both = both_directions()
    rates = both[["there_gbps", "back_gbps"]]
    ratio = rates.max(axis=1) / rates.min(axis=1)
    used = both["region_a"].isin(CASE5_REGIONS) & both["region_b"].isin(CASE5_REGIONS)
    same = int((both["bandwidth_gbps"] == both["there_gbps"]).sum())
    worst = both.loc[ratio[used].idxmax()]
    return Anomaly(
        title="Case 5 uses one direction of each link for both",
        text=f"Throughput was measured in both directions. The symmetric table has the throughput "
        f"into the region named first ({same} of {len(both)} values are equal to it), not the mean "
        f"or the lower one. {int((ratio[used] > ASYMMETRIC).sum())} of case 5's {int(used.sum())} "
        f"links differ by more than {ASYMMETRIC - 1:.0%} between directions. The worst is "
        f"{worst['region_a']} - {worst['region_b']}, {worst['there_gbps']:g} and "
        f"{worst['back_gbps']:g} Gbit/s, emulated as {worst['bandwidth_gbps']:g} both ways.",
    )


def one_link_two_rates() -> Anomaly:
    """The same pair of regions has different rates."""
    both = both_directions()
    case4 = load("case4_region_links")
    found = []
    for link in case4.itertuples():
        pair = {link.region_a, link.region_b}
        row = both[
            [{a, b} == pair for a, b in zip(both["region_a"], both["region_b"], strict=True)]
        ]
        if len(row) and row["bandwidth_gbps"].iloc[0] != link.bandwidth_gbps:
            rates = f"{link.bandwidth_gbps:g} Gbit/s in case 4, {row['bandwidth_gbps'].iloc[0]:g}"
            found.append(f"{link.region_a} - {link.region_b}: {rates} in case 5")
    return Anomaly(
        title="Cases 4 and 5 disagree about a link they share",
        text=f"{'; '.join(found)}. The two rates are the two directions of one measured link.",
    )


def rate_in_notes() -> Anomaly:
    """Case 3: the notes and the emulation differ."""
    links = load("aws_region_links").set_index(["region_a", "region_b"])
    link = links.loc[("Virginia", "Ohio")]
    return Anomaly(
        title="Case 3's notes say 1.2 Gbit/s between universities; `tc` was given 1.12",
        rests_on=NOTES,
        text=f"The measured Virginia - Ohio link is {link['bandwidth_gbps']:g} Gbit/s and "
        f"{link['ping_rtt_ms']:g} ms (`aws_region_links.csv`), which is what the emulation used.",
    )


def delay_applied_twice() -> Anomaly:
    """Cases 3-5 have twice the measured delay."""
    return Anomaly(
        title="The emulated round trip was twice the measured one",
        rests_on=NOTES,
        text="The delay given to `netem` is the round trip of a ping (column `ping_rtt_ms`), and "
        "it was applied to what each of the two machines sends. So regions with a round trip of "
        "11 ms were emulated with 22 ms. netbench's scenarios do the same, to be comparable.",
    )


def regions_in_notes() -> Anomaly:
    """Case 4: the regions."""
    links = load("case4_region_links")
    regions = ", ".join(sorted({*links["region_a"], *links["region_b"]}))
    return Anomaly(
        title="Case 4's notes say Europe; the links are in the United States",
        rests_on=NOTES,
        text=f"The emulation's {len(links)} links join {regions} (`case4_region_links.csv`).",
    )


def throughput_as_rate() -> Anomaly:
    """Cases 3-5: the rate of the network is the throughput of an application."""
    rows = load("p2p_under_tc")
    rows = rows[(rows["delay_one_way_ms"] == 0) & (rows["backend"] == "nccl")]
    rates_gbps = rows["message_mb"] * 2**20 * 8 / (rows["time_ms"] / 1e3) / 1e9
    ratio = rates_gbps / rows["bandwidth_gbps"]
    return Anomaly(
        title="Throughput of an application was used as the rate of the network",
        rests_on=NOTES,
        text="The bandwidths of cases 3-5 are what NCCL reached over a VPN (4 threads with 4 "
        "sockets each), not the capacity of the links. Under `tc` NCCL then reaches "
        f"{ratio.min():.1%} to {ratio.max():.1%} of the rate (`p2p_under_tc.csv`, no delay, "
        "messages taken as MiB): the emulation has the throughput of one application, not the "
        "capacity of a link.",
    )


def published_work(layers: int, batch: int) -> float:
    """Unrounded work of an iteration of GPT-XL, PFLOP."""
    return pflop_per_iteration(
        Workload(layers=layers, batch=batch, heads=16, **PUBLISHED_MODEL)  # type: ignore[arg-type]
    )


def both_directions() -> pd.DataFrame:
    """Emulated bandwidth of region pairs, and those measured into region_a and into region_b."""
    directed = load("aws_region_links_directed")
    there = directed.rename(
        columns={"receiver": "region_a", "sender": "region_b", "nccl_gbps": "there_gbps"}
    )
    back = directed.rename(
        columns={"receiver": "region_b", "sender": "region_a", "nccl_gbps": "back_gbps"}
    )
    pair = ["region_a", "region_b"]
    links = load("aws_region_links").merge(there[[*pair, "there_gbps"]], on=pair)
    return links.merge(back[[*pair, "back_gbps"]], on=pair, validate="1:1")
