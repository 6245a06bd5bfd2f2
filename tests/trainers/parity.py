"""One process that trains the whole model, written apart from the trainers they must equal."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from netbench.plan.model import Layout, Plan
from netbench.scenario.model import Workload
from netbench.trainers.layers.gpt import build_layer
from netbench.trainers.layers.real import SyntheticData, TokenFile
from netbench.workload.tokens import vocabulary_size
from tests.plans import small_plan
from tests.trainers.rank_processes import RankProcesses

STEPS = 3
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}
"""Relative, of every step's loss."""

WORKLOAD = Workload(
    layers=4, hidden=16, heads=4, sequence=12, batch=8, micro_batch=1, dtype="fp32",
    recomputation=False,
)  # fmt: skip


def real_plan(
    system: str, *, layers: tuple[int, ...] = (2, 2), dp: int = 2, tp: int = 1, **changes: Any
) -> Plan:
    """A plan whose layers compute, on `WORKLOAD` with `changes` to it and to the plan.

    layers: of each pipeline stage.
    """
    of_workload = {field.name for field in dataclasses.fields(Workload)}
    workload = dataclasses.replace(
        WORKLOAD,
        layers=sum(layers),
        **{name: value for name, value in changes.items() if name in of_workload},
    )
    rest = {name: value for name, value in changes.items() if name not in of_workload}
    num_ranks = tp * len(layers) * dp
    plan = small_plan(system=system, pp=num_ranks, dp=1)
    cost = plan.stages[0]
    micro_batches = workload.batch // dp // workload.micro_batch // rest.get("num_rounds", 1)
    plan = dataclasses.replace(
        plan,
        layout=Layout(tp=tp, pp=len(layers), dp=dp),
        workload=workload,
        stages=tuple(dataclasses.replace(cost, num_layers=count) for count in layers),
        num_micro_batches=micro_batches,
        activation_bytes=workload.micro_batch * workload.sequence * workload.hidden
        * {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}[workload.dtype],
        compute="cpu",
        seed=7,
    )  # fmt: skip
    return dataclasses.replace(plan, **rest)


def reference_losses(plan: Plan, steps: int = STEPS) -> list[float]:
    """The mean loss of every step, before it is taken."""
    workload = plan.workload
    model = torch.nn.Sequential(
        *[build_layer(workload, index, plan.seed) for index in range(workload.layers + 2)]
    )
    step_with = (
        torch.optim.SGD(model.parameters(), lr=0.1)
        if plan.system == "dtfm"
        else torch.optim.Adam(model.parameters(), lr=1e-3)
    )
    vocabulary, sequence = vocabulary_size(workload), workload.sequence
    data: SyntheticData | TokenFile = SyntheticData(
        seed=plan.seed, vocabulary=vocabulary, sequence=sequence
    )
    if plan.token_file:
        data = TokenFile(Path(plan.token_file), vocabulary=vocabulary, sequence=sequence)
    losses = []
    for step in range(steps):
        first = step * workload.batch
        tokens = torch.stack([data.sample(first + i) for i in range(workload.batch)])
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        step_with.zero_grad()
        torch.autograd.backward(loss)
        step_with.step()
        losses.append(loss.item())
    return losses


def trained_losses(ranks: RankProcesses, plan: Plan, steps: int = STEPS) -> list[float]:
    """Losses that the ranks report, added up, step by step."""
    plan_hash = ranks.prepare(plan)
    losses = []
    for step in range(steps):
        shares = [answer["loss"] for answer in ranks.run(plan_hash, step)]
        assert any(share is not None for share in shares)
        losses.append(sum(share or 0.0 for share in shares))
    return losses
