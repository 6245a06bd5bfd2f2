"""Placement files: written files are read back, and errors have their position."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbench.errors import PlanError, ScenarioError
from netbench.placement.file import Placed, device_names, placed_text, read_placed, scenario_hash
from netbench.placement.plan_problem import Request
from netbench.plan.serial import plan_hash
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting

YAML = """\
name: pair
regions: [A, B]
nodes:
  - {region: A, device: Box, devices: 4}
  - {region: B, count: 4, device: Box}
network:
  links: [{between: [A, B], one_way_delay: 5ms, bandwidth: 1Gbit}]
  inside:
    B: {one_way_delay: 1ms, bandwidth: 2Gbit}
devices:
  Box: {flops: 10TFLOPS, memory: 16GB}
workload: {layers: 8, hidden: 256, heads: 4, sequence: 512, batch: 64}
sweep: {pipeline: 2, variants: [dtfm-scheduled]}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """Return a scenario with a node of four devices and four nodes of one."""
    path = tmp_path / "pair.yaml"
    path.write_text(YAML)
    return load_scenario(str(path))


def placed(
    scenario: Scenario,
    order: list[int],
    *,
    variant: str = "dtfm-scheduled",
    layers: int = 8,
    stage_layers: tuple[int, ...] = (4, 4),
) -> Placed:
    """Return a placement with devices in this order, lane by lane."""
    request = Request(scenario=scenario, variant=variant, setting=Setting(layers=layers, batch=64))
    return Placed(
        request=request,
        scheduler="a test",
        seed=3,
        grid=np.array(order).reshape(-1, len(stage_layers)),
        stage_layers=stage_layers,
        budget="30s",
        num_evaluated=12,
        search_s=1.5,
        simulated_s=2.25,
        bound_s=1.5,
    )


def edited(path: Path, **changes: Any) -> Path:
    """Write the file with other values."""
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | changes, indent=1))
    return path


@settings(max_examples=20, deadline=None)
@given(
    order=st.permutations(range(8)), variant=st.sampled_from(["dtfm-scheduled", "megatron-p2t2"])
)
def test_what_is_written_is_read_again(
    order: list[int], variant: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any placement, also with tensor parallelism, gives the same plan hash and origin."""
    folder = tmp_path_factory.mktemp("placed")
    (folder / "pair.yaml").write_text(YAML)
    scenario = load_scenario(str(folder / "pair.yaml"))
    written = placed(scenario, order, variant=variant)
    (folder / "placement.json").write_text(placed_text(written))
    found = read_placed(folder / "placement.json", scenario)
    assert plan_hash(found.plan()) == plan_hash(written.plan())
    assert placed_text(found) == placed_text(written)
    assert found.plan().scheduler == "a test"


def test_plans_that_were_compared_are_counted_where_there_are_any(
    tmp_path: Path, scenario: Scenario
) -> None:
    """Only files from a search over plans have this key."""
    path, given = tmp_path / "placement.json", placed(scenario, list(range(8)))
    path.write_text(placed_text(given))
    assert "num_layouts" not in path.read_text()
    assert read_placed(path, scenario).num_layouts is None
    path.write_text(placed_text(dataclasses.replace(given, num_layouts=210)))
    found = read_placed(path, scenario)
    assert (found.num_layouts, found.num_evaluated) == (210, 12)


def test_devices_have_the_names_of_their_nodes(scenario: Scenario) -> None:
    """With an index where a node has several."""
    assert device_names(scenario) == (
        *("node0:0", "node0:1", "node0:2", "node0:3"),
        *("node1", "node2", "node3", "node4"),
    )


def test_a_row_is_a_pipeline(scenario: Scenario, tmp_path: Path) -> None:
    """Rows list devices stage by stage, without ranks or indices."""
    (tmp_path / "placement.json").write_text(
        placed_text(placed(scenario, [4, 0, 5, 1, 6, 2, 7, 3]))
    )
    assert json.loads((tmp_path / "placement.json").read_text())["pipelines"] == [
        ["node1", "node0:0"],
        ["node2", "node0:1"],
        ["node3", "node0:2"],
        ["node4", "node0:3"],
    ]


def test_a_name_alone_is_a_free_device_of_the_node(scenario: Scenario, tmp_path: Path) -> None:
    """Devices that the file names elsewhere are not taken."""
    path = tmp_path / "placement.json"
    path.write_text(placed_text(placed(scenario, list(range(8)))))
    rows = [["node0", "node0"], ["node0:0", "node0"], ["node1", "node2"], ["node3", "node4"]]
    found = read_placed(edited(path, pipelines=rows), scenario)
    assert found.grid.tolist() == [[1, 2], [0, 3], [4, 5], [6, 7]]


def rows(*, first: list[str]) -> list[list[str]]:
    return [first, ["node0:2", "node0:3"], ["node1", "node2"], ["node3", "node4"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipelines": rows(first=["node0:0", "nod1"])}, "is \"nod1\", not a device"),
        ({"pipelines": rows(first=["node1", "node0:0"])}, "pipelines[2][0] is \"node1\", as is"),
        ({"pipelines": rows(first=["node0:0", "node0:9"])}, "did you mean node0:"),
        ({"pipelines": rows(first=["node0:0"])}, "pipelines[0] has 1 device; expected 2"),
        ({"pipelines": rows(first=["a", "b"])[1:]}, "pipelines has 3 rows; expected 4"),
        ({"pipelines": [["node0", "node0"]] * 4}, "whose 4 devices are all placed"),
        ({"scenario": "case5"}, 'scenario is "case5"; expected "pair"'),
        ({"scenario_hash": "0" * 12}, "nodes or network of pair have changed since"),
        ({"layout": {"tp": 1, "pp": 4, "dp": 2}}, "layout is tp 1, pp 4, dp 2; expected"),
        ({"layout": {"tp": 1, "pp": 2, "dp": 3}}, "layout is tp 1, pp 2, dp 3, but batch "),
        ({"stage_layers": [4, 3]}, "2 stages and 7 layers in all; expected 2 stages and 8 layers"),
        ({"stage_layers": [8]}, "has 1 stage and 8 layers"),
        ({"layers": "many"}, "layers \"many\" is not a count"),
        ({"system": "dtfm-schduled"}, 'system is "dtfm-schduled", an unknown system; did you'),
        ({"scheduler": ""}, "scheduler"),
        ({"sheduler": "x"}, "sheduler is an unknown key; did you mean scheduler"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(
    changes: dict[str, Any], message: str, scenario: Scenario, tmp_path: Path
) -> None:
    """The error has file, line, key, what was found and what was expected."""
    path = tmp_path / "placement.json"
    path.write_text(placed_text(placed(scenario, list(range(8)))))
    with pytest.raises(ScenarioError) as error:
        read_placed(edited(path, **changes), scenario)
    assert message in str(error.value)
    file, line, _ = str(error.value).split(":", 2)
    assert Path(file).name == "placement.json"
    assert int(line) > 1


def test_a_file_that_is_not_there_says_how_to_make_one(scenario: Scenario, tmp_path: Path) -> None:
    """A file that is not JSON is reported with its line."""
    with pytest.raises(ScenarioError, match=r"schedule \S*pair\S* -o \S*nothing\.json"):
        read_placed(tmp_path / "nothing.json", scenario)
    (tmp_path / "broken.json").write_text('{\n  "scenario": "pair"\n  "layers": 8}')
    with pytest.raises(ScenarioError, match=r"broken\.json:3: not JSON"):
        read_placed(tmp_path / "broken.json", scenario)


def test_the_hash_is_of_nodes_and_network(scenario: Scenario, tmp_path: Path) -> None:
    """Another delay changes the hash; another model does not."""
    for name, old, new, same in (
        ("slower", "5ms", "6ms", False),
        ("fewer", "devices: 4", "devices: 3", False),
        ("larger", "hidden: 256", "hidden: 512", True),
    ):
        path = tmp_path / f"{name}.yaml"
        path.write_text(YAML.replace(old, new))
        other = load_scenario(str(path))
        assert (scenario_hash(other) == scenario_hash(scenario)) is same


def test_stages_of_a_deeper_model_get_as_many_layers_more(scenario: Scenario) -> None:
    """Differences between stages stay; if the layers do not divide, the error asks for another
    search."""
    for layers, stage_layers in ((16, [9, 7]), (4, [3, 1]), (8, [5, 3])):
        request = Request(
            scenario=scenario, variant="dtfm-scheduled", setting=Setting(layers=layers, batch=64)
        )
        found = placed(scenario, list(range(8)), stage_layers=(5, 3)).on(request).plan()
        assert [stage.num_layers for stage in found.stages] == stage_layers
        assert found.placement == placed(scenario, list(range(8))).plan().placement
    for layers in (9, 2):
        request = Request(
            scenario=scenario, variant="dtfm-scheduled", setting=Setting(layers=layers, batch=64)
        )
        with pytest.raises(PlanError, match="stages of 5, 3 layers, 8 in all"):
            placed(scenario, list(range(8)), stage_layers=(5, 3)).on(request)
