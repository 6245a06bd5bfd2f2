"""Names of variants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbench.errors import PlanError
from netbench.plan.maps import MAPS
from netbench.systems import examples, find_variant, grammar, placed_name
from netbench.systems.base import Variant


def variant(system: str, schedule: str, data_parallel: str, **more: object) -> Variant:
    return Variant(
        system=system,
        schedule=schedule,
        data_parallel=data_parallel,
        **{"scheduler": "identity", **more},  # type: ignore[arg-type]
    )


MEGATRON = ("megatron", "1f1b", "ring")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # As before there was a grammar:
        ("dtfm-scheduled", variant("dtfm", "gpipe", "reduce-broadcast")),
        ("dtfm-random", variant("dtfm", "gpipe", "reduce-broadcast", scheduler="random")),
        ("megatron", variant(*MEGATRON)),
        ("megatron-random", variant(*MEGATRON, scheduler="random")),
        ("megatron-p8", variant(*MEGATRON, pipeline=8)),
        ("megatron-p8-random", variant(*MEGATRON, pipeline=8, scheduler="random")),
        ("zero3", variant("zero3", "none", "shard", pipeline=1)),
        # Since:
        ("megatron-t8", variant(*MEGATRON, pipeline=1, tensor=8)),
        ("megatron-p2t4", variant(*MEGATRON, pipeline=2, tensor=4)),
        (
            "megatron-p8-interleaved2",
            variant("megatron", "interleaved", "ring", pipeline=8, num_chunks=2),
        ),
        ("megatron-p8-zero-bubble", variant("megatron", "zero-bubble", "ring", pipeline=8)),
        (
            "megatron-p4t2-interleaved12-random",
            variant(
                "megatron",
                "interleaved",
                "ring",
                pipeline=4,
                tensor=2,
                num_chunks=12,
                scheduler="random",
            ),
        ),
        ("megatron-t8-sp", variant(*MEGATRON, pipeline=1, tensor=8, sequence_parallel=True)),
        (
            "megatron-p2t4-sp-random",
            variant(*MEGATRON, pipeline=2, tensor=4, sequence_parallel=True, scheduler="random"),
        ),
        ("megatron-zero-bubble", variant("megatron", "zero-bubble", "ring")),
        ("deepspeed-pp", variant("deepspeed-pp", "1f1b-serial", "zero1")),
        (
            "deepspeed-pp-p4-random-nodes",
            variant("deepspeed-pp", "1f1b-serial", "zero1", pipeline=4, scheduler="random-nodes"),
        ),
        ("dtfm-scheduled-1f1b", variant("dtfm", "1f1b", "reduce-broadcast")),
        ("dtfm-random-allreduce", variant("dtfm", "gpipe", "ring", scheduler="random")),
        ("dtfm-scheduled-allreduce-by-tensor", variant("dtfm", "gpipe", "by-tensor")),
        ("dtfm-random-1f1b-sharded-ps", variant("dtfm", "1f1b", "sharded-ps", scheduler="random")),
        ("dtfm-scheduled-p4", variant("dtfm", "gpipe", "reduce-broadcast", pipeline=4)),
        (
            "dtfm-random-p16-1f1b-sharded-ps",
            variant("dtfm", "1f1b", "sharded-ps", pipeline=16, scheduler="random"),
        ),
        ("zero3-random", variant("zero3", "none", "shard", pipeline=1, scheduler="random")),
        ("zero3-hybrid", variant("zero3", "none", "shard", pipeline=1, shard_ranks=None)),
        ("fsdp-prefetch2", variant("fsdp", "none", "shard", pipeline=1, prefetch_units=2)),
        (
            "fsdp-random-hybrid16-accumulate",
            variant(
                "fsdp",
                "none",
                "shard",
                pipeline=1,
                scheduler="random",
                shard_ranks=16,
                prefetch_units=1,
                accumulation="keep",
            ),
        ),
        ("ddp", variant("ddp", "none", "ring", pipeline=1)),
        ("ddp-tree", variant("ddp", "none", "tree", pipeline=1)),
        ("ddp-central-ps", variant("ddp", "none", "central-ps", pipeline=1)),
        ("ddp-sharded-ps", variant("ddp", "none", "sharded-ps", pipeline=1)),
        (
            "hivemind",
            variant("hivemind", "none", "butterfly", pipeline=1, staleness=1, compression="fp16"),
        ),
        ("hivemind-sync", variant("hivemind", "none", "butterfly", pipeline=1, compression="fp16")),
        ("diloco", variant("diloco", "none", "ring", pipeline=1, local_steps=500)),
        ("diloco-h30", variant("diloco", "none", "ring", pipeline=1, local_steps=30)),
    ],
)
def test_a_name_means(name: str, expected: Variant) -> None:
    """System, then options."""
    assert find_variant(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "megatron-",
        "megatron-p",
        "megatron-p0",
        "megatron-p08",
        "megatron-p٨",
        "megatron-p8\n",
        "megatron-t4p2",
        "megatron-p8-sp",
        "megatron-sp",
        "megatron-random-p8",
        "megatron-interleaved",
        "megatron-interleaved1",
        "megatron-interleaved2-zero-bubble",
        "dtfm",
        "dtfm-scheduled-allreduce-1f1b",
        "dtfm-scheduled-tree",
        "dtfm-p4",
        "dtfm-scheduled-p0",
        "dtfm-scheduled-p٤",
        "dtfm-scheduled-1f1b-p4",
        "zero3-hybrid1",
        "zero3-hybrid-random",
        "zero3-prefetch",
        "fsdp-prefetch0",
        "fsdp-prefetch",
        "fsdp-accumulate-prefetch2",
        "ddp-random",
        "ddp-reduce-broadcast",
        "ZERO3",
        "hivemind-async",
        "diloco-h",
        "diloco-h0",
    ],
)
def test_what_is_no_name_is_refused_with_the_grammar(name: str) -> None:
    """In one line."""
    with pytest.raises(PlanError) as caught:
        find_variant(name)
    message = str(caught.value)
    assert message.startswith(f'unknown system "{name}"; ')
    assert message.endswith(f"(a name is {grammar()})")
    assert "\n" not in message.removeprefix(f'unknown system "{name}"')


@given(
    st.integers(1, 99), st.integers(2, 99), st.sampled_from(["", "-interleaved3", "-zero-bubble"])
)
def test_degrees_are_read_as_written(pipeline: int, tensor: int, schedule: str) -> None:
    """Any of them."""
    found = find_variant(f"megatron-p{pipeline}t{tensor}{schedule}")
    assert (found.pipeline, found.tensor) == (pipeline, tensor)


def test_named_variants_differ_from_each_other() -> None:
    """And each names a scheduler that exists."""
    found = [find_variant(name) for name in examples()]
    assert len(set(found)) == len(found)
    assert {variant.scheduler for variant in found} <= set(MAPS)


@pytest.mark.parametrize(
    ("variant", "scheduler", "name"),
    [
        ("dtfm-scheduled", "identity", "dtfm-scheduled"),
        ("dtfm-random", "random", "dtfm-random"),
        ("dtfm-scheduled", "netbench", "dtfm, netbench placement"),
        ("dtfm-random", "netbench", "dtfm, netbench placement"),
        ("dtfm-scheduled-1f1b-allreduce", "dtfm", "dtfm-1f1b-allreduce, dtfm placement"),
        ("megatron-p8-random", "identity", "megatron-p8, identity placement"),
        ("megatron-p2t4", "by hand", "megatron-p2t4, by hand placement"),
        ("train.py", "identity", "train.py"),
    ],
)
def test_a_row_says_who_placed_it_where_it_was_not_the_variant(
    variant: str, scheduler: str, name: str
) -> None:
    """Variants that differ only in their own placement have one name when they are placed."""
    assert placed_name(variant, scheduler) == name
