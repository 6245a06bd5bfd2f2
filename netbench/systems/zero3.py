"""ZeRO stage 3 as DeepSpeed runs it: parameters stay gathered up to a limit.

Source: DeepSpeed's documentation of `stage3_max_live_parameters` and `reduce_bucket_size`, and the
published times of cases 1 and 2 (docs/calibration.md).
"""

import dataclasses
import re

from netbench.errors import PlanError
from netbench.plan.model import Plan
from netbench.systems.base import Variant
from netbench.systems.iteration import BACKWARD, FORWARD
from netbench.systems.sharded import MicroStep, Sharded, has_equal_steps
from netbench.workload.costs import DTYPE_BYTES, layer_matrices, layer_parameters, live_layers

LIVE_PARAMETERS = 1_200_000_000
"""Parameters that stay gathered: fitted on cases 1 and 2. DeepSpeed's default of
`stage3_max_live_parameters` is 1e9."""

REDUCE_BUCKET_PARAMETERS = 500_000_000
"""DeepSpeed's documented default of `reduce_bucket_size`."""

MAX_MESSAGES = 200_000
"""Messages of a micro-step, or of an iteration whose micro-steps differ, that an emulation sends at
most before it gathers in larger units: about 80 s on one core, at 0.4 ms per message
(docs/zero3.md). Of equal micro-steps it runs one."""


OVERLAPPED = 1
"""`Plan.revision` of plans that the trainer without overlap ran with the same units."""


class Zero3(Sharded):
    """A micro-step gathers the parameters within the limit once, before it computes, and keeps them
    from the forward to the backward pass. It gathers layers beyond the limit matrix by matrix in
    both passes, each layer while the one before it computes. It reduces gradients in buckets beside
    the compute that follows. All collectives of a group take turns on one communicator.
    """

    name = "zero3"
    grammar = "zero3[-random][-hybrid[<R>]][-accumulate] (R from 2)"
    pattern = re.compile(
        r"zero3(?P<random>-random)?(?P<hybrid>-hybrid(?P<ranks>[2-9]|[1-9]\d+)?)?"
        r"(?P<accumulate>-accumulate)?",
        re.ASCII,
    )
    examples = ("zero3", "zero3-hybrid")

    def variant(self, found: re.Match[str]) -> Variant:
        return self.sharded_variant(found)

    def complete(self, plan: Plan, variant: Variant) -> Plan:
        """Units: the layers that stay gathered, with the embeddings, then every other layer."""
        return self.simplify(dataclasses.replace(plan, live_parameters=LIVE_PARAMETERS))

    def simplify(self, plan: Plan) -> Plan:
        """At a scale above 1, gather the layers beyond the limit as one unit if their matrices are
        too many messages. The bytes are the same, the delays of the saved rings are missing."""
        whole = self.unmerged(plan)
        repeats = plan.num_micro_batches if has_equal_steps(plan) else 1
        if plan.scale > 1 and self.num_messages(whole) > MAX_MESSAGES * repeats:
            return self._merged(plan)
        return whole

    def unmerged(self, plan: Plan) -> Plan:
        kept, beyond = _kept_and_beyond(plan)
        if beyond <= 1:
            return self._merged(plan)
        return dataclasses.replace(plan, units=(*kept, *(1,) * beyond), revision=0)

    def _merged(self, plan: Plan) -> Plan:
        kept, beyond = _kept_and_beyond(plan)
        units = (*kept, beyond) if beyond else kept
        # The trainer that did not overlap always had one unit beyond the limit.
        return dataclasses.replace(plan, units=units, revision=OVERLAPPED)

    def by_layers(self, plan: Plan) -> Plan:
        kept, beyond = _kept_and_beyond(plan)
        if plan.units != (*kept, *(1,) * beyond) or plan.type_stages or not has_equal_steps(plan):
            return plan
        bucket_bytes = REDUCE_BUCKET_PARAMETERS * DTYPE_BYTES[plan.workload.dtype]
        return dataclasses.replace(plan, bucket_bytes=bucket_bytes, layer_parts=True)

    def gathered_parameters(self, plan: Plan) -> int:
        """The embeddings and the layers within the limit, the layer beyond it that computes, and
        the next one, which is gathered meanwhile. An emulation's merged units do not count."""
        layers = min(live_layers(plan.workload, plan.live_parameters) + 2, plan.workload.layers)
        return plan.workload.embedding_parameters + layers * layer_parameters(plan.workload)

    def add_passes(self, plan: Plan, step: MicroStep) -> None:
        if plan.prefetch_units:
            raise PlanError("this plan is of zero3-prefetch, which is fsdp now: plan it again")
        workload, stage, pending = plan.workload, plan.stages[0], 0.0
        live = live_layers(workload, plan.live_parameters)
        layer_s = stage.forward_s / workload.layers, stage.backward_s / workload.layers
        kept = live * layer_parameters(workload) + workload.embedding_parameters
        gathered = gate = step.start
        if step.gathers_kept:
            gathered = gate = step.gather([min(stage.parameters, kept)], step.start)
        step.wait([gate])
        beyond = _units_beyond(plan, live)
        bucket = plan.bucket_bytes / DTYPE_BYTES[workload.dtype] or REDUCE_BUCKET_PARAMETERS
        order = [(layer, False) for layer in range(workload.layers)]
        order += [(layer, True) for layer in reversed(range(workload.layers))]
        for layer, backward in order:
            first, last = beyond.get(layer, (0, 0))
            if layer >= live and layer == (last - 1 if backward else first):
                gathered = step.gather(_tensors(plan, last - first), gate)
            gate = step.device  # the next gather starts with this layer's compute
            after = [gathered] if layer >= live else []
            step.compute(BACKWARD if backward else FORWARD, layer_s[backward], after)
            if backward and step.scatters:
                pending += layer_parameters(workload)
                pending += workload.embedding_parameters if layer == 0 else 0
                while pending >= bucket and layer:
                    step.scatter(bucket)
                    pending -= bucket
                if layer == 0:
                    step.scatter(pending)


def _kept_and_beyond(plan: Plan) -> tuple[tuple[int, ...], int]:
    """Return the unit that stays gathered, if any, and the number of layers beyond the limit."""
    live = live_layers(plan.workload, plan.live_parameters)
    return (live,) if live else (), plan.workload.layers - live


def _units_beyond(plan: Plan, live: int) -> dict[int, tuple[int, int]]:
    """For each layer beyond the live limit, the first layer of its unit and the one behind it."""
    found, first = {}, 0
    for layers in plan.units:
        for layer in range(first, first + layers):
            if layer >= live:
                found[layer] = (first, first + layers)
        first += layers
    return found


def _tensors(plan: Plan, layers: int) -> list[float]:
    """Parameters of each tensor that a unit beyond the limit is gathered in."""
    if layers == 1:
        return list(layer_matrices(plan.workload))
    return [float(layers * sum(layer_matrices(plan.workload)))]
