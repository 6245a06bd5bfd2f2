"""Predict and measure how fast distributed training runs on a network you do not have.

The pipeline, in order, is the layout of the package:

1. `netbench.scenario` reads `scenarios/*.yaml` into a `Scenario`: regions, nodes, devices, links.
2. `netbench.workload` turns a model and a device profile into FLOPs, bytes and seconds.
3. `netbench.transport` holds the constants of communication libraries, each with its source.
4. `netbench.systems` has a module per training system; `netbench.plan` resolves all of it into a
   `Plan`: pure, serialised, hashed.
5. `netbench.simulator` times a plan without executing it; `netbench.explain` says where the time
   goes.
6. `netbench.placement` searches which rank runs on which device (`placement.schedulers`).
7. `netbench.network` gives machines the plan's network with tc, verifies it and restores them.
8. `netbench.testbed` finds a place to run a plan, starts its ranks, and decides whether what they
   measure can be trusted (`testbed.runs.controller`).
9. `netbench.distributed` runs plans and searches on the workers of a Dask cluster.
10. `netbench.trainers` runs on the nodes; it is the only package that imports torch.
11. `netbench.records` keeps every finished iteration on disk, and resumes; `netbench.timelines` is
    what each rank did during one, and when.
12. `netbench.report` turns records into tables, pictures and the pages of `results/`.

`netbench.api` has the functions of a notebook, and `import netbench as nb` has them all:
`nb.load_scenario`, `nb.simulate` and so on (docs/api.md). They are imported when they are first
used. `netbench.cli` and `netbench.commands` parse, call the same functions, and print.
`netbench.pool` is the interface of places where cells of work run. `netbench.units` and
`netbench.errors` are beneath everything. `netbench.testing` has doubles for tests. The docstring of
each package lists its modules. `docs/` has one page per task; `benchmarks/` fits the constants and
compares with other tools.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netbench.api.costs import Costs, cost_plans
    from netbench.api.emulation import Target, emulate
    from netbench.api.explanation import Explanation, explain_plan
    from netbench.api.placement import Placement, place
    from netbench.api.plans import make_plans
    from netbench.api.results import Results, open_run
    from netbench.api.scenarios import make_scenario
    from netbench.api.simulation import simulate
    from netbench.api.sweeps import Sweep, sweep
    from netbench.errors import NetbenchError
    from netbench.plan.memory import memory_warnings
    from netbench.plan.model import Plan
    from netbench.report.pictures.picture import Picture
    from netbench.scenario import Scenario, list_scenarios, load_scenario
    from netbench.version import __version__

__all__ = [
    "Costs",
    "Explanation",
    "NetbenchError",
    "Picture",
    "Placement",
    "Plan",
    "Results",
    "Scenario",
    "Sweep",
    "Target",
    "__version__",
    "cost_plans",
    "emulate",
    "explain_plan",
    "list_scenarios",
    "load_scenario",
    "make_plans",
    "make_scenario",
    "memory_warnings",
    "open_run",
    "place",
    "simulate",
    "sweep",
]

_MODULES = {
    "Costs": "api.costs",
    "Explanation": "api.explanation",
    "NetbenchError": "errors",
    "Picture": "report.pictures.picture",
    "Placement": "api.placement",
    "Plan": "plan.model",
    "Results": "api.results",
    "Scenario": "scenario",
    "Sweep": "api.sweeps",
    "Target": "api.emulation",
    "__version__": "version",
    "cost_plans": "api.costs",
    "emulate": "api.emulation",
    "explain_plan": "api.explanation",
    "list_scenarios": "scenario",
    "load_scenario": "scenario",
    "make_plans": "api.plans",
    "make_scenario": "api.scenarios",
    "memory_warnings": "plan.memory",
    "open_run": "api.results",
    "place": "api.placement",
    "simulate": "api.simulation",
    "sweep": "api.sweeps",
}
"""Name -> module of the package that defines it."""


def __getattr__(name: str) -> Any:
    """Import what `import netbench` offers when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
