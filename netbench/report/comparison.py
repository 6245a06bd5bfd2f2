"""A run's iteration times, pooled over seeds, beside what was published and what was predicted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from netbench.errors import RecordError
from netbench.plan import placed_name
from netbench.records import Record, Run
from netbench.report.published import PUBLISHED_MODEL, Sample, sample
from netbench.report.tables import setting_name
from netbench.scenario.model import Workload
from netbench.workload.costs import pflop_per_iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One variant in one setting, placed by one scheduler. published, found: None where there are
    no times (yet).
    simulated_s: predicted before the run, mean over seeds; None where it was not.

    setting: layers, batch, and what else varies in the run, e.g. `L12 B64 m4 10ms-1Gbit`.
    network: of the scenario's sweep, "" = its own. micro_batch: sequences.
    seeds: those run. num_warmups: iterations dropped. pflop: work of one iteration.
    model: named, of which each of `replicas` computes its share in alone_s seconds; "" = a GPT.
    name: of the row; the variant, or where a scheduler placed it what `placed_name` says.
    """

    scenario: str

    setting: str
    variant: str
    layers: int
    batch: int
    micro_batch: int
    network: str
    seeds: tuple[int, ...]
    num_warmups: int
    pflop: float
    published: Sample | None
    found: Sample | None
    simulated_s: float | None
    model: str
    replicas: int
    alone_s: float
    name: str

    @property
    def error(self) -> float | None:
        """Relative: 0.05 = the run took 5% longer than published."""
        if self.published is None or self.found is None:
            return None
        return self.found.mean_s / self.published.mean_s - 1


def compare(run: Run) -> tuple[Comparison, ...]:
    """Every setting and variant of a run: by network as planned, layers, batch and micro-batch, in
    the order they were planned."""
    order = {plan_hash: index for index, plan_hash in enumerate(run.plans)}
    settings = {plan_hash: _Setting.read(run, plan_hash) for plan_hash in order}
    groups: dict[tuple[_Setting, str], list[Record]] = {}
    for record in sorted(run.records, key=lambda record: order[record.plan_hash]):
        name = _row_name(run, record)
        groups.setdefault((settings[record.plan_hash], name), []).append(record)
    networks = list(dict.fromkeys(setting.network for setting, _ in groups))
    names_micro_batch, names_network = _varies_micro_batch(groups), len(networks) > 1
    return tuple(
        _comparison(run, groups[key], key, key[0].name(names_micro_batch, names_network))
        for key in sorted(groups, key=lambda key: (networks.index(key[0].network), key[0].sizes))
    )


def measured(run: Run, plan_hash: str) -> Sample | None:
    """Times of one plan's iterations but warm-ups; None where there are none."""
    times_s = [
        record.iteration_s
        for record in run.records
        if record.plan_hash == plan_hash and not record.warmup
    ]
    return _pool([times_s]) if times_s else None


def run_source(run: Run) -> str:
    """The source of the records; `emulated` before there are any."""
    return " and ".join(sorted({record.source for record in run.records})) or "emulated"


def has_other_model(run: Run) -> bool:
    """Whether times were published of a setting in which the run trained something else."""
    return any(
        not _is_published_model(_workload(run, record.plan_hash))
        and sample(record.scenario, record.variant, record.layers, record.batch)
        for record in run.records
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """What tells runs of a variant apart, beside the seed. sizes: layers, batch, micro-batch."""

    network: str
    sizes: tuple[int, int, int]

    @classmethod
    def read(cls, run: Run, plan_hash: str) -> _Setting:
        workload = _workload(run, plan_hash)
        return cls(
            network=str(run.plans[plan_hash].get("network_name", "")),
            sizes=(workload.layers, workload.batch, workload.micro_batch),
        )

    def name(self, with_micro_batch: bool, with_network: bool) -> str:
        layers, batch, micro_batch = self.sizes
        words = [setting_name(layers, batch)]
        words += [f"m{micro_batch}"] if with_micro_batch else []
        words += [self.network or "own"] if with_network else []
        return " ".join(words)


def _varies_micro_batch(groups: Iterable[tuple[_Setting, str]]) -> bool:
    """Whether a variant ran with several micro-batches in one setting: zero3 has one of its own
    beside everybody else's, which is no reason to name it."""
    seen = [(setting.network, setting.sizes[:2], variant) for setting, variant in groups]
    return len(set(seen)) < len(seen)


def _row_name(run: Run, record: Record) -> str:
    scheduler = run.plans[record.plan_hash].get("scheduler")
    return placed_name(record.variant, str(scheduler)) if scheduler else record.variant


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
        layers=first.layers,
        batch=first.batch,
        micro_batch=workload.micro_batch,
        network=setting.network,
        seeds=tuple(sorted({record.seed for record in records})),
        num_warmups=sum(record.warmup for record in records),
        pflop=pflop_per_iteration(workload),
        published=sample(first.scenario, first.variant, first.layers, first.batch)
        if _is_published_model(workload) and not setting.network and name == first.variant
        else None,
        found=_pool(list(by_plan.values())) if by_plan else None,
        simulated_s=_predicted_s(run, {record.plan_hash for record in records}),
        model=workload.model,
        replicas=_replicas(run.plans[first.plan_hash]) if workload.model else 1,
        alone_s=_alone_s(run.plans[first.plan_hash]) if workload.model else 0.0,
        scenario=first.scenario,
        name=name,
    )


def _replicas(plan: dict[str, Any]) -> int:
    return int(plan["layout"]["dp"])


def _alone_s(plan: dict[str, Any]) -> float:
    """Computing of an iteration on one rank: seconds, were there no network."""
    stage, micro_batches = plan["stages"][0], plan["num_rounds"] * plan["num_micro_batches"]
    return float(micro_batches * (stage["forward_s"] + stage["backward_s"]) + stage["optimizer_s"])


def _predicted_s(run: Run, plans: Iterable[str]) -> float | None:
    times_s = [run.predictions[plan] for plan in plans if plan in run.predictions]
    return statistics.fmean(sorted(times_s)) if times_s else None


def _pool(plans: Sequence[Sequence[float]]) -> Sample:
    """Times of several seeds as one sample: each seed counts once, however many iterations."""
    times_s = [time_s for plan in plans for time_s in plan]
    return Sample(
        mean_s=statistics.fmean(statistics.fmean(plan) for plan in plans),
        min_s=min(times_s),
        max_s=max(times_s),
        num=len(times_s),
    )


def _workload(run: Run, plan_hash: str) -> Workload:
    try:
        return Workload(**run.plans[plan_hash]["workload"])
    except (KeyError, TypeError) as error:
        raise RecordError(
            f"{run.path}: plan {plan_hash} has a workload that this netbench cannot read "
            f"({error}); use the netbench that wrote it"
        ) from error


def _is_published_model(workload: Workload) -> bool:
    return all(getattr(workload, key) == value for key, value in PUBLISHED_MODEL.items())
