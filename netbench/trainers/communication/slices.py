"""Chunks and slices in which collectives move tensors."""

from itertools import accumulate, pairwise

import torch

from netbench.plan.collectives import ChainCut, RingCut

Bounds = list[tuple[int, int]]
"""[start, stop) of parts of a flat tensor, elements."""


def sliced(num_slices: int, size: int) -> RingCut:
    """Return a cut in one pass that gives a tensor about this many slices among `size` members."""
    return RingCut(slices=max(1, num_slices // size))


def split(length: int, count: int) -> Bounds:
    """Return [start, stop) of the parts of `equal_chunks` that are not empty."""
    return [(a, b) for a, b in equal_chunks(length, count) if b > a]


def equal_chunks(length: int, count: int) -> Bounds:
    """Return [start, stop) of `count` nearly equal parts of `length` elements, some empty."""
    return list(pairwise(length * i // count for i in range(count + 1)))


def cut_at(tensor: torch.Tensor, bounds: Bounds) -> list[torch.Tensor]:
    """Return the parts of a tensor within `bounds`, which share its memory."""
    return [tensor[a:b] for a, b in bounds]


def slices_of(chunk: tuple[int, int], count: int) -> Bounds:
    """Return [start, stop) of `count` nearly equal slices of a chunk, fewer if it is shorter."""
    return chain_slices(chunk, ChainCut(slices=count))


def chain_slices(chunk: tuple[int, int], cut: ChainCut) -> Bounds:
    """Return [start, stop) of the slices of a chunk in a chain, fewer if it is shorter."""
    start, stop = chunk
    sizes = (min(i + 1, cut.slices - i, cut.ramp) for i in range(cut.slices))
    ends = list(accumulate(sizes, initial=0))
    bounds = pairwise(start + (stop - start) * end // ends[-1] for end in ends)
    return [(a, b) for a, b in bounds if b > a]
