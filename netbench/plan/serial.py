"""A plan as canonical JSON: sorted keys, no spaces, types from the annotations, inf as "inf".

Fields added after plans were first recorded are left out where they have their default
(`scenario.model.LATER`): read a plan with `plan_from_json`, not by its keys.
"""

import dataclasses
import json
import math
import typing
from typing import Any

from netbench.errors import PlanError
from netbench.plan.collectives import DATA_PARALLEL
from netbench.plan.model import PLAN_SCHEMA_VERSION, Plan
from netbench.plan.schedules import SCHEDULES
from netbench.records import canonical_text, content_hash
from netbench.scenario.model import LATER, Network
from netbench.scenario.sharing import SHARING

MOST = 1e30
"""Largest number in a plan, far above all sums of sizes and times."""


def plan_to_json(plan: Plan) -> str:
    """Return the plan as one line of canonical JSON: equal plans give equal text."""
    return canonical_json(Plan, plan)


def plan_from_json(text: str) -> Plan:
    """Read a plan that `plan_to_json` wrote. Raises PlanError that names the wrong field."""
    plan = decode_version(Plan, read_json(text), "plan", PLAN_SCHEMA_VERSION)
    assert isinstance(plan, Plan)
    _check_parts(plan)
    return plan


def _check_parts(plan: Plan) -> None:
    """Raise PlanError unless the parts of a plan fit each other."""
    network, layout = plan.network, plan.layout
    num_regions, num_nodes = len(network.regions), network.num_nodes
    num_devices, stages = len(plan.device_nodes), len(plan.stages)
    fits = {
        "network.links": {len(network.links), *map(len, network.links)} == {num_regions},
        "network.node_regions": max(network.node_regions, default=0) < num_regions,
        "network.nic_bps": len(network.nic_bps) == len(plan.node_names) == num_nodes,
        "network.host_bps": len(network.host_bps) in (0, num_nodes),
        "network.sharing": network.sharing in SHARING,
        "device_nodes": max(plan.device_nodes, default=0) < num_nodes,
        "placement": max(plan.placement, default=0) < num_devices
        and len(plan.placement) == len(set(plan.placement)) == layout.num_ranks > 0,
        "stages": stages == layout.pp or bool(plan.script),
        "type_stages": len(plan.type_stages) == len(plan.type_names)
        and {stages, *map(len, plan.type_stages)} == {stages},
        "device_types": len(plan.device_types) in ((num_devices,) if plan.type_names else (0,))
        and max(plan.device_types, default=-1) < len(plan.type_names),
        "num_micro_batches": min(plan.num_micro_batches, plan.num_rounds, plan.num_chunks) > 0,
        "data_parallel": not plan.has_pipelines
        or plan.data_parallel in (*DATA_PARALLEL, "reduce-broadcast", "zero1", "by-tensor"),
        "schedule": plan.schedule in (*SCHEDULES, "none"),
        "parts": not plan.parts
        or (
            (len(plan.parts) == 2 and 0 < plan.parts[0] < plan.parts[1])
            and plan.parts[0] <= plan.num_periods
            and (plan.repeats_rounds or not plan.has_pipelines or plan.parts[0] >= plan.depth)
        ),
        "layer_parts": not plan.layer_parts
        or (
            (len(plan.parts) == 2 and plan.parts[1] <= plan.num_periods)
            and (set(plan.units[1:]) == {1} and sum(plan.units) == plan.workload.layers)
            and (stages == 1 and not plan.type_stages)
        ),
    }
    if wrong := [name for name, fit in fits.items() if not fit]:
        raise PlanError(f"plan.{wrong[0]}: does not fit the other parts; was the plan edited?")


def read_json(text: str) -> Any:
    """Return the data of a plan's text. Raises PlanError if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise PlanError(f"plan: not JSON ({error}); expected what netbench wrote") from None


def decode_version(kind: Any, data: Any, what: str, expected: int) -> Any:
    """Reverse `encode` for data with a `schema_version`. Raises PlanError if it is another."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != expected:
        raise PlanError(f"{what}: schema_version is {version!r}; this netbench reads {expected}")
    return decode(kind, data, "plan")


def plan_hash(plan: Plan) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the canonical JSON."""
    return content_hash(plan_to_json(plan))


def network_to_json(network: Network) -> str:
    """Return a network as it is written in a plan."""
    return json.dumps(encode(Network, network), sort_keys=True, allow_nan=False)


def network_from_json(text: str) -> Network:
    """Read a network that `network_to_json` wrote. Raises PlanError that names the wrong field."""
    network = decode(Network, json.loads(text), "network")
    assert isinstance(network, Network)
    return network


def canonical_json(kind: Any, value: Any) -> str:
    """Return a dataclass of type `kind` as one line: equal values give equal text."""
    return canonical_text(encode(kind, value))


def encode(kind: Any, value: Any) -> Any:
    """Return `value`, annotated as `kind`, as JSON data. An int in a float field is written as a
    float, so that a plan and its copy read from JSON have the same hash."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {
            field.name: encode(hints[field.name], getattr(value, field.name))
            for field in dataclasses.fields(kind)
            if not (field.metadata == LATER and getattr(value, field.name) == field.default)
        }
    if typing.get_origin(kind) is tuple:
        return [encode(typing.get_args(kind)[0], item) for item in value]
    if kind is float:
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def decode(kind: Any, data: Any, where: str) -> Any:
    """Reverse `encode`. where: the path of `data`, for messages."""
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(data, list):
            raise _mismatch(where, data, "a list")
        item = typing.get_args(kind)[0]
        return tuple(decode(item, value, f"{where}[{i}]") for i, value in enumerate(data))
    if kind is float and (data == "inf" or type(data) is int):
        data = float(data)
    if type(data) is not kind:
        raise _mismatch(where, data, kind.__name__)
    if kind in (int, float) and not 0 <= data <= (MOST if data != math.inf else data):
        raise _mismatch(where, data, f"a number from 0 to {MOST:g}")
    return data


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _mismatch(where, data, "an object")
    hints = typing.get_type_hints(kind)
    if unknown := sorted(data.keys() - hints.keys()):
        raise PlanError(f"{where}: unknown field {unknown[0]!r}; written by another netbench?")
    values = {k: decode(hints[k], data[k], f"{where}.{k}") for k in hints if k in data}
    try:
        return kind(**values)
    except TypeError as error:
        raise PlanError(f"{where}: {error}; written by another netbench?") from None


def _mismatch(where: str, found: Any, expected: str) -> PlanError:
    text = json.dumps(found)
    shown = text if len(text) <= 40 else text[:37] + "..."
    return PlanError(f"{where}: found {shown}, expected {expected}")
