"""The published multi-cloud experiments, and what the simulator says of each, in their definitions.

Files: results/published/multicloud/, whose README defines all quantities. Results of experiments
that are held out are in no file here.
"""

import functools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from netbench.cost.bill import ON_DEMAND, SPOT, Bill, bill
from netbench.plan.build import Choices, build_plan, settings
from netbench.plan.model import Plan
from netbench.report.page.published import load
from netbench.scenario.load import list_scenarios, load_scenario
from netbench.scenario.model import Scenario
from netbench.systems.rounds import Round, time_round

PREFIX = "multicloud-"
CALIBRATION, HELD_OUT = "calibration", "held out"

TWICE = "Azure"
"""Region whose machines count every byte twice."""

ROUNDS = {"A10": 4, "W": 5}
"""Rounds of a run by the first part of its name; others had 3. The first is in the traffic only."""

UNITS = {
    "throughput": "samples/s",
    "throughput_local": "samples/s",
    "granularity": "1",
    "granularity_timers": "1",
    "comm_time_per_round": "s",
    "egress_per_peer_per_round": "MB",
    "egress_per_peer": "GB",
    "usd_per_hour_spot": "$/h",
    "usd_per_hour_on_demand": "$/h",
    "usd_per_million_spot": "$/million samples",
    "usd_per_million_on_demand": "$/million samples",
}
"""Quantities, and their units. granularity: of the wall clock. granularity_timers: as published, by
timers that miss part of the computation. egress: as NICs count it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A run with Hivemind. scenario: with its machines only. part: `CALIBRATION` or `HELD_OUT`."""

    name: str
    part: str
    scenario: Scenario
    plan: Plan

    @property
    def key(self) -> tuple[str, str, int]:
        """Name, model and target batch size, as in the files."""
        return self.name, self.plan.workload.model, self.plan.workload.batch

    @property
    def devices(self) -> tuple[str, ...]:
        """The type of every peer's device."""
        return tuple(node.device for node in self.scenario.nodes)

    @property
    def round(self) -> Round:
        return time_round(self.plan)

    @property
    def bill(self) -> Bill:
        return bill(self.scenario, self.plan)


def published(name: str) -> pd.DataFrame:
    """Return one of the published files, by its name without `.csv`."""
    return load(f"multicloud/{name}")


@functools.cache
def experiments() -> tuple[Experiment, ...]:
    """Return every experiment with Hivemind, in the order of the scenario files."""
    return tuple(_experiments())


def _experiments() -> Iterator[Experiment]:
    table = published("experiments")
    part = {
        (row.experiment, row.model, row.tbs): row.part
        for row in table[["experiment", "model", "tbs", "part"]].itertuples()
    }
    for name in list_scenarios():
        if not name.startswith(PREFIX):
            continue
        scenario = load_scenario(name)
        for each, variant, setting in settings(scenario, Choices.of(scenario.sweep)):
            plan = build_plan(each, variant, setting)
            experiment = plan.peers.removesuffix(f"-{plan.workload.model}")
            key = (experiment, plan.workload.model, plan.workload.batch)
            yield Experiment(name=experiment, part=part[key], scenario=each, plan=plan)


@functools.cache
def measured() -> Mapping[tuple[str, str, int], Mapping[str, float]]:
    """Return the results of the calibration part by experiment, model and target batch size."""
    found: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
    for row in published("a_series").itertuples():
        found[row.experiment, row.model, int(row.tbs)][row.metric] = float(row.value)
    return dict(found)


def predict(experiment: Experiment) -> dict[str, float]:
    """Return the simulated value of every quantity of `UNITS`."""
    found, priced = experiment.round, experiment.bill
    sent_mb = egress_mb(experiment)
    num_rounds = ROUNDS.get(experiment.name.split("-")[0], 3)
    return {
        "throughput": found.throughput,
        "throughput_local": found.local_throughput,
        "granularity": found.granularity,
        "granularity_timers": found.granularity * timed_fraction(experiment),
        "comm_time_per_round": found.communication_s,
        "egress_per_peer_per_round": sent_mb,
        "egress_per_peer": num_rounds * sent_mb / 1e3,
        "usd_per_hour_spot": priced.hourly_usd(SPOT),
        "usd_per_hour_on_demand": priced.hourly_usd(ON_DEMAND),
        "usd_per_million_spot": priced.million_usd(SPOT),
        "usd_per_million_on_demand": priced.million_usd(ON_DEMAND),
    }


def egress_mb(experiment: Experiment) -> float:
    """Return MB that a NIC counts per round, the mean over peers."""
    ratios = wire_ratios()
    sent = experiment.round.pair_bytes.sum(axis=1) / 1e6
    factor = [
        ratios.get(node.device, ratios["T4"]) * (2 if node.region == TWICE else 1)
        for node in experiment.scenario.nodes
    ]
    return float(np.mean(sent * np.array(factor)))


@functools.cache
def wire_ratios() -> Mapping[str, float]:
    """Return bytes that NICs count over payload, by device; the median of the calibration part."""
    ratios: dict[str, list[float]] = defaultdict(list)
    models = published("models").set_index("model")["params"]
    for row in published("a_series").itertuples():
        if row.metric != "egress_per_peer_per_round":
            continue
        n = int(row.n_gpus)
        payload_mb = 4 * models[row.model] * (n - 1) / n / 1e6
        ratios[_device(row.experiment).split("-")[0]].append(float(row.value) / payload_mb)
    return {device: statistics.median(values) for device, values in ratios.items()}


def timed_fraction(experiment: Experiment) -> float:
    """Return the part of the computation that the published timers see, the mean over peers."""
    fractions, model = timed_fractions(), experiment.plan.workload.model
    april = "-april" if experiment.name.endswith("-april") else ""
    return statistics.fmean(fractions[device + april, model] for device in experiment.devices)


@functools.cache
def timed_fractions() -> Mapping[tuple[str, str], float]:
    """Return timed over real computation by device and model.

    T4 and A10: of the calibration part. On-prem machines: of their run alone, with the extra time
    of a step under Hivemind on an A10 in both.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (name, model, batch), values in measured().items():
        if "calc_time_per_round" in values and (batch == 32768 or name.startswith("W")):
            real_s = values["epoch_samples"] / values["throughput_local"]
            found[_device(name), model].append(values["calc_time_per_round"] / real_s)
    fractions = {key: statistics.fmean(values) for key, values in found.items()}
    extra = published("hivemind_penalty")
    extra = extra[(extra["device"] == "A10") & (extra["tbs"] != 32768)].groupby("model")
    noop_s, step_s = extra["noop_step_time_s"].mean(), extra["extra_step_time_ms"].mean() / 1e3
    for row in published("baselines").itertuples():
        device = {"RTX8000": "RTX8000", "DGX-2 (8xV100)": "DGX2"}.get(str(row.device))
        if device:
            timed_s = row.step_time_logged_s + noop_s[row.model]
            real_s = row.samples_per_step / row.throughput_wall_sps + step_s[row.model]
            fractions[device, str(row.model)] = min(1.0, timed_s / real_s)
    return fractions


def _device(experiment: str) -> str:
    if experiment.startswith("A10"):
        return "A10-april" if experiment.endswith("-april") else "A10"
    return "T4"
