"""The training systems: everything that is particular to one is in one module.

`base` has the interface, and what a variant is; `iteration` the form in which a system says what an
iteration consists of. A new system is a module here, a line in `SYSTEMS`, and, where ranks are to
run it, a module in `trainers.systems`.

The name of a variant is its system followed by options (`System.grammar`), so that every layout has
a name.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError, nearest
from netbench.plan.model import Plan
from netbench.scenario.sharing import SHARING
from netbench.systems.base import Position, System, Variant
from netbench.systems.ddp import Ddp
from netbench.systems.deepspeed import DeepspeedPipeline
from netbench.systems.diloco import Diloco
from netbench.systems.dtfm import Dtfm
from netbench.systems.fsdp import Fsdp
from netbench.systems.hivemind import Hivemind
from netbench.systems.megatron import Megatron
from netbench.systems.script import SCRIPT, Script
from netbench.systems.swarm import HivemindSwarm
from netbench.systems.zero3 import Zero3

SYSTEMS: dict[str, System] = {
    "dtfm": Dtfm(),
    "megatron": Megatron(),
    "deepspeed-pp": DeepspeedPipeline(),
    "zero3": Zero3(),
    "fsdp": Fsdp(),
    "ddp": Ddp(),
    "hivemind": Hivemind(),
    "diloco": Diloco(),
    "hivemind-swarm": HivemindSwarm(),
    SCRIPT: Script(),
}
"""By name (`Plan.system`)."""


def system_of(plan: Plan) -> System:
    """The system of a plan. Raises PlanError if this netbench does not know it."""
    if plan.system not in SYSTEMS:
        raise PlanError(f'unknown system "{plan.system}"; {nearest(plan.system, SYSTEMS)}')
    return SYSTEMS[plan.system]


LEAST_SUM_DELAY_S = 1e-3
"""Delay of a network from which sums of losses count, seconds. Shorter ones would change no more
than how pipelines that share a NIC meet: published times do not show that they keep in step."""


def sums_losses(plan: Plan) -> bool:
    """Return whether the last stages of a plan's replicas wait for the sum of their losses."""
    far = max(link.one_way_delay_s for row in plan.network.links for link in row)
    return system_of(plan).sums_loss and plan.layout.dp > 1 and far >= LEAST_SUM_DELAY_S


def pipelines_meet(plan: Plan) -> bool:
    """Return whether pipelines share a node, or the network has queues that belong to no node.

    If equal pipelines took equal times there, they would wait for each other in every exchange.
    """
    nodes = np.asarray(plan.device_nodes)[np.asarray(plan.placement)[rank_lanes(plan)]]
    of_each = [set(nodes) for nodes in nodes.reshape(plan.layout.dp, -1).tolist()]
    queues = SHARING[plan.network.sharing].queues
    return sum(map(len, of_each)) > len(set.union(*of_each)) or (
        len(of_each) > 1 and any(not {"src", "dst"} & set(queue.by) for queue in queues)
    )


def has_random_passes(plan: Plan) -> bool:
    """Return whether passes of pipelines take random times (`Plan.jitter`)."""
    return plan.has_pipelines and plan.jitter > 0 and pipelines_meet(plan)


def find_variant(name: str, *, script: bool = False) -> Variant:
    """The variant called `name`: of the systems that run a user's script, or of all others.

    Raises PlanError with the nearest example and the grammar.
    """
    for system in _choices(script):
        if found := system.pattern.fullmatch(name):
            return system.variant(found)
    hint = nearest(name, examples(script=script))
    if script:
        raise PlanError(f'a script cannot run as "{name}"; {hint}')
    raise PlanError(f'unknown system "{name}"; {hint} (a name is {grammar()})')


def examples(*, script: bool = False) -> tuple[str, ...]:
    """Common names of variants, to suggest from."""
    return tuple(name for system in _choices(script) for name in system.examples)


def grammar() -> str:
    """The forms of names, for messages."""
    return ", ".join(system.grammar for system in _choices(script=False))


def unplaced_name(name: str) -> str:
    """A variant's name without its placement: `dtfm-1f1b`, `megatron-p8`."""
    return re.sub(r"-(scheduled|random-nodes|random)(?=-|$)", "", name)


def placed_name(name: str, scheduler: str) -> str:
    """A variant as a row of a table: its name, or, if another scheduler than its default placed
    it, e.g. `dtfm, netbench placement`."""
    try:
        default = find_variant(name).scheduler
    except PlanError:  # e.g. a script
        return name
    return name if default == scheduler else f"{unplaced_name(name)}, {scheduler} placement"


def rank_lanes(plan: Plan) -> NDArray[np.int64]:
    """(dp * tp, pp): the ranks of each pipeline, one lane per tensor-parallel index."""
    grid = system_of(plan).rank_grid(plan.layout)
    return grid.transpose(0, 2, 1).reshape(-1, plan.layout.pp)


def pipeline_of(plan: Plan, rank: int) -> tuple[int, ...]:
    """Devices of the stages of a rank's pipeline, with its tensor-parallel index."""
    pipeline, _, tensor = position_of(plan, rank)
    return _devices(plan, system_of(plan).rank_grid(plan.layout)[pipeline, :, tensor])


def replicas_of(plan: Plan, rank: int) -> tuple[int, ...]:
    """Devices with the same part of the model as a rank, by pipeline."""
    _, stage, tensor = position_of(plan, rank)
    return _devices(plan, system_of(plan).rank_grid(plan.layout)[:, stage, tensor])


def position_of(plan: Plan, rank: int) -> Position:
    """The pipeline, stage and tensor-parallel index of a rank."""
    return system_of(plan).position(plan.layout, rank)


def _devices(plan: Plan, ranks: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(plan.placement[rank] for rank in ranks)


def _choices(script: bool) -> Iterator[System]:
    return (system for system in SYSTEMS.values() if system.runs_script == script)
