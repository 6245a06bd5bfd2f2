"""Device memory, against figures worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from netbench.scenario.model import Workload
from netbench.workload.costs import layer_bytes
from netbench.workload.memory import RankModel, StateBytes, estimate_memory

GPT_XL = Workload(layers=24, hidden=2048, heads=16, sequence=2048, batch=1024)
BOUNDARY = 8 * 2**20
"""Bytes of a (1, 2048, 2048) tensor of 16 bits."""

STATE = StateBytes(weight=2, gradient=4, optimizer=12)


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


def test_recomputation_keeps_a_boundary_per_layer_and_one_layer_at_work() -> None:
    """5 layers, 8 micro-batches under way."""
    found = estimate_memory(GPT_XL, RankModel(state=STATE, parameters=1000, live_layers=40))
    assert found.activations_bytes == 40 * BOUNDARY
    assert found.working_bytes == 2**22 * 114
    assert (found.parameters_bytes, found.gradients_bytes) == (2000, 4000)
    assert found.optimizer_bytes == 12_000
    assert found.total_bytes == 18_000 + 40 * BOUNDARY + 2**22 * 114


def test_without_recomputation_every_layer_keeps_everything() -> None:
    """And nothing is at work beside it."""
    workload = dataclasses.replace(GPT_XL, recomputation=False)
    found = estimate_memory(workload, RankModel(state=STATE, parameters=0, live_layers=40))
    assert found.activations_bytes == 40 * 2**22 * 114
    assert found.total_bytes == found.activations_bytes


def test_shards_divide_states_and_gathered_parameters_come_on_top() -> None:
    """18 bytes over 64 ranks, and 2 bytes for each parameter that is gathered; gradients that are
    kept whole are not divided."""
    rank = RankModel(state=STATE, parameters=6400, live_layers=0, shards=64, gathered_parameters=10)
    found = estimate_memory(GPT_XL, rank)
    assert found.total_bytes - found.working_bytes == pytest.approx(18 * 100 + 20)
    whole = estimate_memory(GPT_XL, dataclasses.replace(rank, keeps_gradients=True))
    assert whole.gradients_bytes == 64 * found.gradients_bytes
