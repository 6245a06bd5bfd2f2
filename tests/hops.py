"""Carry out specifications of collectives on lists, hop by hop: an independent executor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from netbench.plan.collectives import CollectiveStage, HopList

Values = list[list[float | None]]


def bounds(length: int, count: int) -> list[tuple[int, int]]:
    """[start, stop) of nearly equal parts."""
    return list(pairwise(length * i // count for i in range(count + 1)))


def carry_out(stages: Sequence[CollectiveStage], tensors: Sequence[Sequence[float]]) -> Values:
    """Every member's tensor afterwards. None: a partial sum, which a member need not keep."""
    values: Values = [list(tensor) for tensor in tensors]
    for stage in stages:
        num_parts = stage.num_parts if isinstance(stage, HopList) else len(tensors)
        parts = bounds(len(tensors[0]), num_parts)
        sums: set[tuple[int, int]] = set()
        partial: set[tuple[int, int]] = set()
        for hop in stage.list_hops(len(tensors)):
            if hop.adds and (hop.source, hop.part) in sums:
                partial.add((hop.source, hop.part))
            (sums.add if hop.adds else sums.discard)((hop.target, hop.part))
            partial.discard((hop.target, hop.part))
            for i in range(*parts[hop.part]):
                sent, own = values[hop.source][i], values[hop.target][i]
                assert sent is not None
                assert own is not None or not hop.adds
                values[hop.target][i] = sent + (own or 0.0) if hop.adds else sent
        for member, part in partial:
            for i in range(*parts[part]):
                values[member][i] = None
    return values
