"""Plans in whose emulation TCP does not act, on links where it would."""

from __future__ import annotations

from dataclasses import replace

from netbench.plan.build import build_plan, keep_dynamics
from netbench.plan.dynamics import dynamics_doubt
from netbench.plan.model import Execution
from netbench.scenario import load_scenario


def test_a_scale_without_segments_is_doubted_where_the_first_window_would_matter() -> None:
    """Case 3: 1.12 Gbit/s x 22 ms are 3.1 MB, 16 sockets start with 160 x 8949 bytes, 1.4 MB."""
    case3 = load_scenario("case3")
    setting = case3.sweep.first_setting()
    plan = build_plan(case3, "dtfm-scheduled", setting, Execution(scale=1000.0))
    doubt = dynamics_doubt(plan)
    assert "2 kinds of links, up to 3.08MB" in doubt
    assert "first window of 1.43184MB; use --faithful" in doubt
    assert dynamics_doubt(replace(plan, scale=1.0)) == ""
    assert dynamics_doubt(keep_dynamics(plan, case3)) == ""
    near = replace(case3.network, links=((case3.network.links[0][0],) * 2,) * 2)
    assert dynamics_doubt(replace(plan, network=near)) == ""  # 5 Gbit/s x 2 ms fit
