"""Iteration times of a run, pooled over seeds, beside published and predicted times."""

import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from netbench.errors import PlanError, RecordError
from netbench.plan.serial import decode
from netbench.records import Record, Run, find_runs, read_run
from netbench.report.numbers import TimeSummary
from netbench.report.page.published import PUBLISHED_MODEL, sample, setting_name
from netbench.scenario.model import Workload
from netbench.systems import placed_name
from netbench.systems.script import SCRIPT
from netbench.workload.costs import pflop_per_iteration

MAX_OTHERS = 50
"""Number of runs that are read to find one with another source."""

INTERRUPTED = ", interrupted"
"""End of the name of a row whose machines go and come."""

EXECUTED = {"emulated", "measured"}
"""Sources of records whose plan ran on ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One variant in one setting, placed by one scheduler.

    published, found: None if there are no times (yet). simulated_s: predicted before the run, mean
    over the seeds; None if there was no prediction.
    setting: layers, batch, and everything else that varies, e.g. `L12 B64 m4 10ms-1Gbit`.
    network: name in the scenario's sweep; "" for the scenario's network. num_warmups: iterations
    dropped. One replica of `replicas` of a model by name computes for alone_s seconds. peers: name
    of the set of machines; "" = all, or the first `replicas`.
    name: of the row: the variant, or `placed_name` if a scheduler placed it. pflop: work of one
    iteration; None for a script, which trains what it likes. times_s: iteration times of each plan,
    in the order of plans. plan_hash: of the first of them.
    """

    scenario: str
    setting: str
    variant: str
    workload: Workload
    network: str
    seeds: tuple[int, ...]
    num_warmups: int
    published: TimeSummary | None
    found: TimeSummary | None
    simulated_s: float | None
    replicas: int
    alone_s: float
    name: str
    pflop: float | None
    times_s: tuple[tuple[float, ...], ...]
    plan_hash: str
    peers: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for the same work in two runs: of any source, on any machine."""
        return self.workload, self.network, self.replicas, self.peers, self.name

    @property
    def error(self) -> float | None:
        """Relative: 0.05 = the run took 5% longer than published."""
        if self.published is None or self.found is None:
            return None
        return self.found.mean_s / self.published.mean_s - 1

    @property
    def difference(self) -> float | None:
        """From the simulated time, relative: 0.05 = the run took 5% longer."""
        if self.simulated_s is None or self.found is None:
            return None
        return self.found.mean_s / self.simulated_s - 1

    @property
    def pflops(self) -> float | None:
        """Sustained PFLOPS of the run; None if its work or time is not known."""
        known = self.pflop is not None and self.found is not None
        return self.pflop / self.found.mean_s if known else None  # type: ignore[operator, union-attr]


def compare(run: Run) -> tuple[Comparison, ...]:
    """Every setting and variant of a run, sorted by network (as planned), layers, batch and
    micro-batch; variants in planned order."""
    order = {plan_hash: index for index, plan_hash in enumerate(run.plans)}
    settings = {plan_hash: _setting(run, plan_hash) for plan_hash in order}
    groups: dict[tuple[_Setting, str], list[Record]] = {}
    for record in sorted(run.records, key=lambda record: order[record.plan_hash]):
        scheduler = run.plans[record.plan_hash].get("scheduler", "")
        name = placed_name(record.variant, str(scheduler)) if scheduler else record.variant
        name += INTERRUPTED if run.plans[record.plan_hash].get("churn") else ""
        groups.setdefault((settings[record.plan_hash], name), []).append(record)
    networks = list(dict.fromkeys(setting.network for setting, _ in groups))
    names_network = len(networks) > 1
    # A micro-batch that only differs between variants, as that of zero3, is not named.
    seen = [(*setting[:3], *setting[4:], variant) for setting, variant in groups]
    names_micro_batch = len(set(seen)) < len(seen)
    return tuple(
        _comparison(run, groups[key], key, key[0].name(names_micro_batch, names_network))
        for key in sorted(groups, key=lambda key: (networks.index(key[0].network), key[0][1:]))
    )


def measured(run: Run, plan_hash: str) -> TimeSummary | None:
    """Iteration times of one plan without warm-ups; None if there are none."""
    times_s = [
        record.iteration_s
        for record in run.records
        if record.plan_hash == plan_hash and not record.warmup
    ]
    return TimeSummary.pool(times_s) if times_s else None


def run_source(run: Run) -> str:
    """Source of the records; `emulated` if there are none yet."""
    return " and ".join(sorted({record.source for record in run.records})) or "emulated"


def find_others(results: Path, run: Run) -> tuple[Run, ...]:
    """Return the newest runs of the scenario with other sources than this: emulated, measured.

    Runs that cannot be read do not count, and neither do those before the newest `MAX_OTHERS`.
    """
    own = {record.source for record in run.records}
    found: dict[str, Run] = {}
    names = {record.scenario for record in run.records}
    paths = (path for name in sorted(names) for path in find_runs(results, name))
    for path in islice(paths, MAX_OTHERS):
        with suppress(RecordError):
            other = read_run(path)
            if (source := run_source(other)) in EXECUTED and source not in own and other.records:
                found.setdefault(source, other)
        if found.keys() | own >= EXECUTED:
            break
    return tuple(found[source] for source in sorted(found))


def times_of(run: Run) -> dict[tuple[object, ...], TimeSummary]:
    """Times of a run by `Comparison.key`."""
    return {row.key: row.found for row in compare(run) if row.found}


def has_other_model(run: Run) -> bool:
    """Return whether the run trained another model in a setting with published times."""
    return any(
        not _is_published_model(_workload(run, record.plan_hash))
        and sample(record.scenario, record.variant, record.layers, record.batch)
        for record in run.records
    )


class _Setting(NamedTuple):
    """Key of the runs of a variant, without the seed."""

    network: str
    layers: int
    batch: int
    micro_batch: int
    model: str
    peers: str

    def name(self, with_micro_batch: bool, with_network: bool) -> str:
        words = [setting_name(self.layers, self.batch)]
        words += [f"m{self.micro_batch}"] if with_micro_batch else []
        words += [self.network or "own"] if with_network else []
        return " ".join(words)


def _setting(run: Run, plan_hash: str) -> _Setting:
    workload, plan = _workload(run, plan_hash), run.plans[plan_hash]
    network, peers = str(plan.get("network_name", "")), str(plan.get("peers", ""))
    sizes = (workload.layers, workload.batch, workload.micro_batch)
    return _Setting(network, *sizes, workload.model, peers)


def _comparison(
    run: Run, records: Sequence[Record], key: tuple[_Setting, str], setting_text: str
) -> Comparison:
    """records: all of one row, at least one. key: its setting and name."""
    first, (setting, name) = records[0], key
    workload = _workload(run, first.plan_hash)
    by_plan: dict[str, list[float]] = {}
    for record in records:
        if not record.warmup:
            by_plan.setdefault(record.plan_hash, []).append(record.iteration_s)
    return Comparison(
        setting=setting_text,
        variant=first.variant,
        workload=workload,
        network=setting.network,
        seeds=tuple(sorted({record.seed for record in records})),
        num_warmups=sum(record.warmup for record in records),
        published=sample(first.scenario, first.variant, first.layers, first.batch)
        if _is_published_model(workload) and not setting.network and name == first.variant
        else None,
        found=TimeSummary.pool(*by_plan.values()) if by_plan else None,
        simulated_s=_predicted_s(run, {record.plan_hash for record in records}),
        replicas=run.plans[first.plan_hash]["layout"]["dp"] if workload.model else 1,
        alone_s=_alone_s(run.plans[first.plan_hash]) if workload.model else 0.0,
        scenario=first.scenario,
        name=name,
        pflop=None if first.system == SCRIPT else pflop_per_iteration(workload),
        times_s=tuple(map(tuple, by_plan.values())),
        plan_hash=first.plan_hash,
        peers=setting.peers,
    )


def _alone_s(plan: dict[str, Any]) -> float:
    """Seconds that one rank computes in an iteration."""
    stage, micro_batches = plan["stages"][0], plan["num_rounds"] * plan["num_micro_batches"]
    return float(micro_batches * (stage["forward_s"] + stage["backward_s"]) + stage["optimizer_s"])


def _predicted_s(run: Run, plans: Iterable[str]) -> float | None:
    times_s = [run.predictions[plan] for plan in plans if plan in run.predictions]
    return statistics.fmean(sorted(times_s)) if times_s else None


def _workload(run: Run, plan_hash: str) -> Workload:
    try:
        workload = decode(Workload, run.plans[plan_hash]["workload"], "workload")
    except (KeyError, PlanError) as error:
        raise RecordError(
            f"{run.path}: plan {plan_hash} has a workload that this netbench cannot read "
            f"({error}); use the netbench that wrote it"
        ) from error
    assert isinstance(workload, Workload)
    return workload


def _is_published_model(workload: Workload) -> bool:
    return all(getattr(workload, key) == value for key, value in PUBLISHED_MODEL.items())
