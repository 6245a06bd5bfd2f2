"""Find the FLOP/s with which the first LAN cell of each series of GPT-3 small comes out.

    python -m benchmarks.fit_gpt3_small

Prints the values for `TERAFLOPS` in `netbench/report/page/under_tc/small.py`.
"""

from __future__ import annotations

from scipy.optimize import brentq

from netbench.report.page.under_tc.small import SmallCell, fixing_cells
from netbench.simulator import simulate

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


if __name__ == "__main__":
    for series, cell in fixing_cells().items():
        print(f"    {series!r}: {fit(cell):.3f},")
