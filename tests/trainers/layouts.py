"""Systems and layouts that train the model that one process trains, as changes to `real_plan`."""

from __future__ import annotations

from typing import Any

DEEPSPEED: dict[str, Any] = {
    "system": "deepspeed-pp", "schedule": "1f1b-serial", "data_parallel": "zero1"
}  # fmt: skip
SHARED: dict[str, Any] = {"system": "megatron", "dp": 1, "batch": 4}
"""Ranks that share layers run as few micro-batches as the test needs."""

ZERO3: dict[str, Any] = {"system": "zero3", "layers": (4,), "dp": 4}
"""Two micro-steps."""

ONE_LAYER = 256 * 16 + 12 * 16 + 12 * 16**2 + 13 * 16
"""Parameters of a first unit of one layer, embedding included, in a model without a count of it."""

CASES: dict[str, dict[str, Any]] = {
    "hivemind, without delay and compression": {"system": "hivemind", "layers": (4,), "dp": 4},
    "dtfm": {"system": "dtfm"},
    "dtfm in two rounds": {"system": "dtfm", "num_rounds": 2},
    "dtfm, uneven, one pipeline": {"system": "dtfm", "layers": (3, 1, 2), "dp": 1},
    "dtfm, anywhere": {"system": "dtfm", "placement": (2, 0, 3, 1)},
    "megatron": {"system": "megatron"},
    "megatron, uneven, three replicas": {"system": "megatron", "layers": (1, 2), "dp": 3,
                                         "batch": 12},
    "megatron, recomputed, anywhere": {"system": "megatron", "recomputation": True,
                                       "placement": (3, 1, 0, 2)},
    "megatron, micro-batches of 2": {"system": "megatron", "micro_batch": 2},
    "dtfm, all-reduced": {"system": "dtfm", "data_parallel": "ring", "layers": (1, 2), "dp": 3,
                          "batch": 12},
    "dtfm, all-reduced tensor by tensor": {"system": "dtfm", "data_parallel": "by-tensor", "dp": 3,
                                           "batch": 12},
    "dtfm, sharded parameter server, anywhere": {"system": "dtfm", "data_parallel": "sharded-ps",
                                                 "placement": (3, 0, 1, 2)},
    "dtfm, 1f1b, uneven": {"system": "dtfm", "schedule": "1f1b", "layers": (3, 1)},
    "dtfm, 1f1b, sharded parameter server, recomputed": {
        "system": "dtfm", "schedule": "1f1b", "data_parallel": "sharded-ps", "recomputation": True},
    "dtfm, master weights": {"system": "dtfm", "master_weights": "cpu"},
    "dtfm, sharded master weights": {"system": "dtfm", "data_parallel": "sharded-ps",
                                     "master_weights": "cpu"},
    "megatron, interleaved": {"system": "megatron", "schedule": "interleaved", "num_chunks": 2},
    "megatron, interleaved, uneven, anywhere": {
        "system": "megatron", "schedule": "interleaved", "num_chunks": 2, "layers": (2, 4),
        "placement": (3, 1, 0, 2)},
    "megatron, interleaved, three stages, recomputed": {
        "system": "megatron", "schedule": "interleaved", "num_chunks": 3, "layers": (3, 3, 3),
        "dp": 1, "batch": 6, "recomputation": True},
    "megatron, zero-bubble": {"system": "megatron", "schedule": "zero-bubble"},
    "megatron, zero-bubble, recomputed, uneven, anywhere": {
        "system": "megatron", "schedule": "zero-bubble", "layers": (1, 2, 1), "dp": 1,
        "recomputation": True, "placement": (2, 0, 1)},
    "deepspeed-pp": {**DEEPSPEED},
    "deepspeed-pp, uneven, three replicas, recomputed, anywhere": {
        **DEEPSPEED, "layers": (1, 2), "dp": 3, "batch": 12, "recomputation": True,
        "placement": (2, 0, 5, 3, 1, 4)},
    "ddp": {"system": "ddp", "layers": (4,), "bucket_bytes": 8192},
    "ddp with gloo's all-reduce": {"system": "ddp", "layers": (4,), "dp": 4, "backend": "gloo"},
    "ddp, recomputed, micro-batches of 2": {"system": "ddp", "layers": (3,), "recomputation": True,
                                            "micro_batch": 2, "bucket_bytes": 20_000},
    "ddp, central parameter server": {"system": "ddp", "layers": (4,), "dp": 4,
                                      "data_parallel": "central-ps"},
    "ddp, sharded parameter server": {"system": "ddp", "layers": (4,), "dp": 4,
                                      "data_parallel": "sharded-ps"},
    "ddp, two trees": {"system": "ddp", "layers": (4,), "dp": 4, "data_parallel": "tree",
                       "bucket_bytes": 20_000},
    "ddp alone": {"system": "ddp", "layers": (4,), "dp": 1},
    "megatron, tensor 2": {**SHARED, "tp": 2, "layers": (2,)},
    "megatron, tensor 4, recomputed": {**SHARED, "tp": 4, "layers": (1,), "recomputation": True},
    "megatron, tensor 2 in uneven stages, anywhere": {**SHARED, "tp": 2, "layers": (1, 2),
                                                      "placement": (2, 0, 3, 1)},
    "megatron, tensor 2 in 2 stages, two replicas": {**SHARED, "tp": 2, "layers": (1, 1), "dp": 2},
    "megatron, tensor 4, sequence parallel, recomputed": {
        **SHARED, "tp": 4, "layers": (1,), "sequence_parallel": True, "recomputation": True},
    "megatron, tensor 2, sequence parallel, two replicas, anywhere": {
        **SHARED, "tp": 2, "layers": (1, 1), "dp": 2, "sequence_parallel": True,
        "placement": (5, 2, 7, 0, 3, 6, 1, 4)},
    "megatron, tensor 2, sequence parallel, interleaved": {
        **SHARED, "tp": 2, "layers": (2, 2), "schedule": "interleaved", "num_chunks": 2,
        "sequence_parallel": True},
    "megatron, tensor 2, zero-bubble": {
        **SHARED, "tp": 2, "layers": (1, 1), "schedule": "zero-bubble"},
    "zero3": {**ZERO3, "units": (2, 2)},
    "zero3, three ranks, recomputed": {**ZERO3, "dp": 3, "batch": 12, "units": (1, 3),
                                       "live_parameters": ONE_LAYER, "recomputation": True},
    "zero3, prefetched, micro-batches of 2, anywhere": {
        **ZERO3, "units": (1, 2, 1), "prefetch_units": 1, "micro_batch": 2,
        "placement": (2, 0, 3, 1)},
    "zero3, kept": {**ZERO3, "units": (1, 3), "live_parameters": ONE_LAYER,
                    "accumulation": "keep"},
    "zero3, hybrid, anywhere": {**ZERO3, "units": (2, 2), "shard_ranks": 2,
                                "placement": (2, 0, 3, 1)},
    "zero3, hybrid, prefetched": {**ZERO3, "units": (1, 1, 1, 1), "shard_ranks": 2,
                                  "prefetch_units": 2},
    "zero3, hybrid, prefetched, kept, recomputed": {
        **ZERO3, "units": (1, 3), "live_parameters": ONE_LAYER, "shard_ranks": 2,
        "prefetch_units": 1, "accumulation": "keep", "recomputation": True},
    "zero3 alone": {**ZERO3, "dp": 1, "units": (2, 2)},
}  # fmt: skip

IN_16_BITS: dict[str, dict[str, Any]] = {
    "dtfm": {"system": "dtfm", "dtype": "fp16"},
    "megatron": {"system": "megatron", "dtype": "fp16"},
    "deepspeed-pp": {**DEEPSPEED, "dtype": "fp16"},
    "megatron, tensor 2": {**SHARED, "tp": 2, "layers": (1, 1), "dtype": "bf16"},
    "ddp": {"system": "ddp", "layers": (4,), "dtype": "fp16", "bucket_bytes": 8192},
    "zero3, kept": {**ZERO3, "units": (1, 3), "accumulation": "keep", "dtype": "fp16"},
    "zero3, hybrid, prefetched": {**ZERO3, "units": (2, 2), "shard_ranks": 2, "prefetch_units": 1,
                                  "dtype": "bf16"},
}  # fmt: skip
