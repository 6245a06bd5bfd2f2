"""A scenario, an inventory, and doubles in place of the inventory's machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netbench.commands.net import hosts as commands
from netbench.scenario import Scenario
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.inventory import Inventory
from netbench.testbed.ssh.scenario_hosts import ScenarioHosts
from tests.fake_machines import FakeMachines
from tests.networks import ADDRESSES

SCENARIO = """
name: pair
title: Two regions
regions: [ohio, virginia]
nodes:
  - {region: ohio, count: 2, device: V100}
  - {region: virginia, count: 2, device: V100}
network:
  sharing: pair
  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}
  links:
    - {between: [ohio, virginia], one_way_delay: 11ms, bandwidth: 1.12Gbit}
devices: {V100: builtin}
workload:
  {layers: 4, hidden: 64, heads: 4, sequence: 64, batch: 8, micro_batch: 1, dtype: fp16}
sweep:
  layers: [4]
  batch: [8]
  variants: [zero3]
  seeds: [1]
"""
INVENTORY = """
hosts:
  - {name: one, address: 10.77.0.1, user: u, data_address: ["10.77.0.1", "fd00::1"]}
  - {name: two, address: 10.77.0.2, user: u, data_address: ["10.77.0.2", "fd00::2"]}
  - {name: three, address: 10.77.0.3, user: u, data_address: ["10.77.0.3", "fd00::3"]}
  - {name: four, address: 10.77.0.4, user: u, data_address: 10.77.0.4, interface: ens6}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    """Scenario and inventory, as the end of a command line."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "pair.yaml").write_text(SCENARIO)
    (tmp_path / "hosts.yaml").write_text(INVENTORY)
    return str(tmp_path / "pair.yaml"), "--inventory", str(tmp_path / "hosts.yaml")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMachines:
    """Four machines in place of those of any inventory; interface eth0 each."""
    fakes = FakeMachines(monkeypatch, tmp_path / "machines", 4)
    hosts = tuple(
        Host(name=name, address="-", user="u", data_addresses=ADDRESSES[i], interface="eth0")
        for i, name in enumerate(("one", "two", "three", "four"))
    )

    @contextmanager
    def open_hosts(scenario: Scenario, inventory: Inventory) -> Iterator[ScenarioHosts]:
        yield ScenarioHosts(
            scenario=scenario,
            inventory=inventory,
            nodes=hosts,
            hosts=fakes,  # type: ignore[arg-type]
            exempt_ports=(),
        )

    monkeypatch.setattr(commands, "open_scenario_hosts", open_hosts)
    return fakes
