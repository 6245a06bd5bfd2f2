"""The interface of a training system, and what a variant of one is."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netbench.errors import PlanError
from netbench.plan.model import VIRTUAL, Layout, Plan
from netbench.plan.tensor import (
    all_reduce_bytes,
    message_bytes,
    num_all_reduces,
    on_one_node,
    tensor_groups,
)
from netbench.scenario.model import Scenario, Workload
from netbench.systems.iteration import Segment
from netbench.units import counted
from netbench.workload.costs import DTYPE_BYTES, Stage
from netbench.workload.memory import MASTER_BYTES, MOMENT_BYTES, StateBytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A training system with its placement, schedule and kind of data parallelism.

    scheduler: key of `plan.maps.MAPS`. schedule, data_parallel: as in `Plan`.
    pipeline: stages the variant insists on; None = the scenario's (see `build.pipeline_depth`).
    tensor: ranks that share every layer. num_chunks: model chunks per rank (interleaved).
    sequence_parallel, local_steps, staleness, compression, prefetch_units, accumulation,
    matchmaking_s, beside: as in `Plan`. shard_ranks: as in `Plan`; None = the devices of a region.
    """

    system: str
    scheduler: str = "identity"
    schedule: str = "none"
    data_parallel: str
    pipeline: int | None = None
    tensor: int = 1
    num_chunks: int = 1
    sequence_parallel: bool = False
    local_steps: int = 0
    staleness: int = 0
    compression: str = ""
    shard_ranks: int | None = 0
    prefetch_units: int = 0
    accumulation: str = ""
    matchmaking_s: float = 0.0
    beside: str = ""

    @property
    def is_synchronous(self) -> bool:
        """Every update uses the gradients of the whole batch, so that times compare."""
        return not self.staleness and not self.local_steps


class Position(NamedTuple):
    """Place of a rank in its plan's layout."""

    pipeline: int
    stage: int
    tensor: int


STAGES_FIRST = ("stage", "pipeline", "tensor")
PIPELINES_FIRST = ("pipeline", "stage", "tensor")
"""Orders of ranks: the axes of the layout, the one that varies slowest first. Tensor-parallel ranks
are always neighbours."""


class System:
    """A training system. Its defaults are those of a synchronous system without pipelines.

    name: also the key of the registry, of FLOP/s and of update times in device profiles.
    grammar: of its variants' names, for messages. pattern: the same as a regular expression.
    examples: names to suggest. trainer: `module:Class` that runs one rank; "" = it cannot be run.
    real_trainer: the same for layers that compute; "" = `trainer`.
    rank_order: axes, slowest first. optimizer: a key of the trainers' `OPTIMIZERS`: sgd, adam,
    adamw. updates_on_host: parameters are updated on the CPU that ranks of a node share.
    costs_as: the system whose FLOP/s and update times of device profiles apply, "" = its own.
    blocking: a rank waits for every exchange before it computes again. awaits_arrival: at least as
    long as what it sends needs to arrive over an idle network, and not only until buffers hold the
    rest. sums_loss: after every forward pass, the last stages of all replicas sum their losses and
    wait for it. overlaps_gradients: they are synchronised beside the backward pass. counts_calls:
    collectives are called so often that their cost for the host counts
    (`DeviceProfile.collective_s`). trains_named_models: not only GPTs.
    repairable: ranks with the same part of the model hold the same state, so that a lost one can be
    replaced. elastic: ranks may leave and join while others go on. has_peers: ranks contribute to
    the batch in proportion to their speed, instead of equally at the pace of the slowest.
    survives_churn: machines may go and come at any moment (`Plan.churn`).
    one_connection: two ranks have one TCP connection, whose window may limit the rate of a link.
    runs_script: a rank is a user's script.
    """

    name: ClassVar[str]
    grammar: ClassVar[str]
    pattern: ClassVar[re.Pattern[str]]
    examples: ClassVar[tuple[str, ...]] = ()
    trainer: ClassVar[str] = ""
    real_trainer: ClassVar[str] = ""
    rank_order: ClassVar[tuple[str, ...]] = STAGES_FIRST
    costs_as: ClassVar[str] = ""
    optimizer: ClassVar[str] = "adam"
    updates_on_host: ClassVar[bool] = False
    blocking: ClassVar[bool] = False
    awaits_arrival: ClassVar[bool] = False
    sums_loss: ClassVar[bool] = False
    overlaps_gradients: ClassVar[bool] = False
    counts_calls: ClassVar[bool] = False
    trains_named_models: ClassVar[bool] = False
    repairable: ClassVar[bool] = False
    elastic: ClassVar[bool] = False
    has_peers: ClassVar[bool] = False
    survives_churn: ClassVar[bool] = False
    one_connection: ClassVar[bool] = False
    runs_script: ClassVar[bool] = False

    def variant(self, found: re.Match[str]) -> Variant:
        """The variant that a match of `pattern` names."""
        raise NotImplementedError

    # Layout

    def pipeline_layouts(self, layout: Layout, layers: int) -> Iterator[str]:
        """Names of the variants with these degrees that a search of layouts should try."""
        return iter(())

    def whole_layouts(self) -> Iterator[str]:
        """Names of the variants on all devices that a search of layouts should try."""
        return iter(())

    def rank_grid(self, layout: Layout) -> NDArray[np.int64]:
        """(dp, pp, tp): the rank of every pipeline, stage and tensor-parallel index."""
        size = {"pipeline": layout.dp, "stage": layout.pp, "tensor": layout.tp}
        ranks = np.arange(layout.num_ranks).reshape([size[axis] for axis in self.rank_order])
        return ranks.transpose([self.rank_order.index(axis) for axis in Position._fields])

    def position(self, layout: Layout, rank: int) -> Position:
        """The place of a rank in the layout."""
        size = {"pipeline": layout.dp, "stage": layout.pp, "tensor": layout.tp}
        place = {}
        for axis in reversed(self.rank_order):
            rank, place[axis] = divmod(rank, size[axis])
        return Position(**place)

    def resolve_workload(self, workload: Workload, layout: Layout) -> Workload:
        """`workload` with the micro-batch that this system chooses."""
        return workload

    def stage_layers(self, layers: int, num_stages: int) -> tuple[int, ...]:
        """Layers of each stage where the scenario leaves them open; () = evenly."""
        return ()

    def num_rounds(self, variant: Variant, num_micro_batches: int, round_size: int = 0) -> int:
        """Rounds into which the micro-batches of an iteration are divided.

        round_size: micro-batches of a GPipe round that the scenario asks for, 0 = the system's.
        """
        return 1

    def micro_batches(self, workload: Workload, num_replicas: int) -> int:
        """Micro-batches of one replica (a pipeline or a rank) in an iteration. Raises PlanError if
        the batch does not divide."""
        step = num_replicas * workload.micro_batch
        if workload.batch % step:
            raise PlanError(
                f"batch {workload.batch} does not divide into micro-batches of "
                f"{workload.micro_batch} for {counted(num_replicas, 'replica')}; choose a multiple "
                f"of {step}"
            )
        return workload.batch // step

    def shard_ranks(
        self, scenario: Scenario, variant_name: str, variant: Variant, placement: Sequence[int]
    ) -> int:
        """`Plan.shard_ranks`. Raises PlanError if the devices of `placement` do not divide so."""
        return 0

    def num_shards(self, layout: Layout, shard_ranks: int) -> int:
        """Ranks that divide the parameters and optimizer state of a stage among themselves."""
        return 1

    def optimizer_shards(self, layout: Layout) -> int:
        """Ranks that divide the optimizer state of a stage alone, and not its parameters."""
        return 1

    def complete(self, plan: Plan, variant: Variant) -> Plan:
        """`plan` with the fields that only this system has."""
        return plan

    def simplify(self, plan: Plan) -> Plan:
        """`plan`, with merged collectives if its emulation would send too many messages.
        The simulator and the trainers follow the result alike."""
        return plan

    def unmerged(self, plan: Plan) -> Plan:
        """`plan` with the collectives that the system really has, however many messages they
        are."""
        return plan

    def is_merged(self, plan: Plan) -> bool:
        """Return whether `plan` has merged collectives."""
        return self.unmerged(plan).units != plan.units

    def by_layers(self, plan: Plan) -> Plan:
        """`plan`, with `layer_parts` if each of its layers does the same in every micro-step."""
        return plan

    def smallest_message_bytes(self, plan: Plan) -> float:
        """Bytes of the smallest message of an iteration's gathers, at full size; inf without."""
        return math.inf

    def trainer_of(self, plan: Plan) -> str:
        """`trainer` or `real_trainer`."""
        return self.trainer if plan.compute == VIRTUAL else self.real_trainer or self.trainer

    # Costs

    def gradient_dtype(self, dtype: str) -> str:
        """The dtype in which gradients of a `dtype` model are synchronised."""
        return dtype

    def state_bytes(self, dtype: str) -> StateBytes:
        """State on a rank's device. By default weights and gradients in the model's dtype and Adam
        in fp32: 16 bytes per fp16 parameter (Rajbhandari et al. 2020, section 3.1)."""
        weight = DTYPE_BYTES[dtype]
        master = MASTER_BYTES if weight < MASTER_BYTES else 0
        optimizer = master + 2 * max(weight, MOMENT_BYTES)
        if self.updates_on_host:
            optimizer = 0
        return StateBytes(weight=weight, gradient=weight, optimizer=optimizer)

    def restart_bytes(self, dtype: str) -> int:
        """Bytes per parameter that a rank loads to continue in another's place: the weights that
        are updated, in fp32 or more, and the optimizer's moments. Weights of 16 bits follow."""
        updated = max(DTYPE_BYTES[dtype], MASTER_BYTES)
        moments = 0 if self.optimizer == "sgd" else 2 * max(DTYPE_BYTES[dtype], MOMENT_BYTES)
        return updated + moments

    def master_weights(self, compute: str) -> str:
        """Device of the fp32 copy of 16-bit weights that is updated: cpu, cuda, "" = none."""
        return "cpu" if self.updates_on_host else compute

    def gathered_parameters(self, plan: Plan) -> int:
        """Parameters of other ranks' shards that a rank holds at the peak."""
        return 0

    def memory_remedies(self, plan: Plan) -> list[str]:
        """Changes that would let `plan` fit its devices' memory."""
        return ["a system that splits the model (zero3, fsdp, megatron)"]

    # Traffic

    def iteration_bytes(self, plan: Plan) -> float:
        """Bytes that all ranks send in an iteration, at full size, the mean over iterations.

        By default the pipelines' messages, tensor parallelism, and an all-reduce of the gradients:
        whatever its algorithm, it sends 2 (n - 1) times the tensor in all.
        """
        tp, dp = plan.layout.tp, plan.layout.dp
        gradients = tp * sum(stage.gradient_bytes for stage in plan.stages)
        activations = num_crossings(plan) * message_bytes(plan)
        layers = sum(stage.num_layers for stage in plan.stages)
        shared = dp * num_all_reduces(plan, layers) * all_reduce_bytes(plan)
        return activations + shared + 2.0 * (dp - 1) * gradients / max(1, plan.local_steps)

    def num_network_all_reduces(self, plan: Plan) -> int:
        """All-reduces of boundary tensors by groups whose ranks are on several nodes."""
        return sum(
            num_all_reduces(plan, self._stage_of_group(plan, group).num_layers)
            for group, devices in enumerate(tensor_groups(plan))
            if not on_one_node(plan, devices)
        )

    def _stage_of_group(self, plan: Plan, group: int) -> Stage:
        return plan.stages[self.position(plan.layout, group * plan.layout.tp).stage]

    def largest_tensors_bytes(self, plan: Plan) -> int:
        """The largest tensors that one rank touches to synchronise with replicas, at full size."""
        return max(stage.gradient_bytes for stage in plan.stages) if plan.layout.dp > 1 else 0

    def describe_collectives(self, plan: Plan) -> str:
        """Describe what ranks without pipelines synchronise."""
        return f"gradients of {plan.layout.dp} ranks ({plan.data_parallel})"

    # Iteration

    def representative(self, plan: Plan) -> Plan:
        """The plan whose first rank stands for all: as slow as the slowest."""
        return plan.at_slowest()

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        """An iteration of a plan without pipelines, whose ranks all do the same.

        An iteration with pipelines is its plan's schedule, then data parallelism and the update.
        Raises PlanError if the system cannot be simulated.
        """
        raise PlanError(f"no simulation for schedule {plan.schedule!r} of system {self.name!r}")


def num_crossings(plan: Plan) -> int:
    """Messages between stages in an iteration, forward and back."""
    tp, pp, dp = plan.layout.tp, plan.layout.pp, plan.layout.dp
    boundaries = pp * plan.num_chunks - 1 if pp > 1 else 0
    return 2 * tp * dp * boundaries * plan.num_rounds * plan.num_micro_batches
