"""`netbench scenario` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from netbench.cli import run
from netbench.scenario import list_scenarios


def typed(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `netbench scenario ...`."""
    code = run(["scenario", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """Every scenario has a line with its size."""
    code, out, _ = typed(capsys, "list")
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert code == 0
    assert set(lines) == set(list_scenarios())
    assert "Two universities" in lines["case3"]
    assert lines["case3"].split()[-3:] == ["64", "64", "2"]


def test_show_prints_regions_and_links(capsys: pytest.CaptureFixture[str]) -> None:
    """It shows delay and bandwidth between regions, and the defaults of a run."""
    code, out, _ = typed(capsys, "show", "case3")
    assert code == 0
    for text in ("Ohio", "Virginia", "32", "11ms", "1.12Gbit", "1ms", "5Gbit", "sharing: class"):
        assert text in out
    assert "dtfm-scheduled, dtfm-random, megatron-p8, zero3" in out


def test_show_prints_both_directions_of_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    """Every source region has a row."""
    _, out, _ = typed(capsys, "show", "example-two-labs")
    assert "200Mbit" in out
    assert "50Mbit" in out
    assert "RTX4090: default 60TFLOPS; 24GB" in out


def test_show_marks_jitter_loss_and_missing_links(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A region with one node has no link inside."""
    (tmp_path / "s.yaml").write_text(
        "regions: [A, B]\n"
        "nodes: [{region: A, device: V100}, {region: B, device: V100}]\n"
        "network:\n"
        "  links: [{between: [A, B], one_way_delay: 9ms, jitter: 1ms, loss: 0.2%}]\n"
        "workload: {layers: 2, hidden: 64, heads: 2, sequence: 64, batch: 4}\n"
    )
    _, out, _ = typed(capsys, "show", str(tmp_path / "s.yaml"))
    assert "9ms ±1ms" in out
    assert "unlimited 0.2% loss" in out
    assert " - " in out


def test_show_lists_the_networks_of_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    """Every network has its link; those that a run needs an option for are marked."""
    _, out, _ = typed(capsys, "show", "gpt3-small")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "5ms, 2Gbit" in lines["5ms-2Gbit"]
    assert "--all" in lines["5ms-2Gbit"]
    assert "--all" not in lines["10ms-1Gbit"]
    assert "4 (--all: also 1, 2)" in lines["micro-batch"]
    _, out, _ = typed(capsys, "show", "case3")
    assert "every link" not in out


def test_show_plot_writes_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The suffix chooses the format."""
    picture = tmp_path / "case3.png"
    code, out, _ = typed(capsys, "show", "case3", "--plot", str(picture))
    assert code == 0
    assert "wrote" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_validate_prints_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """The plans are those of the whole sweep.

    Case 3 has 9 settings x (3 + 3 + 3 placements), and gpt3-small 10 networks x 3 micro-batches x
    2 systems.
    """
    code, out, _ = typed(capsys, "validate", "case3", "example-two-labs", "gpt3-small")
    assert code == 0
    assert out.splitlines() == [
        "case3: good (nodes: 64, devices: 64, regions: 2, plans: 108)",
        "example-two-labs: good (nodes: 4, devices: 4, regions: 2, plans: 4)",
        "gpt3-small: good (nodes: 3, devices: 3, regions: 1, plans: 60)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regions: [A]\nnodez: []\n", ":2: nodez is an unknown key; did you mean nodes"),
        ("a: b: c\n", ":1: not YAML"),
    ],
)
def test_validate_of_a_bad_file_exits_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    """The error is one line without a traceback, and standard output stays empty."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    code, out, err = typed(capsys, "validate", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}{message}")
    assert len(err.splitlines()) == 1


def test_validate_builds_the_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A batch that no system can divide is found before a run."""
    path = tmp_path / "odd.yaml"
    path.write_text(
        "regions: [A]\n"
        "nodes: [{region: A, count: 4, device: V100}]\n"
        "network: {inside: {one_way_delay: 1ms}}\n"
        "workload: {layers: 4, hidden: 64, heads: 2, sequence: 64, batch: 5}\n"
    )
    code, _, err = typed(capsys, "validate", str(path))
    assert code == 2
    assert "batch 5 does not divide" in err


def test_an_unknown_scenario_exits_with_2_and_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message goes to standard error."""
    code, _, err = typed(capsys, "show", "csae3")
    assert code == 2
    assert "did you mean case3" in err


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Editors can use it."""
    code, out, _ = typed(capsys, "schema")
    assert code == 0
    assert "workload" in json.loads(out)["properties"]


def test_show_needs_neither_torch_nor_matplotlib() -> None:
    """Both are slow to load; matplotlib comes with --plot only."""
    code = (
        "import sys; from netbench.cli import run; run(['scenario', 'show', 'case3']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib', 'paramiko')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_show_lists_the_impairments_of_a_link(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Bursty loss has its mean, and every other impairment a line; the caption explains trunks."""
    (tmp_path / "s.yaml").write_text(
        "regions: [A, B]\n"
        "nodes: [{region: A, device: V100}, {region: B, device: V100}]\n"
        "network:\n"
        "  sharing: trunk\n"
        "  links:\n"
        "    - between: [A, B]\n"
        "      one_way_delay: 9ms\n"
        "      jitter: {deviation: 1ms, distribution: pareto}\n"
        "      loss: {to_bad: 1%, to_good: 24%}\n"
        "      duplication: 2%\n"
        "      queue: 500\n"
        "workload: {layers: 2, hidden: 64, heads: 2, sequence: 64, batch: 4}\n"
    )
    _, out, _ = typed(capsys, "show", str(tmp_path / "s.yaml"))
    assert "9ms ±1ms pareto" in out
    assert "unlimited 4% loss in bursts" in out
    assert "  2% duplicated" in out
    assert "  queue 500" in out
    assert "sharing: trunk (all traffic between two regions shares one rate)" in out


def test_the_command_in_a_generated_scenario_generates_it_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """File and standard output are equal, and the scenario is valid."""
    made = tmp_path / "random.yaml"
    options = ["generate", "--regions", "3", "--devices", "24", "--seed", "7", "--mixed"]
    assert typed(capsys, *options, "-o", str(made))[0] == 0
    head = made.read_text().splitlines()[0]
    command = head.removeprefix("# Made by: netbench scenario ").split()
    assert command == options
    assert typed(capsys, *command) == (0, made.read_text(), "")
    code, out, _ = typed(capsys, "validate", str(made))
    assert code == 0
    assert "devices: 24, regions: 3" in out


def test_one_device_in_one_city_is_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Title and messages use the singular."""
    file = tmp_path / "one.yaml"
    typed(capsys, "generate", "--regions", "1", "--devices", "1", "-o", str(file))
    assert "title: 1 device in 1 city, seed 1\n" in file.read_text()
    assert run(["explain", str(file), "--system", "megatron-p2"]) == 2
    assert "has 1 device; use" in " ".join(capsys.readouterr().err.split())


def test_an_impossible_scenario_is_not_generated(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what is possible."""
    code, _, err = typed(capsys, "generate", "--regions", "8", "--devices", "4")
    assert code == 2
    assert err.startswith("error: 8 regions for 4 devices: expected 1 to 4, since there are 71")
