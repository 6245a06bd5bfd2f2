"""State a plan as a problem for a scheduler, and turn the answer back into a plan."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from netbench.placement.bounds.plan_floors import plan_floors
from netbench.placement.objective import PlanObjective
from netbench.placement.problem import Grid, Problem
from netbench.plan.build import build_plan
from netbench.plan.memory import stages_that_fit
from netbench.plan.model import Execution, Plan
from netbench.scenario.model import Scenario, Setting
from netbench.scenario.sharing import nic_caps_bps
from netbench.systems import rank_lanes
from netbench.transport.profile import load_transport


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A plan to place.

    variant: the placement that its name implies is ignored. setting: its seed is not used.
    num_ranks: to place, while other devices stay idle; None = one per device.
    """

    scenario: Scenario
    variant: str
    setting: Setting
    num_ranks: int | None = None

    def plan(
        self,
        placement: Sequence[int] | None = None,
        stage_layers: Sequence[int] = (),
        *,
        scheduler: str = "",
        seed: int = 0,
    ) -> Plan:
        """Return the plan with this placement, to simulate; raises like `build_plan`."""
        return build_plan(
            self.scenario,
            self.variant,
            dataclasses.replace(self.setting, seed=seed),
            Execution(iterations=2, warmup_iterations=1, scale=1.0),
            placement=placement,
            stage_layers=stage_layers,
            scheduler=scheduler,
        )

    def problem(self, stage_layers: Sequence[int] = ()) -> Problem:
        """Return the problem for a scheduler."""
        plan = self.plan(range(self._num_ranks()), stage_layers)
        network, node = plan.network, np.asarray(plan.device_nodes)
        delay_s = network.one_way_delay_s()[np.ix_(node, node)]
        bandwidth_bps = network.bandwidth_bps()[np.ix_(node, node)]
        same = node[:, None] == node[None, :]
        bandwidth_bps[same] = load_transport(plan.backend).inside_node_bps
        kinds = plan.type_stages or (plan.stages,)
        stage_s = np.array([[s.forward_s + s.backward_s for s in stages] for stages in kinds])
        return Problem(
            pp=plan.layout.pp,
            dp=plan.layout.dp,
            tp=plan.layout.tp,
            delay_s=delay_s,
            bandwidth_bps=bandwidth_bps,
            node=node,
            region=np.asarray(network.node_regions)[node],
            kind=np.asarray(plan.device_types or [0] * len(node)),
            nic_bps=np.asarray(nic_caps_bps(network))[node],
            host_bps=np.asarray(network.host_limits_bps)[node],
            stage_s=np.where(stages_that_fit(plan, self.scenario), stage_s, np.inf),
            message_bytes=float(plan.activation_bytes),
            num_micro_batches=plan.num_rounds * plan.num_micro_batches,
            gradient_bytes=np.array([float(stage.gradient_bytes) for stage in plan.stages]),
            ranks=rank_lanes(plan),
            objective=PlanObjective(plan),
            stage_layers=tuple(stage.num_layers for stage in plan.stages),
            with_layers=self.problem,
            forward_fraction=plan.stages[0].forward_s
            / (plan.stages[0].forward_s + plan.stages[0].backward_s),
            sharing=network.sharing,
            floors=plan_floors(plan),
        )

    def listed(self) -> Plan:
        """Return the plan with rank r on device r, in the order in which nodes are listed."""
        return self.plan(range(self._num_ranks()))

    def placed(
        self, grid: Grid, stage_layers: Sequence[int] = (), *, scheduler: str, seed: int = 0
    ) -> Plan:
        """Return the plan with the placement of a grid of its layout."""
        placement = placement_of(self.plan(range(grid.size), stage_layers), grid)
        return self.plan(placement, stage_layers, scheduler=scheduler, seed=seed)

    def _num_ranks(self) -> int:
        return self.num_ranks or self.scenario.num_devices


def placement_of(plan: Plan, grid: Grid) -> tuple[int, ...]:
    """Return the device of every rank of `plan`, for a grid of its layout."""
    placement = np.empty(plan.layout.num_ranks, np.int64)
    placement[rank_lanes(plan)] = grid
    return tuple(placement.tolist())


def grid_of(plan: Plan) -> Grid:
    """Return the grid of a plan's placement."""
    return np.asarray(plan.placement)[rank_lanes(plan)]
