"""The published figures of cases 1-5: as printed, and computed from the times.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments"
(NeurIPS 2022), experiment notes; `results/published/README.md` describes the files. Their column
`system` is called a variant in netbench. pandas is imported on first use, because it is the slowest
import of `netbench table`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from netbench.errors import RecordError
from netbench.report.numbers import TimeSummary

if TYPE_CHECKING:
    import pandas as pd

KEY = ["case", "system", "layers", "batch"]
SEED = 2022
"""The seed whose time alone is the base of most printed efficiencies."""

PUBLISHED_MODEL = {"hidden": 2048, "sequence": 2048, "recomputation": True}
"""Parameters of GPT-XL in every published run; other workloads have no published times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A published experiment. hardware: nodes and network, in one sentence."""

    title: str
    hardware: str


CASES = {
    "case1": Case(
        title="Data Center on Demand",
        hardware="8 nodes with 8 V100 each; 100 Gbit/s inside a node, 25 Gbit/s per node between "
        "them, shared by its GPUs. The native network, not shaped.",
    ),
    "case2": Case(
        title="Data Center Spot",
        hardware="8 nodes with 4 V100 and 32 with 1; 100 Gbit/s inside a node, 10 Gbit/s per node "
        "between them. The native network, not shaped.",
    ),
    "case3": Case(
        title="Multiple Universities",
        hardware="2 regions (Ohio, Virginia) of 32 nodes with 1 V100 each; 5 Gbit/s and 1 ms "
        "inside a region, 1.12 Gbit/s and 11 ms across.",
    ),
    "case4": Case(
        title="Regional Distributed",
        hardware="4 regions (Virginia, Oregon, California, Ohio) of 16 nodes with 1 V100 each; "
        "2 Gbit/s and 10 ms inside a region, 1.02-1.25 Gbit/s and 11-67 ms across.",
    ),
    "case5": Case(
        title="World-wide Distributed",
        hardware="8 regions (Oregon, Virginia, Ohio, Tokyo, Seoul, London, Frankfurt, Ireland) of "
        "8 nodes with 1 V100 each; 2 Gbit/s and 10 ms inside a region, 0.335-1.16 Gbit/s and "
        "11-238 ms across.",
    ),
}


def case_title(case: str) -> str:
    """`Case 3: Multiple Universities`."""
    return f"Case {case.removeprefix('case')}: {CASES[case].title}"


def case_name(case: str) -> str:
    """`case 3` for the scenario `case3`."""
    return f"case {case.removeprefix('case')}"


def setting_name(layers: int, batch: int) -> str:
    """Label of a setting, e.g. `L24 B1024`."""
    return f"L{layers} B{batch}"


def load(name: str) -> "pd.DataFrame":
    """Read a published CSV file, by its name without `.csv`."""
    import pandas as pd

    path = data_folder("published") / f"{name}.csv"
    try:
        return pd.read_csv(path)
    except OSError as error:
        reason = f"{path}: cannot be read: {error.strerror}; reinstall netbench"
        raise RecordError(reason) from error


DEEPSPEED, DEEPSPEED_HEAD = "deepspeed-pp-random-nodes", "DeepSpeed pipeline"
"""The system of the file of DeepSpeed's pipeline engine, whose table has one column."""


@functools.cache
def iteration_times() -> "pd.DataFrame":
    """One row per printed time: `KEY`, printed_as, seed (missing for a single run), iteration_s."""
    import pandas as pd

    engine = load("deepspeed_pp_iteration_times").assign(
        system=DEEPSPEED, printed_as=DEEPSPEED_HEAD
    )
    tables = [load("published_iteration_times"), engine]
    return pd.concat(tables, ignore_index=True).astype({"seed": "Int64"})


@functools.cache
def settings() -> "pd.DataFrame":
    """One row per system and setting, in printed order, with its times over the seeds.

    Columns: `KEY`, n, mean_s, min_s, max_s, seed_s (of `SEED`; missing for a single run), pflop
    (printed work of an iteration).
    """
    times = iteration_times()
    rows = (
        times.groupby(KEY, sort=False)["iteration_s"]
        .agg(n="count", mean_s="mean", min_s="min", max_s="max")
        .reset_index()
    )
    seed = times[times["seed"] == SEED].rename(columns={"iteration_s": "seed_s"})
    work = load("published_pflop_per_iteration")
    rows = rows.merge(seed[[*KEY, "seed_s"]], on=KEY, how="left")
    return rows.merge(work, on=["layers", "batch"], how="left")


@functools.cache
def efficiencies() -> "pd.DataFrame":
    """One row per printed efficiency, with its estimator.

    Columns: those of `settings`, printed (PFLOPS), printed_as, estimator, pflops (printed work over
    the time of the estimator; equals `printed` to its last digit), mean_pflops (printed work over
    the mean time).
    """
    printed = load("published_pflops").rename(columns={"pflops": "printed"})
    cells = printed.merge(settings(), on=KEY, how="left", validate="1:1")
    cells["estimator"] = [estimator(s, n) for s, n in zip(cells["system"], cells["n"], strict=True)]
    time_s = cells["seed_s"].where(cells["estimator"] == f"seed {SEED}", cells["mean_s"])
    cells["pflops"] = cells["pflop"] / time_s
    cells["mean_pflops"] = cells["pflop"] / cells["mean_s"]
    return cells


def estimator(system: str, num_runs: int) -> str:
    """The time that a printed efficiency column divides by: one run, one seed of three, or a mean.

    Found by trying: no other choice reproduces a whole column (`tests/report`).
    """
    if num_runs == 1:
        return "single run"
    return "mean of 3 seeds" if system == "zero3" else f"seed {SEED}"


def reproduced() -> tuple[int, int]:
    """Number of printed efficiencies that are reproduced to their last digit, and of all."""
    cells = efficiencies()
    same = cells["pflops"].map("{:.3f}".format) == cells["printed"].map("{:.3f}".format)
    return int(same.sum()), len(cells)


def sample(case: str, system: str, layers: int, batch: int) -> TimeSummary | None:
    """Summary of the published times of one setting over the seeds; None if there are none."""
    if case not in CASES:
        return None
    rows = settings().set_index(KEY)
    if (case, system, layers, batch) not in rows.index:
        return None
    row = rows.loc[(case, system, layers, batch)]
    return TimeSummary(
        mean_s=float(row["mean_s"]),
        min_s=float(row["min_s"]),
        max_s=float(row["max_s"]),
        num=int(row["n"]),
    )


def published_settings(case: str) -> list[tuple[int, int]]:
    """Layers and batch of every setting of a case, in printed order."""
    rows = iteration_times()
    of_case = rows[rows["case"] == case][["layers", "batch"]].drop_duplicates()
    return [(int(row.layers), int(row.batch)) for row in of_case.itertuples()]


def data_folder(name: str) -> Path:
    """A folder of `results`: inside the package in a wheel, beside it in a checkout (see
    force-include in pyproject.toml)."""
    package = Path(__file__).resolve().parents[2]
    packaged = package / "_data" / name
    return packaged if packaged.is_dir() else package.parent / "results" / name
