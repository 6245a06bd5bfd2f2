"""Find the FLOP/s with which the first LAN cell of each series of GPT-3 small comes out.

    python -m benchmarks.fit_gpt3_small

Prints the values for `TERAFLOPS` in `netbench/report/page/under_tc/small.py`; then the speeds of
matrix products and of memory for scenarios/gpt3-small.yaml, with which a layer of hidden size 768
takes as long as GPipe's in fp16, and one of 2048 as long as on the built-in V100.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import brentq

from netbench.report.page.under_tc.small import SmallCell, fixing_cells
from netbench.scenario import load_scenario
from netbench.scenario.devices import load_device_profile
from netbench.simulator import simulate
from netbench.workload.costs import layer_forward_flops, layer_traffic_bytes

RANGE = (0.5, 100.0)
"""TFLOPS."""


def fit(cell: SmallCell) -> float:
    """Return the TFLOPS with which `cell` takes the published time."""
    return float(
        brentq(
            lambda value: simulate(cell.plan(value)).iteration_s - cell.published_s,
            *RANGE,
            xtol=1e-4,
        )
    )


def speeds(small_flops: float) -> tuple[float, float]:
    """Return FLOP/s of matrix products and bytes/s of memory. small_flops: achieved at 768."""
    achieved = {"gpt3-small": small_flops, "case1": load_device_profile("V100").flops["dtfm"]}
    rows, seconds = [], []
    for name, flops in achieved.items():
        workload = dataclasses.replace(load_scenario(name).workload, micro_batch=1)
        rows.append([layer_forward_flops(workload), layer_traffic_bytes(workload)])
        seconds.append(rows[-1][0] / flops)
    per_flop, per_byte = np.linalg.solve(rows, seconds)
    return float(1 / per_flop), float(1 / per_byte)


def main() -> None:
    """Print the values."""
    found = {series: fit(cell) for series, cell in fixing_cells().items()}
    for series, teraflops in found.items():
        print(f"    {series!r}: {teraflops:.3f},")
    products, memory = speeds(1e12 * found["gpipe", "fp16", 1])
    print(f"flops: {products / 1e12:.1f}TFLOPS, memory_speed: {memory / 1e9:.0f}GB/s")


if __name__ == "__main__":
    main()
