"""Units of layers that are sharded together."""

from __future__ import annotations

from netbench.trainers.layers import Embedding, GPTBlock, Head
from netbench.trainers.units import RealUnit, build_unit
from netbench.workload.costs import layer_parameters
from tests.trainers.parity import real_plan


def test_real_units_are_the_model_in_order() -> None:
    """The embedding is in the first unit, the head in the last; blocks have the costs' size."""
    plan = real_plan("zero3", layers=(4,), dp=1, units=(3, 1))
    units = [build_unit(plan, index) for index in range(2)]
    assert all(isinstance(unit, RealUnit) for unit in units)
    kinds = [[type(layer) for layer in unit.layers] for unit in units]  # type: ignore[union-attr, arg-type]
    assert kinds == [[Embedding, *[GPTBlock] * 3], [GPTBlock, Head]]
    blocks = [p for unit in units for p in unit.parameters()]
    ends = [p for unit in units for m in unit.modules() if isinstance(m, (Embedding, Head))
            for p in m.parameters()]  # fmt: skip
    counted = sum(p.numel() for p in blocks) - sum(p.numel() for p in ends)
    assert counted == 4 * layer_parameters(plan.workload)
