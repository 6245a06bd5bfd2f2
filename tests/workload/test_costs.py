"""FLOPs, parameters, bytes and seconds of a model."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from netbench.errors import PlanError
from netbench.scenario import load_scenario
from netbench.scenario.devices import load_device_profile
from netbench.scenario.model import DeviceProfile, Workload
from netbench.workload.costs import (
    activation_bytes,
    backward_factor,
    layer_forward_flops,
    layer_matrices,
    layer_parameters,
    layer_traffic_bytes,
    live_layers,
    model_parameters,
    pflop_per_iteration,
    stage_costs,
    stage_tensors,
)

PUBLISHED = Path(__file__).parents[2] / "results" / "published"

GPT_XL = Workload(
    layers=24, hidden=2048, heads=16, sequence=2048, batch=1024, embedding_parameters=64_000_000
)
DEVICE = DeviceProfile(
    name="X", flops={"dtfm": 50e12, "default": 100e12}, optimizer_s_per_parameter={"megatron": 1e-9}
)


def test_work_per_iteration_is_the_published_one() -> None:
    """All nine printed values within 0.02%; they are rounded to 10 TFLOP and multiplied."""
    with (PUBLISHED / "published_pflop_per_iteration.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    for row in rows:
        workload = dataclasses.replace(GPT_XL, layers=int(row["layers"]), batch=int(row["batch"]))
        assert pflop_per_iteration(workload) == pytest.approx(float(row["pflop"]), rel=2e-4)


def test_forward_work_is_two_flops_per_weight_and_attention_pair() -> None:
    """Counted matrix by matrix: 12 h^2 weights per token, and two s x s x h products."""
    b, s, h = 3, 1024, 512
    workload = dataclasses.replace(GPT_XL, micro_batch=b, sequence=s, hidden=h)
    weights = 2 * b * s * 12 * h * h
    attention = 2 * 2 * b * s * s * h
    assert layer_forward_flops(workload) == pytest.approx(weights + attention)


def test_recomputation_adds_a_forward_pass() -> None:
    """Backward is 2 x forward, 3 x with recomputation; so an iteration is 4/3 of the work."""
    without = dataclasses.replace(GPT_XL, recomputation=False)
    assert (backward_factor(GPT_XL), backward_factor(without)) == (3, 2)
    assert pflop_per_iteration(GPT_XL) / pflop_per_iteration(without) == pytest.approx(4 / 3)


def test_work_does_not_depend_on_the_micro_batch() -> None:
    """The batch is what is trained."""
    assert pflop_per_iteration(dataclasses.replace(GPT_XL, micro_batch=4)) == pytest.approx(
        pflop_per_iteration(GPT_XL)
    )


def test_gpt_xl_has_its_published_sizes() -> None:
    """1.27 billion parameters; 8 MiB of activation; 288 and about 409 MiB of gradients."""
    assert model_parameters(GPT_XL) == pytest.approx(1.27e9, rel=0.005)
    assert activation_bytes(GPT_XL) == 8 * 2**20
    first, second, *_ = stage_costs(GPT_XL, DEVICE, system="dtfm", num_stages=8)
    assert second.gradient_bytes / 2**20 == pytest.approx(288, rel=1e-3)
    assert first.gradient_bytes / 2**20 == pytest.approx(409, rel=0.005)


def test_gradients_are_sent_in_the_dtype_that_is_asked_for() -> None:
    """4 bytes per parameter against the model's 2."""
    own, sent = (
        stage_costs(GPT_XL, DEVICE, system="dtfm", num_stages=1, gradient_dtype=dtype)[0]
        for dtype in ("", "fp32")
    )
    assert sent.gradient_bytes == 2 * own.gradient_bytes == 4 * sent.parameters


def test_stages_split_layers_evenly_and_the_first_has_the_embeddings() -> None:
    """Time is work over the speed of the system."""
    stages = stage_costs(GPT_XL, DEVICE, system="dtfm", num_stages=8)
    assert [stage.num_layers for stage in stages] == [3] * 8
    assert stages[0].parameters - stages[1].parameters == 64_000_000
    assert sum(stage.parameters for stage in stages) == model_parameters(GPT_XL)
    assert stages[1].forward_s == pytest.approx(3 * layer_forward_flops(GPT_XL) / 50e12)
    assert stages[1].backward_s == pytest.approx(3 * stages[1].forward_s)


def test_stages_of_other_numbers_of_layers_cost_what_these_do() -> None:
    """Time and parameters are per layer; the first still has the embeddings."""
    stages = stage_costs(GPT_XL, DEVICE, system="dtfm", num_stages=3, stage_layers=(4, 12, 8))
    assert [stage.num_layers for stage in stages] == [4, 12, 8]
    assert stages[1].forward_s == pytest.approx(12 * layer_forward_flops(GPT_XL) / 50e12)
    assert stages[1].parameters == 3 * (stages[0].parameters - 64_000_000)
    assert sum(stage.gradient_bytes for stage in stages) == 2 * model_parameters(GPT_XL)


def test_17_ms_per_layer_on_a_v100() -> None:
    """55 TFLOPS is the 17.4 ms per layer and micro-batch that fitted the published times."""
    device = DeviceProfile(name="V", flops={"default": 55e12})
    (stage,) = stage_costs(GPT_XL, device, system="dtfm", num_stages=1)
    assert (stage.forward_s + stage.backward_s) / 24 == pytest.approx(17.4e-3, rel=0.01)


def test_small_layers_wait_for_memory() -> None:
    """With the two speeds of gpt3-small's V100 a layer of GPT-XL takes as long as with the built-in
    one, a layer of GPT-3 small nearly twice as long, and fp32 moves twice the bytes."""
    profile = load_scenario("gpt3-small").devices["V100"]
    (of_xl,) = stage_costs(GPT_XL, profile, system="dtfm", num_stages=1)
    (built_in,) = stage_costs(GPT_XL, load_device_profile("V100"), system="dtfm", num_stages=1)
    assert of_xl.forward_s == pytest.approx(built_in.forward_s, rel=2e-3)
    small = dataclasses.replace(load_scenario("gpt3-small").workload, micro_batch=1)
    assert layer_traffic_bytes(small) == 2 * 2048 * (34 * 768 + 5 * 12 * 2048)
    (stage,) = stage_costs(small, profile, system="dtfm", num_stages=1)
    assert stage.forward_s == pytest.approx(
        small.layers * (layer_forward_flops(small) / 83.7e12 + layer_traffic_bytes(small) / 652e9)
    )
    assert stage.forward_s > 1.8 * small.layers * layer_forward_flops(small) / 55.4e12
    fp32 = dataclasses.replace(small, dtype="fp32")
    assert layer_traffic_bytes(fp32) == 2 * layer_traffic_bytes(small)


def test_a_system_without_its_own_speed_takes_the_default() -> None:
    """And its own optimizer's time, shared by the ranks that share the update."""
    (alone,) = stage_costs(GPT_XL, DEVICE, system="megatron", num_stages=1)
    (shared,) = stage_costs(GPT_XL, DEVICE, system="megatron", num_stages=1, optimizer_shards=64)
    assert alone.forward_s == pytest.approx(24 * layer_forward_flops(GPT_XL) / 100e12)
    assert alone.optimizer_s == pytest.approx(1.27, rel=0.005)
    assert shared.optimizer_s == pytest.approx(alone.optimizer_s / 64)


def test_weight_matrices_are_the_layer_without_biases_and_norms() -> None:
    """Six, as (rows x columns): four of h x h, h x 4h, 4h x h."""
    h = GPT_XL.hidden
    assert layer_matrices(GPT_XL) == (*(h * h,) * 4, h * 4 * h, 4 * h * h)
    assert layer_parameters(GPT_XL) - sum(layer_matrices(GPT_XL)) == 13 * h


@pytest.mark.parametrize(
    ("limit", "layers"), [(0, 0), (64_000_000, 0), (1_000_000_000, 18), (10**10, 24)]
)
def test_live_layers_fit_the_limit_with_the_embeddings(limit: int, layers: int) -> None:
    """One more would not, unless there is none."""
    assert live_layers(GPT_XL, limit) == layers
    taken = 64_000_000 + layers * layer_parameters(GPT_XL)
    assert taken <= limit or layers == 0
    assert taken + layer_parameters(GPT_XL) > limit or layers == 24


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_tensor_parallel_ranks_share_time_parameters_and_gradients(ranks: int) -> None:
    """Together they have the stage; an odd number of embeddings is rounded up."""
    whole = stage_costs(GPT_XL, DEVICE, system="megatron", num_stages=2)[0]
    part = stage_costs(GPT_XL, DEVICE, system="megatron", num_stages=2, tensor_parallel=ranks)[0]
    assert part.num_layers == whole.num_layers
    for name in ("forward_s", "backward_s", "optimizer_s", "parameters", "gradient_bytes"):
        assert getattr(part, name) * ranks == pytest.approx(getattr(whole, name))
    odd = dataclasses.replace(GPT_XL, embedding_parameters=1)
    (stage,) = stage_costs(odd, DEVICE, system="megatron", num_stages=1, tensor_parallel=2)
    assert stage.parameters == 12 * layer_parameters(GPT_XL) + 1


def test_layers_that_do_not_divide_are_refused() -> None:
    """With the number to choose a multiple of."""
    with pytest.raises(
        PlanError, match="24 layers cannot be divided into 7 pipeline stages; choose"
    ):
        stage_costs(GPT_XL, DEVICE, system="dtfm", num_stages=7)


def test_a_device_without_a_speed_for_the_system_is_refused() -> None:
    """Naming both."""
    device = DeviceProfile(name="X", flops={"zero3": 1e12})
    with pytest.raises(PlanError, match="device X has no FLOP/s for dtfm"):
        stage_costs(GPT_XL, device, system="dtfm", num_stages=1)


def test_flops_of_a_dtype_come_before_those_of_a_system() -> None:
    """The systems' are of 16 bits: fp32 is slower where the profile says so."""
    device = DeviceProfile(name="X", flops={"dtfm": 50e12, "fp32": 10e12, "default": 100e12})
    fp16, fp32 = (
        stage_costs(dataclasses.replace(GPT_XL, dtype=dtype), device, system="dtfm", num_stages=8)[
            1
        ]
        for dtype in ("fp16", "fp32")
    )
    assert fp32.forward_s == pytest.approx(5 * fp16.forward_s)


def test_the_tensors_of_a_stage_are_all_its_parameters() -> None:
    """16 per layer: 6 matrices and 10 vectors; the first stage has the embeddings too."""
    first, second = stage_costs(GPT_XL, DEVICE, system="dtfm", num_stages=8)[:2]
    tensors = stage_tensors(GPT_XL, second)
    assert len(tensors) == 16 * second.num_layers
    assert sum(size >= GPT_XL.hidden**2 for size in tensors) == 6 * second.num_layers
    assert sum(tensors) == second.parameters
    assert sum(stage_tensors(GPT_XL, first)) == first.parameters
