"""Refuse settings that do not make a plan on any network, and doubt scales that say too little."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from netbench.errors import PlanError, nearest
from netbench.limits import MAX_BATCH, MAX_ITERATIONS, MAX_LAYERS, MAX_SCALE
from netbench.network.shaping.segments import largest_scale, segment_bytes
from netbench.plan.experiment import Experiment
from netbench.plan.maps import NUM_SEEDS
from netbench.plan.model import COMPUTE, VIRTUAL, Execution, Plan
from netbench.scenario.model import Setting, Workload
from netbench.systems import find_variant, system_of
from netbench.systems.base import Variant
from netbench.transport.profile import load_transport
from netbench.units import counted, format_bytes
from netbench.workload.tokens import check_token_file, vocabulary_size

FULL_SIZE_RANK_BYTES = 60e6
"""Limit on a rank's largest tensors, of which a rank in a guest holds several copies. User-Mode
Linux maps a process's pages one by one; the host allows 65,530 mappings, and torch takes 31,000."""


def check_numbers(setting: Setting, execution: Execution) -> None:
    """Raise PlanError for numbers that are out of range, whatever the scenario and variant."""
    sizes = {
        "layers": (setting.layers, MAX_LAYERS),
        "batch": (setting.batch, MAX_BATCH),
        "micro_batch": (setting.micro_batch, MAX_BATCH),
        "iterations": (execution.iterations, 2 * MAX_ITERATIONS),
    }
    for name, (value, most) in sizes.items():
        if value is not None and not 0 < value <= most:
            raise PlanError(f"{name} is {value}; expected a whole number from 1 to {most}")
    if not 0 <= execution.warmup_iterations < execution.iterations:
        raise PlanError(
            f"{execution.warmup_iterations} of {execution.iterations} iterations are warm-up; "
            "expected at least one iteration that is not"
        )
    if not 0 <= setting.seed < NUM_SEEDS:
        raise PlanError(
            f"seed is {setting.seed}; expected a whole number from 0 to {NUM_SEEDS - 1}"
        )


def check_compute(chosen: Variant, workload: Workload, execution: Execution) -> None:
    """Raise PlanError if the layers of `workload` cannot compute as `execution` says."""
    compute, token_file, scale = execution.compute, execution.token_file, execution.scale
    if compute not in COMPUTE:
        raise PlanError(f'layers cannot compute on "{compute}"; {nearest(compute, COMPUTE)}')
    if compute != VIRTUAL and not workload.model:
        vocabulary_size(workload)
    if compute != VIRTUAL and scale not in (None, 1.0):
        raise PlanError(
            f"scale is {scale:g}, but layers that compute (on {compute}) send all of their bytes; "
            "leave out the scale or --compute"
        )
    if token_file and compute == VIRTUAL:
        raise PlanError("virtual layers read no tokens; add --compute, or leave out the token file")
    if token_file and workload.model:
        raise PlanError(
            f"{workload.model} is trained on synthetic data; leave out the token file {token_file}"
        )
    if scale is not None and not 1 <= scale <= MAX_SCALE:
        raise PlanError(f"scale is {scale:g}; expected a number from 1 to {MAX_SCALE:.0f}")


def check_data(plan: Plan) -> None:
    """Raise PlanError unless the plan's token file, if any, exists and the model knows all tokens
    that the plan reads from it."""
    if plan.token_file:
        num_sequences = plan.iterations * plan.workload.batch
        check_token_file(Path(plan.token_file), plan.workload, num_sequences)


def check_tensor(workload: Workload, chosen: Variant) -> None:
    """Raise PlanError unless tensor-parallel ranks divide attention heads and columns evenly, and
    tokens too under sequence parallelism."""
    tensor = chosen.tensor
    if chosen.sequence_parallel and tensor == 1:
        raise PlanError("sequence parallelism needs tensor-parallel ranks: t<T>-sp with T from 2")
    if chosen.sequence_parallel and workload.sequence % tensor:
        raise PlanError(
            f"sequence is {workload.sequence}, which does not divide among {tensor} ranks that are "
            "sequence parallel; choose t<T> with T a divisor, or leave out -sp"
        )
    for name, value in (("heads", workload.heads), ("hidden", workload.hidden)):
        if value % tensor:
            raise PlanError(
                f"{name} is {value}, which does not divide among {tensor} tensor-parallel ranks; "
                f"choose t<T> with T a divisor of {math.gcd(workload.heads, workload.hidden)}"
            )


def check_stage_layers(stage_layers: Sequence[int], depth: int, layers: int) -> None:
    """Raise PlanError unless `stage_layers` is empty, or has `depth` numbers that add up to
    `layers`."""
    if not stage_layers:
        return
    if len(stage_layers) != depth or sum(stage_layers) != layers or min(stage_layers) < 1:
        raise PlanError(
            f"stages of {', '.join(map(str, stage_layers))} layers: expected "
            f"{counted(depth, 'stage')} of at least one layer each that add up to {layers}"
        )


def micro_batch_warnings(plans: Iterable[Plan], asked: Iterable[int]) -> tuple[str, ...]:
    """Name the micro-batches asked for that a system replaced by its own choice, per variant."""
    found: dict[str, set[int]] = {}
    for plan in plans:
        found.setdefault(plan.variant, set()).add(plan.workload.micro_batch)
    return tuple(
        f"{variant} chooses its own size: {_listed(sizes)} sequences, not {_listed(missing)}"
        for variant, sizes in found.items()
        if (missing := set(asked) - sizes)
    )


def check_micro_batch(plan: Plan, asked: int | None) -> None:
    """Raise PlanError if the system replaced the micro-batch asked for, if any, by its own."""
    for warning in micro_batch_warnings([plan], () if asked is None else (asked,)):
        raise PlanError(f"micro-batch: {warning}")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def check_chunks(
    variant: str, depth: int, layers: int, stage_layers: Sequence[int], micro_batches: int
) -> None:
    """Raise PlanError if layers or micro-batches do not divide as the interleaved schedule needs.

    Source: Narayanan et al. 2021, section 2.2.
    """
    chunks = find_variant(variant).num_chunks
    if chunks == 1:
        return
    if depth == 1:
        raise PlanError(
            f"{variant} has one pipeline stage; interleaving needs at least 2: add -p<P>"
        )
    if any(count % chunks for count in stage_layers):
        raise PlanError(
            f"stages of {', '.join(map(str, stage_layers))} layers (`pipeline_layers`) do not all "
            f"divide into the {chunks} chunks of {variant}; choose multiples of {chunks}"
        )
    if not stage_layers and layers % (depth * chunks):
        raise PlanError(
            f"{counted(layers, 'layer')} cannot be divided into {depth} stages x {chunks} chunks "
            f"of {variant}; choose a multiple of {depth * chunks}, or fewer chunks"
        )
    if micro_batches % depth:
        raise PlanError(
            f"{variant} interleaves, so it needs a multiple of {depth} micro-batches per pipeline, "
            f"found {micro_batches}; choose another batch or micro-batch"
        )


def dynamics_doubt(plan: Experiment) -> str:
    """Return why a plan at a scale without segments says nothing about TCP on some links, or "".

    There a message may be smaller than the first window, which TCP sends at once. It does not
    matter on links whose bandwidth-delay product fits the first window.
    """
    if plan.scale <= 1 or plan.network.tcp.acts or plan.network.num_nodes < 2:
        return ""
    network, transport = plan.network, load_transport(plan.backend)
    window = transport.first_window_segments * transport.sockets * segment_bytes(network)
    regions = sorted(set(network.node_regions))
    products = [
        min(network.links[src][dst].bandwidth_bps, max(network.nic_bps, default=math.inf)) / 8
        * (network.links[src][dst].one_way_delay_s + network.links[dst][src].one_way_delay_s)
        for src in regions
        for dst in regions
        if src != dst or network.node_regions.count(src) > 1
    ]  # fmt: skip
    beyond = [product for product in products if window < product < math.inf]
    if not beyond:
        return ""
    advice = "use --faithful"
    if isinstance(plan, Plan) and not fits_guest(plan, largest_scale(network)):
        advice = "its tensors are too large for --faithful, so believe the simulated time"
    return (
        f"scale {plan.scale:g} divides bytes, but not segments, so that TCP's windows do not act, "
        f"and the bandwidth-delay product of {counted(len(beyond), 'kind')} of links, up to "
        f"{format_bytes(max(beyond))}, exceeds the first window of {format_bytes(window)}; {advice}"
    )


def fits_guest(plan: Plan, scale: float) -> bool:
    """Return whether a rank's largest tensors, divided by `scale`, fit a guest
    (`FULL_SIZE_RANK_BYTES`)."""
    return system_of(plan).largest_tensors_bytes(plan) / scale <= FULL_SIZE_RANK_BYTES


def check_churn(plan: Plan) -> None:
    """Raise PlanError if `plan` cannot run with machines that go and come."""
    if len(plan.placement) != len(plan.node_names):
        raise PlanError(
            f"{plan.variant} has {len(plan.placement)} ranks on {len(plan.node_names)} machines; "
            "interruptions need one device per machine"
        )
    if not (system_of(plan).survives_churn and not plan.staleness):
        raise PlanError(
            f"{plan.variant} does not run with machines that go and come; use hivemind-swarm or "
            "diloco"
        )
