"""FSDP: torch's `fully_shard`, which reshards every unit after its forward pass.

Source: Zhao et al., "PyTorch FSDP" (VLDB 2023); `torch.distributed.fsdp.fully_shard`.
"""

import dataclasses
import re
from collections.abc import Iterable
from itertools import pairwise

from netbench.plan.model import Plan
from netbench.systems.base import Variant
from netbench.systems.iteration import BACKWARD, FORWARD
from netbench.systems.sharded import MicroStep, Sharded, unit_parameters
from netbench.workload.costs import layer_parameters

UNITS = 8
"""Units of a model, of nearly equal layers. Only the first unit's gather cannot be hidden, an
eighth. More units would hide more, and cost an emulation more messages in proportion."""


class Fsdp(Sharded):
    """Each unit is gathered for its forward pass, freed, and gathered again for its backward pass:
    three passes of the parameters over the network, with the gradients'. The next units are
    gathered while one computes, and gradients are scattered while the next unit computes. A scatter
    ends before the next one begins.
    """

    name = "fsdp"
    grammar = "fsdp[-random][-hybrid[<R>]][-prefetch<N>][-accumulate] (R from 2)"
    pattern = re.compile(
        r"fsdp(?P<random>-random)?(?P<hybrid>-hybrid(?P<ranks>[2-9]|[1-9]\d+)?)?"
        r"(-prefetch(?P<units>[1-9]\d*))?(?P<accumulate>-accumulate)?",
        re.ASCII,
    )
    examples = ("fsdp", "fsdp-hybrid")

    def variant(self, found: re.Match[str]) -> Variant:
        return self.sharded_variant(found, prefetch_units=int(found["units"] or 1))

    def complete(self, plan: Plan, variant: Variant) -> Plan:
        layers, count = plan.workload.layers, min(UNITS, plan.workload.layers)
        bounds = pairwise(layers * i // count for i in range(count + 1))
        return dataclasses.replace(plan, units=tuple(b - a for a, b in bounds))

    def gathered_parameters(self, plan: Plan) -> int:
        """The unit that computes, and those that are gathered ahead."""
        layers = min(max(plan.units) * (1 + plan.prefetch_units), plan.workload.layers)
        return plan.workload.embedding_parameters + layers * layer_parameters(plan.workload)

    def add_passes(self, plan: Plan, step: MicroStep) -> None:
        workload, stage, sizes = plan.workload, plan.stages[0], unit_parameters(plan)
        count, gathered = len(plan.units), dict[int, int]()

        def gather(units: Iterable[int]) -> None:
            ready = step.device
            for unit in units:
                if 0 <= unit < count and unit not in gathered:
                    gathered[unit] = step.gather([sizes[unit]], ready)

        scatter = step.start
        order = [(u, 1) for u in range(count)] + [(u, -1) for u in reversed(range(count))]
        for unit, direction in order:
            gather([unit])
            step.wait([gathered[unit]])
            gather(unit + direction * ahead for ahead in range(1, plan.prefetch_units + 1))
            fraction = plan.units[unit] / workload.layers
            if direction > 0:
                step.compute(FORWARD, stage.forward_s * fraction)
                del gathered[unit]
                continue
            step.compute(BACKWARD, stage.backward_s * fraction)
            del gathered[unit]
            if step.scatters:
                step.wait([scatter])
                scatter = step.scatter(sizes[unit])
        step.wait(step.builder.last("inside", "across"))
