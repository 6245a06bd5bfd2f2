"""Read scenarios from YAML: regions, nodes, devices, links, a workload and a sweep.

- `model` is the data: `Scenario` and its parts. `sharing` describes the queues that flows share.
- `load` finds a file and builds the scenario; `links`, `devices` and `workload` build its parts.
- `source` reads a file with line numbers, `schema` is its form, `validate` checks it, and
  `reference` describes it for people.
- `describe` describes a link briefly.
- `measured` makes scenarios from measurements.
- `prices` builds prices of machines and traffic.
- `churn` reads and draws traces of machines that go and come.
- `geography` generates random scenarios.
"""

from netbench.scenario.model import Scenario

__all__ = ["Scenario", "list_scenarios", "load_scenario"]


def load_scenario(name_or_path: str) -> Scenario:
    """Call `scenario.load.load_scenario`, imported only now: the YAML and schema libraries take
    0.15 s to import, and most of netbench needs only the model."""
    from netbench.scenario import load

    return load.load_scenario(name_or_path)


def list_scenarios() -> tuple[str, ...]:
    """Return the names of the scenarios that netbench includes."""
    from netbench.scenario import load

    return load.list_scenarios()
