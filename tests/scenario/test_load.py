"""Reading scenario files: their meaning, and the errors for invalid ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from netbench.errors import ScenarioError
from netbench.scenario import list_scenarios, load_scenario
from netbench.scenario.load import scenarios_dir
from netbench.scenario.model import Link, Node, Tcp

Bend = Callable[..., str]


def problem(path: str) -> str:
    """Return the message about a file, one line without the path."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert message.startswith(path)
    assert "\n" not in message
    return message.removeprefix(path)


def test_a_file_becomes_nodes_links_and_defaults(bend: Bend) -> None:
    """Missing keys have defaults: the name is the file's, the sweep is the workload."""
    scenario = load_scenario(bend())
    assert scenario.name == "mine"
    assert [node.region for node in scenario.nodes] == ["A", "A", "B", "B"]
    assert scenario.nodes[2] == Node(name="node2", region="B", device="V100")
    assert scenario.network.sharing == "pair"
    assert scenario.network.mtu_bytes == 1500
    assert scenario.network.link(0, 1) == Link(one_way_delay_s=0.001, bandwidth_bps=5e9)
    assert scenario.network.link(3, 0) == Link(one_way_delay_s=0.011, bandwidth_bps=1e9)
    assert (scenario.sweep.layers, scenario.sweep.batch) == ((8,), (16,))
    assert scenario.sweep.default_seeds == (2022,)
    assert scenario.workload.micro_batch == 1
    assert scenario.workload.recomputation


def test_node_matrices_follow_the_regions(bend: Bend) -> None:
    """(num_nodes, num_nodes), [src, dst]; a node has no delay to itself."""
    network = load_scenario(bend()).network
    delays_ms = [[0, 1, 11, 11], [1, 0, 11, 11], [11, 11, 0, 1], [11, 11, 1, 0]]
    np.testing.assert_allclose(network.one_way_delay_s() * 1e3, delays_ms)
    assert np.all(np.isinf(np.diag(network.bandwidth_bps())))
    assert network.bandwidth_bps()[0, 3] == 1e9


def test_devices_of_a_node_share_it(bend: Bend) -> None:
    """`devices` per node; a device knows its node."""
    scenario = load_scenario(bend("count: 2, device: V100", "count: 1, device: V100, devices: 3"))
    assert scenario.num_devices == 5
    assert scenario.device_nodes() == (0, 0, 0, 1, 2)


def test_the_slice_run_by_default_can_be_smaller_than_the_sweep(bend: Bend) -> None:
    """Defaults not given are the first of layers, batch and seeds, and all variants."""
    more = "sweep: {layers: [8, 16], seeds: [1, 2], variants: [zero3], default: {layers: [16]}}\n"
    sweep = load_scenario(bend(more=more)).sweep
    assert (sweep.layers, sweep.default_layers) == ((8, 16), (16,))
    assert (sweep.default_seeds, sweep.default_variants) == ((1,), ("zero3",))


def test_stages_may_have_different_numbers_of_layers(bend: Bend) -> None:
    """In the order of the stages; empty if the key is missing."""
    scenario = load_scenario(bend(more="sweep: {pipeline: 2, pipeline_layers: [5, 3]}\n"))
    assert scenario.sweep.pipeline_layers == (5, 3)
    assert load_scenario(bend()).sweep.pipeline_layers == ()


def test_maps_are_placements_by_rank(bend: Bend) -> None:
    """A node of two devices places two consecutive ranks."""
    more = "sweep: {maps: {random: [2, 0, 1, 3], random-nodes: [3, 0, 2, 1]}}\n"
    assert load_scenario(bend(more=more)).sweep.maps == {
        "random": (2, 0, 1, 3), "random-nodes": (3, 0, 2, 1)
    }  # fmt: skip
    pairs = bend("count: 2, device: V100}", "count: 2, device: V100, devices: 2}", more.replace(
        "random: [2, 0, 1, 3], ", ""
    ))  # fmt: skip
    assert load_scenario(pairs).sweep.maps == {"random-nodes": (5, 0, 1, 4, 2, 3)}


def test_networks_to_sweep_over_are_links_with_a_name(bend: Bend) -> None:
    """The default is the first; micro-batches likewise. Without any, there are none."""
    more = (
        "sweep:\n  micro_batch: [2, 4]\n  networks:\n"
        "    - {name: near, one_way_delay: 1ms}\n"
        "    - {name: far, one_way_delay: 90ms, bandwidth: 1Gbit, loss: 0.1%}\n"
    )
    sweep = load_scenario(bend(more=more)).sweep
    assert [network.name for network in sweep.networks] == ["near", "far"]
    assert sweep.networks[0].link == Link(one_way_delay_s=0.001, bandwidth_bps=math.inf)
    assert sweep.networks[1].link == Link(one_way_delay_s=0.09, bandwidth_bps=1e9, loss=0.001)
    assert (sweep.default_networks, sweep.default_micro_batch) == (("near",), (2,))
    plain = load_scenario(bend()).sweep
    assert (plain.networks, plain.default_networks, plain.micro_batch) == ((), (), ())


def test_the_backend_is_nccl_unless_said(bend: Bend) -> None:
    """gloo is the alternative."""
    assert load_scenario(bend()).backend == "nccl"
    assert load_scenario(bend("heads: 8", "heads: 8, backend: gloo")).backend == "gloo"


def test_an_ideal_network_is_a_network(bend: Bend) -> None:
    """No delay and no limit, inside and across: an upper bound of the speed."""
    path = bend("{one_way_delay: 1ms, bandwidth: 5Gbit}", "{one_way_delay: 0ms}")
    text = Path(path).read_text().replace("11ms, bandwidth: 1Gbit", "0s, bandwidth: unlimited")
    Path(path).write_text(text)
    network = load_scenario(path).network
    assert not network.one_way_delay_s().any()
    assert np.isinf(network.bandwidth_bps()).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device: V100", "devise: V100", ":3: nodes[0].devise is an unknown key; did you mean dev"),
        ("1Gbit", "1.1", ':8: network.links[0].bandwidth "1.1" has no unit; write e.g. "1.1Gbit"'),
        ("1Gbit", "-1Gbit", ':8: network.links[0].bandwidth "-1Gbit" is negative; write e.g.'),
        ("1Gbit", "0Gbit", ':8: network.links[0].bandwidth "0Gbit" is zero; a bandwidth must be'),
        ("1Gbit", "true", ':8: network.links[0].bandwidth is true; write e.g. "1.12Gbit"'),
        ("11ms", "11", ':8: network.links[0].one_way_delay "11" has no unit; write e.g. "11ms"'),
        ("11ms", ".nan", ':8: network.links[0].one_way_delay "nan" is not a time; write e.g.'),
        (
            "1Gbit}",
            "1Gbit, loss: 100%}",
            ':8: network.links[0].loss "100%" loses every packet, so that nothing can cross; write',
        ),
        ("heads: 8", "heads: 8, backend: mpi", ":9: workload.backend is \"mpi\"; expected 'nccl'"),
        ("11ms", "[1]", ':8: network.links[0].one_way_delay is [1]; write e.g. "11ms"'),
        ("region: B", "region: Bb", ':4: nodes[1].region "Bb" is not in regions; did you mean B?'),
        ("device: V100", "device: V10", ':3: nodes[0].device "V10" is neither under devices nor'),
        ("[A, B]", "[A, A]", ':1: regions[1] "A" is given twice; keep one of the two'),
        ("[A, B]", "[1, B]", ":1: regions[0] is 1; expected text"),
        ("[A, B]", "[]", ":1: regions is []; expected at least 1"),
        ("layers: 8", "layers: 0", ":9: workload.layers is 0; expected more than 0"),
        ("layers: 8", "layers: 1e9", ":9: workload.layers is 1000000000.0; expected at most 10000"),
        ("hidden: 512", "hidden: 1000000000", ":9: workload.hidden is 1000000000; expected at mo"),
        ("heads: 8", "heads: 7", ":9: workload.heads is 7, which does not divide hidden 512; choo"),
        (
            "heads: 8",
            "heads: 8, embedding_parameters: 262T",
            ':9: workload.embedding_parameters is "262T"',
        ),
        ("11ms", "10h", ':8: network.links[0].one_way_delay "10h" is too large; at most 60s'),
        ("1Gbit", "1bit", ':8: network.links[0].bandwidth "1bit" is too small; at least 1Kbit'),
        ("count: 2", "count: 9999", ":4: nodes[1] makes 10001 devices in all; expected at most"),
        ("[A, B]", f"{[*map(str, range(257))]}", ":1: regions is ['0', '1', '2', '3',"),
        ("regions:", 'title: "\\ud800"\nregions:', ":1: \\ud800 is half of a character; write"),
        ("layers: 8", "layers: -8", ':9: workload.layers "-8" is negative'),
        ("layers: 8", "layers: 8.5", ':9: workload.layers "8.5" is not a whole number'),
        ("layers: 8, ", "", ':9: workload.layers is missing; write e.g. "layers: 24"'),
        ("heads: 8", "heads: 8, dtype: fp8", ":9: workload.dtype is \"fp8\"; expected 'fp16'"),
        ("heads: 8", "heads: 8, recomputation: 7", ":9: workload.recomputation is 7; expected"),
        ("count: 2", "count: 64M", ':3: nodes[0].count is "64M"; expected at most 10000'),
        ("network:", "network:\n  sharing: all", ":6: network.sharing is \"all\"; expected 'pair'"),
        ("network:", "network:\n  sharing: nic", ':3: nodes[0] has no nic, but sharing is "nic"'),
        ("network:", "network:\n  mtu: 9", ":6: network.mtu is 9; input should be greater than"),
        ("regions:", "name: a b\nregions:", ':1: name is "a b"; expected letters, digits'),
        ("regions:", "notes: &x [*x]\nregions:", ": more than 1000000 values, aliases counted"),
        ("regions:", "5: 4\nregions:", ":1: 5 is an unknown key; expected one of name, title"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(bend: Bend, old: str, new: str, message: str) -> None:
    """The error has file, line, key, what was found and what to write."""
    assert problem(bend(old, new)).startswith(message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("sweep: 5\n", ":10: sweep is 5; expected a mapping with layers, batch"),
        ("sweep: {networks: []}\n", ":10: sweep.networks is []; expected at least 1"),
        ("sweep: {networks: [x]}\n", ':10: sweep.networks[0] is "x"; expected a mapping with on'),
        (
            "sweep:\n  networks:\n    - {name: a, one_way_delay: 1}\n",
            ':12: sweep.networks[0].one_way_delay "1" has no unit',
        ),
        (
            "sweep:\n  networks:\n    - {name: a b, one_way_delay: 1ms}\n",
            ':12: sweep.networks[0].name is "a b"; expected letters',
        ),
        (
            "sweep:\n  networks:\n    - {name: a, one_way_delay: 1ms}\n"
            "    - {name: a, one_way_delay: 2ms}\n",
            ':13: sweep.networks[1] "a" is given twice; keep one of the two',
        ),
        (
            "sweep:\n  networks: [{name: near, one_way_delay: 1ms}]\n"
            "  default: {networks: [ner]}\n",
            ':12: sweep.default.networks[0] "ner" is not in sweep.networks; did you mean near?',
        ),
        (
            "sweep:\n  default: {networks: [near]}\n",
            ':11: sweep.default.networks[0] "near" is not in sweep.networks; add it there',
        ),
        (
            "sweep:\n  maps: {random: [0, 1, 1, 3]}\n",
            ":11: sweep.maps.random is [0, 1, 1, 3]; expected every number from 0 to 3 once",
        ),
        ("sweep: {micro_batch: [0]}\n", ":10: sweep.micro_batch[0] is 0; expected more than 0"),
        ("sweep: {seeds: [x]}\n", ':10: sweep.seeds[0] is "x"; expected a whole number'),
        (
            "sweep:\n  pipeline_layers: 8\n",
            ":11: sweep.pipeline_layers is 8; input should be a valid list",
        ),
        (
            "sweep:\n  pipeline_layers: [8, 0]\n",
            ":11: sweep.pipeline_layers[1] is 0; expected more than 0",
        ),
        (
            "sweep:\n  layers: [8]\n  pipeline_layers: [4, 3]\n",
            ":12: sweep.pipeline_layers has 7 layers in all, but the model has 8; write stages",
        ),
        (
            "sweep: {layers: [8, 9], pipeline_layers: [5, 3]}\n",
            ":10: sweep.pipeline_layers has 8 layers in all, but the model has 9; write stages",
        ),
        (
            "sweep: {pipeline: 4, pipeline_layers: [5, 3]}\n",
            ":10: sweep.pipeline_layers has 2 stages, but `pipeline` is 4; remove one of them",
        ),
        ("sweep: {layers: [8, 8]}\n", ":10: sweep.layers has 8 twice; keep one of the two"),
        ("sweep: {variants: [ddp, ddp]}\n", ':10: sweep.variants has "ddp" twice; keep one'),
        ("sweep: {seeds: [-1]}\n", ":10: sweep.seeds[0] is -1; input should be greater than or eq"),
        ("sweep: {default: {seeds: [1, 2, 1]}}\n", ":10: sweep.default.seeds has 1 twice; keep"),
        ("workload: {}\n", ':10: "workload" is given twice; keep one of the two'),
        ("\tx: 1\n", ":10: not YAML: "),
        ("sweep: !python/object:os.system {}\n", ":10: not YAML: "),
        ("sweep:\n  layers: [8]\n  lyers: [8]\n", ":12: sweep.lyers is an unknown key; did you"),
    ],
)
def test_a_wrong_line_is_named(bend: Bend, more: str, message: str) -> None:
    """Keys in blocks have their own line."""
    assert problem(bend(more=more)).startswith(message)


def test_of_several_problems_the_first_in_the_file_is_told(bend: Bend) -> None:
    """Only one message, whatever the order of the checks."""
    path = bend("count: 2", "count: none", more="sweep: {seeds: [x]}\n")
    assert problem(path).startswith(":3: nodes[0].count")


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    """The error lists the keys of a scenario."""
    (tmp_path / "empty.yaml").touch()
    message = problem(str(tmp_path / "empty.yaml"))
    assert message.startswith(":1: is empty; expected a mapping with name, title")


def test_a_file_that_is_not_utf8_is_refused_with_the_line(tmp_path: Path) -> None:
    """For example Latin-1."""
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: x\ntitle: Zürich\n".encode("latin-1"))
    assert problem(str(path)) == ":2: byte 0xfc is not UTF-8; save the file with UTF-8 encoding"


def test_a_byte_order_mark_is_no_problem(bend: Bend) -> None:
    """Some editors write one."""
    path = Path(bend())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_scenario(str(path)).num_devices == 4


def test_a_file_nested_without_end_is_refused(tmp_path: Path) -> None:
    """Without a RecursionError."""
    path = tmp_path / "deep.yaml"
    path.write_text("a: " + "[" * 1200)
    assert "nested too deeply" in problem(str(path))


def test_a_missing_file_is_told_from_a_missing_name(tmp_path: Path) -> None:
    """A suffix or a folder makes it a path."""
    assert "no such file" in problem(str(tmp_path / "nope.yaml"))
    assert "cannot be read" in problem(str(tmp_path))


def test_an_unknown_name_gets_the_nearest() -> None:
    """`csae3` suggests `case3`."""
    with pytest.raises(ScenarioError, match=r'no scenario "csae3"; did you mean case3'):
        load_scenario("csae3")


def test_a_path_beneath_the_current_folder_is_shown_short(
    bend: Bend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the current folder."""
    bend("11ms", "11")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match=r"^mine\.yaml:8: "):
        load_scenario("./mine.yaml")


def test_scenarios_are_found_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bend: Bend
) -> None:
    """A wheel has them in `_data/scenarios`, which takes precedence over the folder of a
    checkout."""
    from netbench.scenario import load

    packaged = tmp_path / "netbench" / "_data" / "scenarios"
    packaged.mkdir(parents=True)
    (packaged / "mine.yaml").write_bytes(Path(bend()).read_bytes())
    monkeypatch.setattr(load, "__file__", str(tmp_path / "netbench" / "scenario" / "load.py"))
    assert list_scenarios() == ("mine",)
    assert load_scenario("mine").path == str(packaged / "mine.yaml")


def test_bandwidth_left_out_is_unlimited(bend: Bend) -> None:
    """Then only a NIC limits."""
    scenario = load_scenario(bend(", bandwidth: 1Gbit"))
    assert math.isinf(scenario.network.link(0, 2).bandwidth_bps)


def test_tcp_of_the_machines_is_that_of_linux_unless_it_is_stated(tmp_path: Path) -> None:
    """Linux: cubic, 10 segments (RFC 6928), 200 ms, 4 and 6 MiB (tcp_wmem, tcp_rmem)."""
    path = scenarios_dir() / "example-two-labs.yaml"
    assert load_scenario(str(path)).tcp == Tcp()
    assert Tcp() == Tcp(
        congestion="cubic",
        slow_start_after_idle=True,
        initial_window=10,
        min_rto_s=0.2,
        send_buffer_bytes=4 << 20,
        receive_buffer_bytes=6 << 20,
    )
    mine = tmp_path / "mine.yaml"
    stated = "tcp: {congestion: bbr, slow_start_after_idle: false, receive_buffer: 16MiB}\n"
    mine.write_text(path.read_text() + stated)
    found = load_scenario(str(mine)).tcp
    assert (found.congestion, found.slow_start_after_idle) == ("bbr", False)
    assert found.max_window_bytes == 4 << 20
    mine.write_text(path.read_text() + "tcp: {congestion: vegas}\n")
    with pytest.raises(ScenarioError, match="congestion"):
        load_scenario(str(mine))
