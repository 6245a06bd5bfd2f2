"""docs/extending.md: a copy of netbench is built from the page, then simulated and executed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(python|yaml|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

EXECUTE = """
import multiprocessing, socket, sys
import torch
from netbench.plan.collectives import COLLECTIVES
from netbench.plan.build import build_plan
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Setting
from netbench.trainers.communication.collectives import run_stages
from netbench.trainers.communication.group import Group
from netbench.trainers.communication.world import World
from netbench.trainers.systems.registry import build_trainer

def work(rank, store, results):
    world = World.connect(
        rank=rank, size=4, interface="lo", store=store, serve_store=rank == 0
    )
    plan = build_plan(load_scenario("star.yaml"), "star", Setting(layers=4, batch=16))
    trainer = build_trainer(world, plan)
    world.warm(trainer.peers())
    phases = trainer.iterate()
    tensor = torch.full((10,), 10.0**rank)
    stages = COLLECTIVES["star-all-reduce"].algorithms["nccl"](4)
    run_stages(Group.of(world, range(4)), stages, tensor)
    results.put((phases["forward_s"] > 0, tensor.tolist()))
    world.warm(set(range(4)) - {rank})  # nobody leaves early

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        store = f"127.0.0.1:{probe.getsockname()[1]}"
    results = context.Queue()
    ranks = [context.Process(target=work, args=(r, store, results), daemon=True) for r in range(4)]
    for rank in ranks:
        rank.start()
    for _ in ranks:
        assert results.get(timeout=240) == (True, [1111.0] * 10)
"""

SHARES = """
from netbench.explain.usage import links
from netbench.network.probing.samples import expected_rate_bps, sample_links
from netbench.network.shaping.program import compile_programs
from netbench.plan.build import build_plan
from netbench.scenario.load import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator.iteration import simulate

scenario = load_scenario("uplink.yaml")
programs = compile_programs(scenario.network, [(f"10.0.0.{i}",) for i in range(1, 5)], "eth0")
assert [[leaf.rate_bps for leaf in program.leaves] for program in programs] == [[10**9]] * 4
(shared,) = (sample for sample in sample_links(scenario.network) if sample.kind != "link")
assert (shared.kind, len(shared.flows)) == ("uplink", 2)
assert expected_rate_bps(scenario.network, shared) == 1e9
used = links(simulate(build_plan(scenario, "star", Setting(layers=4, batch=16))))
assert ("uplink", "node0 -> Lab") in {(link.kind, link.name) for link in used}
"""


def apply_diff(root: Path, diff: str) -> None:
    """Apply the hunks of a diff by their context, which must occur once. Line numbers in a page
    would be wrong after every change of the file."""
    path = root / re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)[0]
    text = path.read_text(encoding="utf-8")
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"{path}: the context of docs/extending.md:\n{before}"
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with netbench and the page's scenario, extended as the page says."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(
        # Compiled code is copied: numba takes it where the source has the same age and size.
        ROOT / "netbench",
        folder / "netbench",
        ignore=shutil.ignore_patterns("*.pyc*", "*.tmp.*"),
    )
    shutil.copytree(ROOT / "scenarios", folder / "scenarios")
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "diff":
            apply_diff(folder, text)
            continue
        first, _, body = text.partition("\n")
        name, _, where = first.removeprefix("# ").partition(", above ")
        path = folder / name
        if where:
            old = path.read_text(encoding="utf-8")
            place = re.search(rf"^{where}\b", old, re.MULTILINE)
            assert place is not None
            body = f"{old[: place.start()]}{body}\n\n{old[place.start() :]}"
        path.write_text(body, encoding="utf-8")
    return folder


def run(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def simulated(folder: Path, scenario: str) -> dict[str, float]:
    argv = ["run", scenario, "--testbed", "sim", "--results", "results"]
    table = run(folder, "-m", "netbench", *argv)
    found = re.findall(r"^L4 B16\s+(star|ddp)\s+([\d.]+)", table, re.MULTILINE)
    return {name: float(seconds) for name, seconds in found}


def test_the_system_is_simulated_beside_the_others(extended: Path) -> None:
    """Three gradients in and three out of member 0, each pair of nodes at its own rate: a round of
    two transfers, where a ring has six steps of a quarter of the tensor."""
    seconds = simulated(extended, "star.yaml")
    assert seconds.keys() == {"star", "ddp"}
    assert 0 < seconds["ddp"] < seconds["star"]


def test_flows_share_the_queue_of_the_new_semantics(extended: Path) -> None:
    """The simulator, tc configurations, their verification and `explain` have one queue per node.
    Each member of a ring sends to one node, so `ddp` takes as long as before."""
    text = (extended / "star.yaml").read_text(encoding="utf-8")
    shared = text.replace("sharing: pair", "sharing: uplink")
    (extended / "uplink.yaml").write_text(shared, encoding="utf-8")
    run(extended, "-c", SHARES)
    pair, uplink = simulated(extended, "star.yaml"), simulated(extended, "uplink.yaml")
    assert uplink["ddp"] == pair["ddp"]
    assert uplink["star"] > 1.5 * pair["star"]


def test_ranks_execute_the_system_and_the_collective(extended: Path) -> None:
    """Four processes run an iteration, and the collective sums 1 + 10 + 100 + 1000."""
    run(extended, "-c", EXECUTE)


def test_names_are_suggested(extended: Path) -> None:
    """The grammar in messages comes from the registry."""
    done = subprocess.run(
        [sys.executable, "-m", "netbench", "run", "star.yaml", "--systems", "stra", "--dry-run"],
        cwd=extended, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "did you mean star?" in done.stderr
