"""Names of variants: a training system with the choices that make it one column of a table.

A name is the system followed by options, so that there is a name for every layout:

    megatron[-p<P>|-[p<P>]t<T>[-sp]][-interleaved<V>|-zero-bubble][-random]
    dtfm-(scheduled|random)[-p<P>][-1f1b][-allreduce|-sharded-ps]
    zero3[-random][-hybrid[<R>]][-prefetch[<N>]][-accumulate]
    ddp[-tree|-central-ps|-sharded-ps]
    hivemind[-sync]
    diloco[-h<H>]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from netbench.errors import PlanError, nearest

GRAMMAR = (
    "megatron[-p<P>|-[p<P>]t<T>[-sp]][-interleaved<V>|-zero-bubble][-random] (V from 2), "
    "dtfm-(scheduled|random)[-p<P>][-1f1b][-allreduce|-sharded-ps], "
    "zero3[-random][-hybrid[<R>]][-prefetch[<N>]][-accumulate] (R from 2), "
    "ddp[-tree|-central-ps|-sharded-ps], hivemind[-sync], diloco[-h<H>]"
)
"""What a name can be, for messages."""

LOCAL_STEPS = 500
"""diloco's inner steps where the name does not say: Douillard et al., "DiLoCo: Distributed
Low-Communication Training of Language Models" (2023), section 3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A training system with its placement, schedule and kind of data parallelism.

    scheduler: key of `placement.MAPS`. schedule, data_parallel: as in `Plan`.
    pipeline: stages the variant insists on; None = the scenario's (see `build.pipeline_depth`).
    tensor: ranks that share every layer. num_chunks: model chunks per rank (interleaved).
    sequence_parallel, local_steps, staleness, compression, prefetch_units, accumulation: as in
    `Plan`. shard_ranks: as in `Plan`; None = the devices of a region.
    """

    system: str
    scheduler: str
    schedule: str
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


def find_variant(name: str) -> Variant:
    """The variant called `name`. Raises PlanError with the nearest common one and the grammar."""
    for pattern, variant in _SYSTEMS:
        if found := pattern.fullmatch(name):
            return variant(found)
    raise PlanError(f'unknown system "{name}"; {nearest(name, NAMED)} (a name is {GRAMMAR})')


def unplaced_name(name: str) -> str:
    """A variant's name without what it says of the placement: `dtfm-1f1b`, `megatron-p8`."""
    return re.sub(r"-(scheduled|random)(?=-|$)", "", name)


def placed_name(name: str, scheduler: str) -> str:
    """A variant as a row of a table: by its name, or, where another scheduler than its own placed
    it, e.g. `dtfm, netbench placement`."""
    own = next((variant(found) for p, variant in _SYSTEMS if (found := p.fullmatch(name))), None)
    if own is None or own.scheduler == scheduler:
        return name
    return f"{unplaced_name(name)}, {scheduler} placement"


def _megatron(found: re.Match[str]) -> Variant:
    """Without degrees the depth is the scenario's; tensor parallelism alone is one stage."""
    pipeline, tensor, num_chunks = found["pipeline"], found["tensor"], found["chunks"]
    interleaved, zero_bubble = num_chunks is not None, found["zero_bubble"] is not None
    return Variant(
        system="megatron",
        scheduler="random" if found["random"] else "identity",
        schedule="interleaved" if interleaved else "zero-bubble" if zero_bubble else "1f1b",
        data_parallel="ring",
        pipeline=int(pipeline) if pipeline else 1 if tensor else None,
        tensor=int(tensor or 1),
        num_chunks=int(num_chunks or 1),
        sequence_parallel=found["sequence"] is not None,
    )


def _dtfm(found: re.Match[str]) -> Variant:
    """`scheduled` is the identity placement: each pipeline inside one region when nodes are listed
    by region, the manually optimised placement of the published cases 3-5. Without -p<P> the depth
    is the scenario's."""
    data_parallel = {None: "reduce-broadcast", "allreduce": "ring", "sharded-ps": "sharded-ps"}
    return Variant(
        system="dtfm",
        scheduler="random" if found["placement"] == "random" else "identity",
        schedule="1f1b" if found["schedule"] else "gpipe",
        data_parallel=data_parallel[found["data_parallel"]],
        pipeline=int(found["pipeline"]) if found["pipeline"] else None,
    )


def _zero3(found: re.Match[str]) -> Variant:
    return Variant(
        system="zero3",
        scheduler="random" if found["random"] else "identity",
        schedule="none",
        data_parallel="shard",
        pipeline=1,
        shard_ranks=(int(found["ranks"]) if found["ranks"] else None) if found["hybrid"] else 0,
        prefetch_units=int(found["units"] or 1) if found["prefetch"] else 0,
        accumulation="keep" if found["accumulate"] else "",
    )


def _ddp(found: re.Match[str]) -> Variant:
    return Variant(
        system="ddp",
        scheduler="identity",
        schedule="none",
        data_parallel=found["data_parallel"] or "ring",
        pipeline=1,
    )


def _hivemind(found: re.Match[str]) -> Variant:
    return Variant(
        system="hivemind",
        scheduler="identity",
        schedule="none",
        data_parallel="butterfly",
        pipeline=1,
        staleness=0 if found["sync"] else 1,
        compression="fp16",
    )


def _diloco(found: re.Match[str]) -> Variant:
    return Variant(
        system="diloco",
        scheduler="identity",
        schedule="none",
        data_parallel="ring",
        pipeline=1,
        local_steps=int(found["steps"] or LOCAL_STEPS),
    )


_SYSTEMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Variant]], ...] = (
    (
        re.compile(
            r"megatron"
            r"(-(?=[pt])(p(?P<pipeline>[1-9]\d*))?(t(?P<tensor>[1-9]\d*)(?P<sequence>-sp)?)?)?"
            r"(-interleaved(?P<chunks>[2-9]|[1-9]\d+)|(?P<zero_bubble>-zero-bubble))?"
            r"(?P<random>-random)?",
            re.ASCII,
        ),
        _megatron,
    ),
    (
        re.compile(
            r"dtfm-(?P<placement>scheduled|random)(-p(?P<pipeline>[1-9]\d*))?(?P<schedule>-1f1b)?"
            r"(-(?P<data_parallel>allreduce|sharded-ps))?",
            re.ASCII,
        ),
        _dtfm,
    ),
    (
        re.compile(
            r"zero3(?P<random>-random)?"
            r"(?P<hybrid>-hybrid(?P<ranks>[2-9]|[1-9]\d+)?)?"
            r"(?P<prefetch>-prefetch(?P<units>[1-9]\d*)?)?"
            r"(?P<accumulate>-accumulate)?",
            re.ASCII,
        ),
        _zero3,
    ),
    (re.compile(r"ddp(-(?P<data_parallel>tree|central-ps|sharded-ps))?"), _ddp),
    (re.compile(r"hivemind(?P<sync>-sync)?"), _hivemind),
    (re.compile(r"diloco(-h(?P<steps>[1-9]\d*))?", re.ASCII), _diloco),
)

NAMED = (
    "dtfm-scheduled",
    "dtfm-random",
    "dtfm-scheduled-1f1b",
    "megatron",
    "megatron-random",
    "megatron-p8",
    "megatron-p8-random",
    "megatron-t8",
    "megatron-p2t4",
    "megatron-p4t2",
    "zero3",
    "zero3-hybrid",
    "zero3-prefetch",
    "ddp",
    "hivemind",
    "hivemind-sync",
    "diloco",
)
"""The names that scenarios list, to suggest from."""

VARIANTS: dict[str, Variant] = {name: find_variant(name) for name in NAMED}
