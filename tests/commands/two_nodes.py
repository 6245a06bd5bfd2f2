"""Scenario of a two-node pipeline with one micro-batch, whose times have a closed form."""

from __future__ import annotations

from pathlib import Path

YAML = """\
name: two-nodes
regions: [A, B]
nodes:
  - {region: A, device: Box}
  - {region: B, device: Box}
network:
  links: [{between: [A, B], one_way_delay: DELAY, bandwidth: BANDWIDTH}]
devices:
  Box: {flops: 1TFLOPS, memory: 16GB}
workload: {layers: 2, hidden: 1024, heads: 16, sequence: 1024, batch: 1}
sweep: {pipeline: 2, variants: [dtfm-scheduled]}
"""

ACTIVATION_BITS = 8 * 2 * 1024 * 1024
"""Activations of one sequence of 1024 tokens with hidden size 1024 in fp16, bits."""

COMPUTE_S = 4 * 2 * 24 * 1024 * 1024**2 * (1 + 1024 / (6 * 1024)) / 1e12
"""Forward and backward (three times as long, with recomputation) of two sequential layers of
24 s h^2 (1 + s / 6h) FLOP each (Narayanan et al. 2021)."""

GOODPUT = 1448 / 1514
"""Ratio of payload to bytes on the wire at an MTU of 1500, with TCP timestamps."""


def iteration_s(bandwidth_bps: float) -> float:
    """Time of compute and of two transfers without overlap, seconds."""
    return COMPUTE_S + 2 * ACTIVATION_BITS / (bandwidth_bps * GOODPUT)


def write(folder: Path, bandwidth: str = "1Gbit", delay: str = "0ms") -> str:
    """Write the scenario and return its path."""
    path = folder / "two-nodes.yaml"
    path.write_text(YAML.replace("BANDWIDTH", bandwidth).replace("DELAY", delay))
    return str(path)
