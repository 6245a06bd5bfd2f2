"""A pipeline of two nodes, one micro-batch, no delay: its times are sums on paper."""

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
"""One sequence of 1024 tokens x hidden 1024 in fp16."""

COMPUTE_S = 4 * 2 * 24 * 1024 * 1024**2 * (1 + 1024 / (6 * 1024)) / 1e12
"""Forward, and backward as thrice that with recomputation; two layers, one after the other, of
24 s h^2 (1 + s / 6h) FLOP each (Narayanan et al. 2021)."""

GOODPUT = 1448 / 1514
"""Payload over bytes on the wire at an MTU of 1500, with TCP timestamps."""


def iteration_s(bandwidth_bps: float) -> float:
    """A boundary tensor crosses once forward and once back, and nothing overlaps."""
    return COMPUTE_S + 2 * ACTIVATION_BITS / (bandwidth_bps * GOODPUT)


def write(folder: Path, bandwidth: str = "1Gbit", delay: str = "0ms") -> str:
    """The scenario's file."""
    path = folder / "two-nodes.yaml"
    path.write_text(YAML.replace("BANDWIDTH", bandwidth).replace("DELAY", delay))
    return str(path)
