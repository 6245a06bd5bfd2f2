"""Bytes per parameter that systems keep and send."""

from __future__ import annotations

import pytest

from netbench.systems import SYSTEMS


@pytest.mark.parametrize(
    ("system", "dtype", "per_parameter"),
    [
        ("dtfm", "fp16", 4),
        ("megatron", "fp16", 20),
        ("megatron", "bf16", 18),
        ("megatron", "fp32", 16),
        ("megatron", "fp64", 32),
        ("zero3", "bf16", 16),
        ("zero3", "fp32", 16),
        ("ddp", "fp16", 18),
        ("hivemind", "fp16", 4),
        ("diloco", "fp16", 16),
    ],
)
def test_states_take_what_their_sources_say(system: str, dtype: str, per_parameter: int) -> None:
    """Bytes per parameter on the device. ZeRO's paper gives 16, Megatron-LM's page 20 and 18."""
    assert SYSTEMS[system].state_bytes(dtype).total == per_parameter


@pytest.mark.parametrize(
    ("system", "dtype", "sent"),
    [
        ("dtfm", "fp16", "fp16"),
        ("zero3", "bf16", "bf16"),
        ("ddp", "fp32", "fp32"),
        ("megatron", "fp16", "fp16"),
        ("megatron", "bf16", "fp32"),
        ("megatron", "fp64", "fp64"),
        ("diloco", "bf16", "fp32"),
        ("hivemind", "fp32", "fp16"),
    ],
)
def test_gradients_are_sent_in_the_dtype_of_the_release(system: str, dtype: str, sent: str) -> None:
    """The model's own, unless the system converts."""
    assert SYSTEMS[system].gradient_dtype(dtype) == sent
