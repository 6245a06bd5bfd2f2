"""YAML -> `Scenario`: regions, nodes, devices, links.

`model` is the data; `load` finds files, `source` reads them with line numbers, `schema` is their
form, `validate` checks against it, `links`, `devices` and `workload` build the parts. `describe`
has a link in few words. `readings` understands what iperf3, ping and tables in CSV say of a
network, `matrices` makes a scenario of it; `geography` makes one up.
"""

from netbench.scenario.model import Scenario

__all__ = ["Scenario", "list_scenarios", "load_scenario"]


def load_scenario(name_or_path: str) -> Scenario:
    """`netbench.scenario.load.load_scenario`, imported when called: the YAML and schema libraries
    cost 0.15 s at start, and most of netbench needs only the model."""
    from netbench.scenario import load

    return load.load_scenario(name_or_path)


def list_scenarios() -> tuple[str, ...]:
    """Names of the scenarios that come with netbench."""
    from netbench.scenario import load

    return load.list_scenarios()
