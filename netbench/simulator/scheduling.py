"""Placing a plan: the problem a plan poses to a scheduler, and what becomes of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netbench.placement.problem import Answer, Grid, Problem
from netbench.plan import Plan, build_plan
from netbench.plan.memory import stages_that_fit
from netbench.scenario.model import Scenario
from netbench.simulator.floors import plan_floors
from netbench.simulator.objective import PlanObjective
from netbench.simulator.profile import load_transport
from netbench.simulator.simulate import rank_lanes


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is to be placed. variant: whose own placement does not count. micro_batch: None = the
    workload's. network: of the scenario's sweep, "" = its own. num_ranks: that are placed, the
    other devices stay idle; None = as many as there are devices."""

    scenario: Scenario
    variant: str
    layers: int
    batch: int
    micro_batch: int | None = None
    network: str = ""
    num_ranks: int | None = None

    def plan(
        self,
        placement: Sequence[int] | None = None,
        stage_layers: Sequence[int] = (),
        *,
        scheduler: str = "",
        seed: int = 0,
    ) -> Plan:
        """The plan with this placement; raises as `build_plan`."""
        return build_plan(
            self.scenario,
            self.variant,
            self.layers,
            self.batch,
            seed,
            iterations=2,
            warmup_iterations=1,
            network=self.network,
            micro_batch=self.micro_batch,
            placement=placement,
            stage_layers=stage_layers,
            scheduler=scheduler,
        )

    def problem(self, stage_layers: Sequence[int] = ()) -> Problem:
        """What a scheduler is given."""
        plan = self.plan(range(self._num_ranks()), stage_layers)
        network, node = plan.network, np.asarray(plan.device_nodes)
        delay_s = network.one_way_delay_s()[np.ix_(node, node)]
        bandwidth_bps = network.bandwidth_bps()[np.ix_(node, node)]
        same = node[:, None] == node[None, :]
        bandwidth_bps[same] = load_transport(plan.backend).inside_node_bps
        kinds = plan.type_stages or (plan.stages,)
        stage_s = np.array([[s.forward_s + s.backward_s for s in stages] for stages in kinds])
        nics = np.asarray(network.nic_bps)[node]
        return Problem(
            pp=plan.layout.pp,
            dp=plan.layout.dp,
            tp=plan.layout.tp,
            delay_s=delay_s,
            bandwidth_bps=bandwidth_bps,
            node=node,
            region=np.asarray(network.node_regions)[node],
            kind=np.asarray(plan.device_types or [0] * len(node)),
            nic_bps=nics if network.sharing == "nic" else np.full(len(node), np.inf),
            stage_s=np.where(stages_that_fit(plan, self.scenario), stage_s, np.inf),
            message_bytes=float(plan.activation_bytes),
            num_micro_batches=plan.num_rounds * plan.num_micro_batches,
            gradient_bytes=np.array([float(stage.gradient_bytes) for stage in plan.stages]),
            ranks=rank_lanes(plan),
            objective=PlanObjective(plan),
            stage_layers=tuple(stage.num_layers for stage in plan.stages),
            with_layers=self.problem,
            forward_share=plan.stages[0].forward_s
            / (plan.stages[0].forward_s + plan.stages[0].backward_s),
            sharing=network.sharing,
            floors=plan_floors(plan),
        )

    def listed(self) -> Plan:
        """The plan with rank r on device r: what comes of the order in which nodes are listed."""
        return self.plan(range(self._num_ranks()))

    def answered(self, answer: Answer, scheduler: str, seed: int) -> Plan:
        """The plan that an answer makes."""
        template = self.plan(range(self._num_ranks()))
        placement = placement_of(template, answer.grid)
        return self.plan(placement, answer.stage_layers, scheduler=scheduler, seed=seed)

    def _num_ranks(self) -> int:
        return self.num_ranks or self.scenario.num_devices


def placement_of(plan: Plan, grid: Grid) -> tuple[int, ...]:
    """The device of every rank of `plan`, for a grid of its layout."""
    placement = np.empty(plan.layout.num_ranks, np.int64)
    placement[rank_lanes(plan)] = grid
    return tuple(placement.tolist())


def grid_of(plan: Plan) -> Grid:
    """The grid of a plan's placement."""
    return np.asarray(plan.placement)[rank_lanes(plan)]
