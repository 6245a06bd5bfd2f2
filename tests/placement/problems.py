"""Problems for schedulers that look at links alone."""

from __future__ import annotations

import dataclasses

import numpy as np

from netbench.placement.plan_problem import Request
from netbench.placement.problem import Floats, Grid, Problem
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Setting

GRADIENT_BYTES = 1.3e9 * 4 * 3 / 24
"""c_dp as released: 1.3e9 parameters of 4 bytes, 3 of 24 layers."""

ACTIVATION_BYTES = 2024 * 2048 * 2 * 61.03 / 2**30 * 1e9
"""c_pp as released. It is counted in GiB there and divided as if it were GB: taken for what it
says, case 1 would cost 3.48 s, not 3.44, and case 5 51.16 s, not 49.22."""

BEST_S = {"case1": 3.44, "case2": 49.50, "case3": 16.09, "case4": 34.80, "case5": 49.22}
"""Costs that the released search reaches, seconds."""

RANDOM_S = {"case1": 19.8, "case2": 49.5, "case3": 33.8, "case4": 54.5, "case5": 93.0}
"""Average of random placements, seconds; of how many is not said."""

NIC_SHARE_BPS = {"case1": 25e9 / 8, "case2": 10e9 / 8}
"""Between nodes as released, without delay: a NIC shared by 8 devices, in case 2 too."""

INSIDE_BPS = 100e9

REGION_DELAY_S = {"case3": 1e-3, "case4": 5e-3, "case5": 5e-3}
"""Inside a region. The published 5 ms would make 16.17 of case 3's 16.09; 1 ms, as it was
emulated, makes 16.09."""


class Unused:
    """An objective that tests do not ask, or only in part."""

    divisible = independent = True

    def times_s(self, grids: Grid) -> Floats:
        raise NotImplementedError

    def composed_s(self, grids: Grid) -> Floats:
        raise NotImplementedError

    def pipelines_s(self, pipelines: Grid) -> Floats:
        raise NotImplementedError

    def groups_s(self, stage: int, groups: Grid) -> Floats:
        raise NotImplementedError


def problem_of(delay_s: Floats, bandwidth_bps: Floats, dp: int, pp: int, tp: int = 1) -> Problem:
    """Return a problem with devices of one kind, each on a separate node and region, that hold
    every stage."""
    num_devices = len(delay_s)
    return Problem(
        pp=pp,
        dp=dp,
        tp=tp,
        delay_s=delay_s,
        bandwidth_bps=bandwidth_bps,
        node=np.arange(num_devices),
        region=np.arange(num_devices),
        kind=np.zeros(num_devices, np.int64),
        nic_bps=np.full(num_devices, np.inf),
        host_bps=np.full(num_devices, np.inf),
        stage_s=np.ones((1, pp)),
        message_bytes=1e6,
        num_micro_batches=10,
        gradient_bytes=np.full(pp, 1e7),
        ranks=np.arange(dp * tp * pp).reshape(dp * tp, pp),
        objective=Unused(),
        stage_layers=(1,) * pp,
    )


def random_problem(num_devices: int, dp: int, pp: int, seed: int, tp: int = 1) -> Problem:
    """Return a problem with links of all speeds that differ by direction."""
    rng = np.random.default_rng(seed)
    delay_s = rng.uniform(1e-3, 0.2, (num_devices, num_devices))
    bandwidth_bps = rng.uniform(0.1e9, 10e9, (num_devices, num_devices))
    return problem_of(delay_s, bandwidth_bps, dp, pp, tp)


def published_problem(case: str) -> Problem:
    """Return a case in the released configuration."""
    request = Request(
        scenario=load_scenario(case),
        variant="dtfm-scheduled",
        setting=Setting(layers=24, batch=1024),
    )
    problem = request.problem()
    delay_s, bandwidth_bps = problem.delay_s.copy(), problem.bandwidth_bps.copy()
    if case in NIC_SHARE_BPS:
        same = problem.node[:, None] == problem.node
        delay_s[:] = 0.0
        bandwidth_bps[:] = np.where(same, INSIDE_BPS, NIC_SHARE_BPS[case])
    else:
        delay_s[problem.region[:, None] == problem.region] = REGION_DELAY_S[case]
    return dataclasses.replace(
        problem,
        delay_s=delay_s,
        bandwidth_bps=bandwidth_bps,
        nic_bps=np.full(len(delay_s), np.inf),
        message_bytes=ACTIVATION_BYTES / problem.num_micro_batches,
        gradient_bytes=np.full(problem.pp, GRADIENT_BYTES),
    )
