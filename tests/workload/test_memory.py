"""Device memory, against figures worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.scenario.model import Workload
from netbench.workload.memory import estimate_memory, held_layers, layer_bytes, state_bytes

GPT_XL = Workload(layers=24, hidden=2048, heads=16, sequence=2048, batch=1024)
BOUNDARY = 8 * 2**20
"""Bytes of a (1, 2048, 2048) tensor of 16 bits."""


def test_a_layer_of_gpt3_keeps_what_korthikanti_et_al_count() -> None:
    """GPT-3 (h 12288, a 96, s 2048): 5 a s / h is 80, so attention's core is 70% of 34 + 80.

    Source: Korthikanti et al. 2022, section 5, which give 80 and 70%.
    """
    gpt3 = dataclasses.replace(GPT_XL, hidden=12288, heads=96)
    elements = 2048 * 12288
    assert layer_bytes(gpt3, 1) == pytest.approx(elements * (34 + 80))
    assert layer_bytes(gpt3, 8) == pytest.approx(elements * (10 + 24 / 8 + 80 / 8))
    split = layer_bytes(gpt3, 8, sequence_parallel=True)
    assert split == pytest.approx(elements * (34 + 80) / 8)
    fp32 = dataclasses.replace(gpt3, dtype="fp32", micro_batch=2)
    assert layer_bytes(fp32, 1) == pytest.approx(4 * layer_bytes(gpt3, 1))


@pytest.mark.parametrize(
    ("system", "dtype", "per_parameter"),
    [
        ("dtfm", "fp16", 4),
        ("megatron", "fp16", 18),
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
    """Bytes per parameter on the device; ZeRO's and Megatron's papers give 16 and 18."""
    assert sum(state_bytes(system, dtype)) == per_parameter


def test_recomputation_keeps_a_boundary_per_layer_and_one_layer_at_work() -> None:
    """5 layers, 8 micro-batches under way."""
    found = estimate_memory(GPT_XL, system="megatron", parameters=1000, held_layers=40)
    assert found.activations_bytes == 40 * BOUNDARY
    assert found.working_bytes == 2**22 * 114
    assert (found.parameters_bytes, found.gradients_bytes) == (2000, 4000)
    assert found.optimizer_bytes == 12_000
    assert found.total_bytes == 18_000 + 40 * BOUNDARY + 2**22 * 114


def test_without_recomputation_every_layer_keeps_everything() -> None:
    """And nothing is at work beside it."""
    workload = dataclasses.replace(GPT_XL, recomputation=False)
    found = estimate_memory(workload, system="dtfm", parameters=0, held_layers=40)
    assert found.activations_bytes == 40 * 2**22 * 114
    assert found.total_bytes == found.activations_bytes


def test_zero3_shares_its_states_and_gathers_parameters() -> None:
    """16 bytes over 64 ranks, and 2 bytes for each that is gathered."""
    found = estimate_memory(
        GPT_XL, system="zero3", parameters=6400, held_layers=0, shards=64, gathered_parameters=10
    )
    assert found.total_bytes - found.working_bytes == pytest.approx(16 * 100 + 20)


@pytest.mark.parametrize(
    ("schedule", "stage", "under_way"),
    [
        ("gpipe", 0, 64),
        ("gpipe", 7, 64),
        ("1f1b", 0, 8),
        ("1f1b", 7, 1),
        ("zero-bubble", 7, 8),
        ("none", 0, 1),
    ],
)
def test_schedules_hold_micro_batches(schedule: str, stage: int, under_way: int) -> None:
    """8 stages of 3 layers, 64 micro-batches."""
    found = held_layers(schedule, stage=stage, num_stages=8, num_layers=3, num_micro_batches=64)
    assert found == 3 * under_way


def test_no_schedule_holds_more_than_there_is() -> None:
    """Two micro-batches in 8 stages."""
    for schedule in ("gpipe", "1f1b", "zero-bubble"):
        assert held_layers(schedule, stage=0, num_stages=8, num_layers=3, num_micro_batches=2) == 6
    interleaved = held_layers(
        "interleaved", stage=0, num_stages=8, num_layers=4, num_micro_batches=2, num_chunks=2
    )
    assert interleaved == 8


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 3), (8, 2)])
def test_interleaving_holds_more_than_1f1b(stages: int, chunks: int) -> None:
    """First stage: L (1 + (p - 1) / (p v)) layers. Source: Korthikanti et al. 2022, 4.2.3."""
    each = 2 * chunks
    found = held_layers(
        "interleaved",
        stage=0,
        num_stages=stages,
        num_layers=each,
        num_micro_batches=64,
        num_chunks=chunks,
    )
    assert found == pytest.approx(stages * each * (1 + (stages - 1) / (stages * chunks)))
