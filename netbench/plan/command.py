"""Plans of the `command` system: a script of somebody's own on every rank of a scenario."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from netbench.errors import PlanError, nearest
from netbench.placement import MAPS, SEEDED
from netbench.plan.build import choose_network
from netbench.plan.checks import check_numbers
from netbench.plan.model import Layout, Plan, Transport
from netbench.scenario.model import Scenario

COMMAND = "command"
"""The system's name."""

COMPUTE = "script"
"""Where such plans compute (`Plan.compute`): where the script chooses."""

PLACEMENTS = {"command": "identity", "command-random": "random"}
"""Its variants, and the scheduler of each."""


def build_command_plan(
    scenario: Scenario,
    variant: str,
    script: Sequence[str],
    layers: int,
    batch: int,
    seed: int,
    iterations: int,
    warmup_iterations: int,
    *,
    network: str = "",
    micro_batch: int | None = None,
) -> Plan:
    """One rank per device of the scenario, each with `script`, at scale 1: its bytes are its own.

    layers, batch, micro_batch: what it is to train (it may read that from the plan), for labels and
    FLOPs. network: as in `build_plan`. Raises PlanError for an unknown variant, network or seed.
    """
    if variant not in PLACEMENTS:
        raise PlanError(f'a script cannot run as "{variant}"; {nearest(variant, PLACEMENTS)}')
    if not script:
        raise PlanError("the script is empty; write e.g. --command 'python train.py'")
    micro_batch = scenario.workload.micro_batch if micro_batch is None else micro_batch
    check_numbers(layers, batch, micro_batch, iterations, warmup_iterations, seed)
    scheduler = PLACEMENTS[variant]
    return Plan(
        scenario=scenario.name,
        variant=variant,
        system=COMMAND,
        layout=Layout(dp=scenario.num_devices),
        scheduler=scheduler,
        seed=seed,
        placement=MAPS[scheduler](scenario.num_devices, seed),
        device_nodes=scenario.device_nodes(),
        node_names=tuple(node.name for node in scenario.nodes),
        network=choose_network(scenario, network),
        workload=dataclasses.replace(
            scenario.workload, layers=layers, batch=batch, micro_batch=micro_batch
        ),
        schedule="none",
        data_parallel="none",
        num_rounds=1,
        num_micro_batches=1,
        stages=(),
        activation_bytes=0,
        transport=Transport(),
        iterations=iterations,
        warmup_iterations=warmup_iterations,
        scale=1.0,
        backend=scenario.backend,
        network_name=network,
        compute=COMPUTE,
        script=tuple(script),
    )


def build_command_plans(
    scenario: Scenario,
    variants: Sequence[str],
    script: Sequence[str],
    layers: Sequence[int],
    batch: Sequence[int],
    seeds: Sequence[int],
    iterations: int,
    warmup_iterations: int,
    *,
    networks: Sequence[str] | None = None,
    micro_batch: Sequence[int] | None = None,
) -> tuple[Plan, ...]:
    """Every combination, in the order of `build_plans`."""
    sizes: Sequence[int | None] = micro_batch or [None]
    return tuple(
        build_command_plan(
            scenario,
            variant,
            script,
            num_layers,
            size,
            seed,
            iterations,
            warmup_iterations,
            network=network,
            micro_batch=sequences,
        )
        for network in networks or [""]
        for sequences in sizes
        for num_layers in layers
        for size in batch
        for variant in variants
        for seed in (seeds if PLACEMENTS.get(variant) in SEEDED else seeds[:1])
    )
