"""`netbench net import --run RUN`: write the scenario of a run, on the network it measured."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from netbench.errors import RecordError, UsageError
from netbench.network.probing.measured import MeasuredNetwork, measured_network, unprobed
from netbench.plan.model import Plan
from netbench.plan.serial import plan_from_json
from netbench.records import Run, find_run, read_run
from netbench.scenario.measured.replay import Repetition, repetition_yaml
from netbench.scenario.model import DeviceProfile
from netbench.systems import system_of
from netbench.units import counted
from netbench.workload.costs import layer_forward_flops
from netbench.workload.models import MODELS

DEVICE = "Device"
"""Name of a device whose name the plans do not have: all are of one type."""

UNKNOWN_FLOPS = 1e12
"""FLOP/s of a device that no plan computes on: the run was of a script."""


def run_scenario(run_path: str, results: Path, name: str, title: str) -> str:
    """Return the text of the scenario of a run, whose links are those that its probes measured.

    run_path: folder of the run, or name of its scenario. Raises RecordError for a run without a
    probe, UsageError for one on several networks.
    """
    run = read_run(_path(run_path, results))
    plans = [plan_from_json(json.dumps(plan)) for plan in _trained(run)]
    network = plans[0].network
    if any((plan.network, plan.scale) != (network, plans[0].scale) for plan in plans):
        raise UsageError(
            f"{run.path} is on several networks, or at several scales, and its probes do not say "
            "which they measured; run one of them alone, with --networks or --systems"
        )
    if not run.probes:
        raise RecordError(
            f"{run.path} has no probe: no network was measured; run its scenario with netbench run "
            "on a local testbed or with --inventory, for a simulation measures nothing"
        )
    try:
        probes = [probe.result for probe in run.probes]
        measured = measured_network(network, probes, _names(run, plans[0]), plans[0].scale)
    except RecordError as error:
        raise RecordError(f"{run.path}: {error}") from None
    return repetition_yaml(_repetition(run, plans, measured, name, title))


def _path(run: str, results: Path) -> Path:
    path = Path(run)
    if path.exists():
        return path
    found = find_run(results, run)
    if found is None:
        raise UsageError(
            f"{run} is neither a run's folder nor a scenario with a run in {results}; expected "
            "e.g. --run results/NAME-..."
        )
    return found


def _trained(run: Run) -> list[dict[str, Any]]:
    """Return the plans of training. Raises RecordError if there are none."""
    plans = [plan for plan in run.plans.values() if "workload" in plan]
    if not plans:
        raise RecordError(f"{run.path} has no plan of training; expected a run of netbench run")
    return plans


def _names(run: Run, plan: Plan) -> tuple[str, ...]:
    """Return the names of the nodes: those of the hosts that played them, if they are known."""
    hosts = next((record.hosts for record in run.records if record.hosts), ())
    names = tuple(sample.host for sample in hosts)
    return names if len(names) == plan.network.num_nodes else plan.node_names


def _repetition(
    run: Run, plans: Sequence[Plan], measured: MeasuredNetwork, name: str, title: str
) -> Repetition:
    first = plans[0]
    piped = [plan for plan in plans if plan.layout.pp > 1]
    uneven = {
        tuple(stage.num_layers for stage in plan.stages)
        for plan in piped
        if len({stage.num_layers for stage in plan.stages}) > 1
    }
    workload = next((p.workload for p in plans if not system_of(p).counts_calls), first.workload)
    trained = [plan for plan in plans if not plan.script]
    sweep: dict[str, list[object]] = {
        "variants": [plan.variant for plan in trained],
        "seeds": [plan.seed for plan in plans],
    }
    if workload.model:
        sweep["replicas"] = [plan.layout.num_ranks for plan in plans]
    else:
        sweep["layers"] = [plan.workload.layers for plan in plans]
        sweep["batch"] = [plan.workload.batch for plan in plans]
    return Repetition(
        name=name,
        title=title or f"{first.scenario}, on the network of run {run.run_id}",
        comments=_comments(run, measured),
        network=measured.network,
        node_devices=_node_devices(first),
        notes=measured.notes,
        devices=_devices(plans),
        workload=workload,
        batch_per_replica=workload.batch // first.layout.dp,
        backend=first.backend,
        sweep={key: list(dict.fromkeys(values)) for key, values in sweep.items()},
        pipeline=piped[0].layout.pp if piped else 0,
        pipeline_layers=uneven.pop() if len(uneven) == 1 else (),
    )


def _comments(run: Run, measured: MeasuredNetwork) -> tuple[str, ...]:
    places = dict.fromkeys(session.environment.machine for session in run.sessions)
    probes = counted(len(run.probes), "probe")
    trust = "not trustworthy" if run.reasons else "trustworthy" if run.verdicts else "not finished"
    return (
        f"Made by: netbench net import --run {run.run_id}",
        f"Network: {probes} of run {run.run_id}, which is {trust}. {unprobed(measured)}",
        *(f"Hosts: {place}" for place in places),
    )


def _node_devices(plan: Plan) -> tuple[tuple[str, int], ...]:
    """Return the profile and the number of devices of every node."""
    names: list[str] = [DEVICE] * plan.network.num_nodes
    counts = [0] * plan.network.num_nodes
    for device, node in enumerate(plan.device_nodes):
        names[node] = plan.type_on(device) or DEVICE
        counts[node] += 1
    return tuple(zip(names, (max(1, count) for count in counts), strict=True))


def _devices(plans: Sequence[Plan]) -> dict[str, DeviceProfile]:
    """Return the profiles of which the plans have the costs."""
    devices: dict[str, DeviceProfile] = {}
    for plan in reversed(plans):  # of one system, the first counts
        for name in plan.type_names or (DEVICE,):
            before = devices.get(name)
            profile = _profile(name, plan)
            devices[name] = _joined(before, profile) if before else profile
    return {name: _with_speed(devices[name]) for name in sorted(devices)}


def _profile(name: str, plan: Plan) -> DeviceProfile:
    """Return the speeds that give the plan's costs."""
    profile = DeviceProfile(name=name, flops={}, source="costs in the run's plans")
    stages = plan.type_stages[plan.type_names.index(name)] if plan.type_names else plan.stages
    stage = max(stages, key=lambda some: some.forward_s, default=None)
    if stage is None or not stage.forward_s:
        return profile
    workload = plan.workload
    if workload.model:
        samples_per_s = workload.micro_batch / (stage.forward_s + stage.backward_s)
        units = MODELS[workload.model].units_per_sample
        return replace(profile, throughput={workload.model: samples_per_s * units})
    forward_flops = stage.num_layers * layer_forward_flops(workload) / plan.layout.tp
    shards = system_of(plan).num_shards(plan.layout, plan.shard_ranks)
    return replace(
        profile,
        flops={plan.system: forward_flops / stage.forward_s},
        optimizer_s_per_parameter={plan.system: stage.optimizer_s * shards / stage.parameters},
        collective_s={plan.system: plan.collective_s},
    )


def _joined(first: DeviceProfile, second: DeviceProfile) -> DeviceProfile:
    """Return a profile with the speeds of both; of one key, the second's."""
    tables: tuple[str, ...] = ("flops", "optimizer_s_per_parameter", "collective_s", "throughput")
    merged: Mapping[str, dict[str, float]] = {
        name: getattr(first, name) | getattr(second, name) for name in tables
    }
    return replace(first, **merged)  # type: ignore[arg-type]  # tables of numbers


def _with_speed(profile: DeviceProfile) -> DeviceProfile:
    """Give a profile without any speed one: a scenario needs it, and no plan uses it."""
    if profile.flops or profile.throughput:
        return profile
    return replace(profile, flops={"default": UNKNOWN_FLOPS}, source="unknown: a script ran")
