"""Make a scenario in code: the sections of a scenario file as Python values."""

from collections.abc import Mapping, Sequence
from typing import Any

from netbench.scenario.load import build_scenario
from netbench.scenario.model import Scenario
from netbench.scenario.schema import ScenarioForm
from netbench.scenario.source import NO_FILE, SourceFile
from netbench.scenario.validate import validate

Values = Mapping[str, Any]


def make_scenario(
    *,
    regions: Sequence[str],
    nodes: Sequence[Values],
    network: Values,
    workload: Values,
    devices: Values | None = None,
    sweep: Values | None = None,
    name: str = "scenario",
    title: str = "",
) -> Scenario:
    """Make a scenario from the sections of a scenario file.

    The keys are those of the file, and quantities are texts with units: `{"one_way_delay": "8ms",
    "bandwidth": "1Gbit"}`. docs/scenario-reference.md lists all keys. Raises ScenarioError, which
    names the key, what was found and what was expected.
    """
    data: dict[str, Any] = {
        "name": name,
        "title": title,
        "regions": list(regions),
        "nodes": list(nodes),
        "network": network,
        "workload": workload,
        "devices": devices or {},
        "sweep": sweep or {},
    }
    source = SourceFile(path=NO_FILE, data=data, root=None)
    return build_scenario(source, validate(source, ScenarioForm))
