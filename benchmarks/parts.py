"""Split the times of a system in a case into four parts, published and simulated alike.

An iteration of L layers and a batch of B is close to

    beside + per_layer x l + (per_batch + per_layer_and_batch x l) x B / 1024,    l = (L - 32) / 8

so l counts layers of each of 8 stages. The last is what compute costs, unless transfers hide it;
`per_batch` has the transfers, and `per_layer` the gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fit_v100 import Floats, Residual

LAYERS, STEP, BATCH = 32, 8, 1024
"""Layers at which l is 0, layers for which it grows by 1, and the unit of batches."""

NAMES = ("beside", "per layer", "per 1024 sequences", "per layer and 1024 sequences")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts of one case and variant, in the order of `NAMES`.

    values, errors: the parts and their standard errors, (4,), seconds. scatter: standard deviation
    of the times from the sum of the parts, relative.
    """

    values: Floats
    errors: Floats
    scatter: float


def parts(layers: Sequence[int], batches: Sequence[int], times_s: Sequence[float]) -> Parts:
    """Fit the four parts, by least squares of relative errors. Needs more than four times."""
    steps = (np.asarray(layers) - LAYERS) / STEP
    sizes = np.asarray(batches) / BATCH
    columns = np.stack([np.ones_like(steps), steps, sizes, sizes * steps], axis=1)
    relative = columns / np.asarray(times_s)[:, None]
    values = np.linalg.lstsq(relative, np.ones(len(relative)), rcond=None)[0]
    count, free = relative.shape
    variance = float(((relative @ values - 1) ** 2).sum() / (count - free))
    errors = np.sqrt(np.diag(np.linalg.inv(relative.T @ relative)) * variance)
    return Parts(values=values, errors=errors, scatter=variance**0.5)


def parts_of(rows: Iterable[Residual]) -> dict[tuple[str, str], tuple[Parts, Parts]]:
    """Return the parts of published and of simulated times, by case and variant.

    Those with four settings or fewer are left out: nothing would be left to tell the scatter.
    """
    groups: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    for row in rows:
        groups[row.case, row.variant].append(row)
    found = {}
    for key, group in groups.items():
        if len(group) > len(NAMES):
            layers, batches = [row.layers for row in group], [row.batch for row in group]
            found[key] = (
                parts(layers, batches, [row.published_s for row in group]),
                parts(layers, batches, [row.simulated_s for row in group]),
            )
    return found


def parts_table(rows: Iterable[Residual]) -> str:
    """Return a table: published with its standard error -> simulated, seconds."""
    lines = [f"| case | variant | {' | '.join(NAMES)} | scatter |", "|---|---|---|---|---|---|---|"]
    for (case, variant), (published, simulated) in sorted(parts_of(rows).items()):
        cells = [
            f"{value:z.2f} ±{error:.2f} → {other:z.2f}"
            for value, error, other in zip(
                published.values, published.errors, simulated.values, strict=True
            )
        ]
        lines.append(f"| {case} | {variant} | {' | '.join(cells)} | {published.scatter:.1%} |")
    return "\n".join(lines)


def mean_scatter(rows: Iterable[Residual]) -> float:
    """Return the mean over cases and variants of the scatter of published times."""
    return float(np.mean([published.scatter for published, _ in parts_of(rows).values()]))
