"""Two regions of two nodes each, listed in turns: two pipelines of two stages are best inside."""

from __future__ import annotations

import itertools
from pathlib import Path

from netbench.scenario import load_scenario
from netbench.simulator import simulate
from netbench.simulator.scheduling import Request

YAML = """\
name: four-nodes
regions: [A, B]
nodes:
  - {region: A, device: Box}
  - {region: B, device: Box}
  - {region: A, device: Box}
  - {region: B, device: Box}
network:
  sharing: pair
  inside:
    A: {one_way_delay: 0.1ms, bandwidth: INSIDE}
    B: {one_way_delay: 0.1ms, bandwidth: 5Gbit}
  links: [{between: [A, B], one_way_delay: 30ms, bandwidth: 100Mbit}]
devices:
  Box: {flops: 10TFLOPS, memory: 16GB}
workload: {layers: 2, hidden: 256, heads: 4, sequence: 512, dtype: fp16, batch: 64,
           embedding_parameters: 1M}
sweep: {pipeline: 2, variants: [dtfm-scheduled, dtfm-random], seeds: [7]}
"""


def write(folder: Path, inside: str = "5Gbit", first: str = "16GB") -> str:
    """The scenario's file. inside: bandwidth between the nodes of A. first: memory of the first
    device; stage 0 needs 25.2 MB, stage 1 needs 21.2 MB."""
    path = folder / "four-nodes.yaml"
    text = YAML.replace("INSIDE", inside)
    if first != "16GB":
        text = text.replace("device: Box", "device: Small", 1)
        text = text.replace("  Box: {", f"  Small: {{flops: 10TFLOPS, memory: {first}}}\n  Box: {{")
    path.write_text(text)
    return str(path)


def request(path: str) -> Request:
    """dtfm on it, as the commands ask by default."""
    scenario = load_scenario(path)
    return Request(scenario=scenario, variant="dtfm-scheduled", layers=2, batch=64)


def best_s(path: str) -> float:
    """The least simulated time of all 24 placements, one by one."""
    asked = request(path)
    return min(
        simulate(asked.plan(placement)).iteration_s
        for placement in itertools.permutations(range(4))
    )


def listed_s(path: str) -> float:
    """Simulated, in the order of the file."""
    return simulate(request(path).plan((0, 1, 2, 3))).iteration_s
