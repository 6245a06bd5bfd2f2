"""A scenario of two nodes in each of two regions, listed alternately.

The best placement of its two pipelines of two stages keeps each pipeline inside one region.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from netbench.placement.plan_problem import Request
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.simulator import simulate

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
    """Write the scenario to `folder` and return its path.

    inside: bandwidth between the nodes of region A. first: memory of the first device; stage 0
    needs 25.2 MB, stage 1 needs 21.2 MB.
    """
    path = folder / "four-nodes.yaml"
    text = YAML.replace("INSIDE", inside)
    if first != "16GB":
        text = text.replace("device: Box", "device: Small", 1)
        text = text.replace("  Box: {", f"  Small: {{flops: 10TFLOPS, memory: {first}}}\n  Box: {{")
    path.write_text(text)
    return str(path)


def request(path: str) -> Request:
    """Build the request that the commands make by default: system dtfm."""
    scenario = load_scenario(path)
    return Request(scenario=scenario, variant="dtfm-scheduled", setting=Setting(layers=2, batch=64))


def best_placement_s(path: str) -> float:
    """Smallest simulated iteration time of all 24 placements, seconds."""
    asked = request(path)
    return min(
        simulate(asked.plan(placement)).iteration_s
        for placement in itertools.permutations(range(4))
    )


def listed_placement_s(path: str) -> float:
    """Simulated iteration time of the placement in file order, seconds."""
    return simulate(request(path).plan((0, 1, 2, 3))).iteration_s
