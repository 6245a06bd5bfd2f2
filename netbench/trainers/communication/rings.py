"""Rings: reduce-scatter, all-gather and all-reduce, in passes and slices.

The passes of a ring are `Post`s: the receives of one are posted while the one before it runs, as
NCCL's buffers are ready.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from netbench.plan.collectives import Ring, RingCut, ring_parts
from netbench.trainers.communication.group import Group, Post, run_ahead, wait_all
from netbench.trainers.communication.slices import Bounds, cut_at, equal_chunks, slices_of
from netbench.trainers.communication.world import PendingTransfer
from netbench.trainers.events import recorded


def ring_posts(group: Group, stage: Ring, tensor: torch.Tensor, cut: RingCut) -> list[Post]:
    """Return the passes of a ring over equal parts for `run_ahead`."""
    chunks = equal_chunks(tensor.numel(), group.size)
    if stage.backwards:
        group, chunks = group.backwards(), chunks[::-1]
    if stage.reduces and stage.gathers:
        return all_reduce_posts(group, tensor, cut, chunks)
    if stage.reduces:
        mine = tensor[slice(*chunks[group.index])]
        return _reduce_scatter_posts(group, mine, tensor, chunks, cut)
    return _all_gather_posts(group, tensor, chunks, cut)


@recorded("collective")
def ring_reduce_scatter(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds, cut: RingCut
) -> None:
    """Sum tensor[chunks[i]] over the members into member i's `output`; `tensor` is kept.

    chunks: (size, 2) bounds within `tensor`, one per member.
    """
    run_ahead(_reduce_scatter_posts(group, output, tensor, chunks, cut))


@recorded("collective")
def ring_all_gather(group: Group, tensor: torch.Tensor, chunks: Bounds, cut: RingCut) -> None:
    """Copy member i's tensor[chunks[i]] to every other member's tensor, in place."""
    run_ahead(_all_gather_posts(group, tensor, chunks, cut))


def _reduce_scatter_posts(
    group: Group, output: torch.Tensor, tensor: torch.Tensor, chunks: Bounds, cut: RingCut
) -> list[Post]:
    mine = slice(*chunks[group.index])
    if group.size == 1:
        return [lambda: lambda: _copy(tensor[mine], output)]
    scratch = torch.empty_like(tensor)
    last = partial(_copy, scratch[mine], output)
    return _round_posts(group, tensor, scratch, chunks, cut, adds=True, last=last)


def _all_gather_posts(
    group: Group, tensor: torch.Tensor, chunks: Bounds, cut: RingCut
) -> list[Post]:
    if group.size == 1:
        return [lambda: lambda: None]
    return _round_posts(group, tensor, tensor, chunks, cut, adds=False)


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def _round_posts(
    group: Group,
    own: torch.Tensor,
    into: torch.Tensor,
    chunks: Bounds,
    cut: RingCut,
    *,
    adds: bool,
    last: Callable[[], None] = lambda: None,
) -> list[Post]:
    """Receive chunks of a ring in `into`, slice by slice, and pass them on, with `own` if it adds.

    last: called when all has been received; sends may still be under way.
    """
    group, parts = _in_passes(group, chunks, cut.passes)
    sends: list[PendingTransfer] = []

    def post(part: Bounds) -> Callable[[], None]:
        run = _post_pass(group, own, into, part, cut.slices, adds=adds)

        def run_pass() -> None:
            sends.extend(run())
            if part is parts[-1]:
                last()
                wait_all(sends)

        return run_pass

    return [partial(post, part) for part in parts]


def _in_passes(group: Group, chunks: Bounds, num_passes: int) -> tuple[Group, list[Bounds]]:
    """Return the piece of every chunk that each pass moves, and a group that posts all receives of
    a pass: one pass may be posted behind another."""
    if num_passes == 1:
        return group, [chunks]
    cut = [equal_chunks(stop - start, num_passes) for start, stop in chunks]
    parts = [
        [(start + a, start + b) for (start, _), (a, b) in zip(chunks, part, strict=True)]
        for part in zip(*cut, strict=True)
    ]
    return replace(group, ahead_bytes=math.inf), parts


def _post_pass(
    group: Group, own: torch.Tensor, into: torch.Tensor, chunks: Bounds, num_slices: int, *,
    adds: bool,
) -> Callable[[], list[PendingTransfer]]:  # fmt: skip
    """Post the receives of one pass; return the function that does the rest."""
    first, *others = _ring_slices(group, chunks, num_slices, adds=adds)
    rest = [bounds for slices in others for bounds in slices]
    num_passed_on = len(rest) - len(others[-1])
    received = group.receive(cut_at(into, rest))

    def run() -> list[PendingTransfer]:
        sends = [group.send(part) for part in cut_at(own, first)]
        for i, (part, mine) in enumerate(zip(received, cut_at(own, rest), strict=True)):
            if adds:
                part += mine
            if i < num_passed_on:
                sends.append(group.send(part))
        return sends

    return run


def _ring_slices(group: Group, chunks: Bounds, num_slices: int, *, adds: bool) -> list[Bounds]:
    """Return the slices of the chunk that this member sends first in a ring, then of those that it
    receives, in order. num_slices: of each chunk."""
    order = ring_parts(group.size, group.index, adds=adds)
    return [slices_of(chunks[part], num_slices) for part in order]


@recorded("collective")
def ring_all_reduce(
    group: Group, tensor: torch.Tensor, cut: RingCut, chunks: Bounds | None = None
) -> None:
    """Sum over the members, in place: a reduce-scatter and an all-gather without a pause.

    chunks: as in `ring_reduce_scatter`; None = equal ones.
    """
    run_ahead(all_reduce_posts(group, tensor, cut, chunks))


def all_reduce_posts(
    group: Group, tensor: torch.Tensor, cut: RingCut, chunks: Bounds | None = None
) -> list[Post]:
    """Return the passes of `ring_all_reduce` for `run_ahead`."""
    chunks = chunks or equal_chunks(tensor.numel(), group.size)
    group, parts = _in_passes(group, chunks, cut.passes)
    return [partial(_post_ring_all_reduce, group, tensor, cut.slices, part) for part in parts]


def _post_ring_all_reduce(
    group: Group, tensor: torch.Tensor, num_slices: int, chunks: Bounds
) -> Callable[[], None]:
    """Post the receives of `ring_all_reduce`; return the function that does the rest.

    A sum that arrives already contains this member's part, so it may overwrite that part.
    num_slices: of each chunk.
    """
    if group.size == 1:
        return lambda: None
    first, *adding = _ring_slices(group, chunks, num_slices, adds=True)
    _, *copying = _ring_slices(group, chunks, num_slices, adds=False)
    own = cut_at(tensor, [bounds for slices in adding for bounds in slices])
    sums = cut_at(tensor, [bounds for slices in copying for bounds in slices])
    received = group.receive([*map(torch.empty_like, own), *sums])
    num_partial, num_passed_on = len(own) - len(adding[-1]), len(sums) - len(copying[-1])

    def run() -> None:
        sends = [group.send(part) for part in cut_at(tensor, first)]
        for i, mine in enumerate(own):
            total = next(received).add_(mine)
            sends.append(group.send(total if i < num_partial else mine.copy_(total)))
        for i, total in enumerate(received):
            if i < num_passed_on:
                sends.append(group.send(total))
        wait_all(sends)

    return run
