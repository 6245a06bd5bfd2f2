"""Fit a device profile to measured passes of a layer.

A pass over a layer takes a constant time, for launching it, what its FLOPs take at a constant rate,
and what its other work takes at the speed of memory. They are fitted per dtype; the file that is
written is a device profile like the built-in ones, with the measurements and what the fit leaves as
comments.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from netbench.scenario.model import MAX_JITTER, Workload
from netbench.units import format_bytes, format_flops, format_memory_speed, format_time
from netbench.workload.costs import layer_bytes, layer_forward_flops, layer_traffic_bytes

PASSES = {"forward": 1, "backward": 2, "recomputing_backward": 3}
"""Work of a pass over that of a forward pass (`costs.backward_factor`)."""

UNSTABLE = 0.1
"""Interquartile range over median above which a time is not trusted: most settings differ by less
than a tenth."""

NORMAL_SPREAD = 1.349
"""Interquartile range of a normal distribution over its standard deviation."""

MIN_JITTER = 1e-4
"""Least `jitter` that is written: 0 would keep equal pipelines in step."""

DIGITS = 4

COLUMNS = ([0], [0, 1], [0, 2], [0, 1, 2])
"""Constants that may be fitted together: of FLOPs, of launches, of memory."""

ROUNDING = 1e-6
"""Relative error that counts as none: fits as good as this need no further constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The sizes of a measured layer."""

    hidden: int
    heads: int
    sequence: int
    micro_batch: int
    dtype: str

    @property
    def workload(self) -> Workload:
        """Return a model of one such layer."""
        return Workload(
            layers=1,
            hidden=self.hidden,
            heads=self.heads,
            sequence=self.sequence,
            batch=self.micro_batch,
            micro_batch=self.micro_batch,
            dtype=self.dtype,
        )

    @property
    def text(self) -> str:
        """Text, in short."""
        return f"h{self.hidden} s{self.sequence} m{self.micro_batch} {self.dtype}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """Time of repeated runs. median_s: seconds. spread: interquartile range over median."""

    median_s: float
    spread: float
    num_runs: int

    @property
    def is_stable(self) -> bool:
        return self.spread <= UNSTABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTimes:
    """A layer at one point. passes: by name, as in `PASSES`. activation_bytes: kept for the
    backward pass. peak_bytes: allocated by a forward and a backward pass."""

    point: Point
    passes: Mapping[str, Time]
    activation_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A pass over a layer takes passes x (layer_s + forward FLOPs / flops + bytes / memory_speed),
    seconds. memory_speed: bytes/s; inf = other work counts in `flops`."""

    flops: float
    layer_s: float
    memory_speed: float = math.inf

    def predict_s(self, point: Point, name: str) -> float:
        """Return the seconds of the pass called `name`."""
        workload = point.workload
        return PASSES[name] * (
            self.layer_s
            + layer_forward_flops(workload) / self.flops
            + layer_traffic_bytes(workload) / self.memory_speed
        )

    def residual(self, times: LayerTimes, name: str) -> float:
        """Return predicted over measured, minus 1."""
        return self.predict_s(times.point, name) / times.passes[name].median_s - 1


def grid(
    hidden: Sequence[int],
    sequence: Sequence[int],
    micro_batch: Sequence[int],
    dtypes: Sequence[str],
) -> tuple[Point, ...]:
    """All middle values but one, which takes all of its own; per dtype, cheapest first.

    One head per 64 of the hidden size, as GPT-2 has, where that divides.
    """
    axes = (sorted(set(hidden)), sorted(set(sequence)), sorted(set(micro_batch)))
    middle = [axis[len(axis) // 2] for axis in axes]
    chosen = {
        tuple(value if i == place else middle[i] for i in range(3))
        for place, axis in enumerate(axes)
        for value in axis
    }
    points = [
        Point(hidden=h, heads=heads_of(h), sequence=s, micro_batch=m, dtype=dtype)
        for dtype in dict.fromkeys(dtypes)
        for h, s, m in chosen
    ]
    order = {dtype: place for place, dtype in enumerate(dtypes)}
    return tuple(
        sorted(points, key=lambda p: (order[p.dtype], layer_forward_flops(p.workload), p.text))
    )


def heads_of(hidden: int) -> int:
    """Return the heads of a layer, 64 wide if that divides."""
    return hidden // 64 if hidden % 64 == 0 else 1


def fit_layer(measured: Sequence[LayerTimes]) -> Fit:
    """Fit by least squares of the relative error over all passes; no constant is negative.

    A time for launches and one for memory are only added if the measurements support them: by the
    Bayesian information criterion. measured: of one dtype, at least one point.
    """
    rows = []
    for times in measured:
        workload = times.point.workload
        parts = (layer_forward_flops(workload), 1.0, layer_traffic_bytes(workload))
        for name, count in PASSES.items():
            rows.append([count * part / times.passes[name].median_s for part in parts])
    design = np.array(rows)
    scale = design.max(axis=0)  # columns of like size: FLOPs are 1e9 times a count
    num_points = len({times.point for times in measured})
    best, least = np.zeros(len(scale)), math.inf
    for columns in COLUMNS:
        if len(columns) > num_points:
            continue
        found, distance = nnls(design[:, columns] / scale[columns], np.ones(len(rows)))
        exact = distance**2 + len(rows) * ROUNDING**2
        value = len(rows) * math.log(exact) + len(columns) * math.log(len(rows))
        if found[0] > 0 and value < least:
            best, least = np.zeros(len(scale)), value
            best[columns] = found / scale[columns]
    per_flop, layer_s, per_byte = map(float, best)
    return Fit(
        flops=1 / per_flop, layer_s=layer_s, memory_speed=1 / per_byte if per_byte else math.inf
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The measurements of a profile.

    fits: by dtype, the first of which is also that of other dtypes. optimizer_s: seconds per
    parameter, by system or `default`. provenance: lines on machine, versions, date, command and
    the check.
    """

    device: str
    measured: tuple[LayerTimes, ...]
    fits: Mapping[str, Fit]
    optimizer_s: Mapping[str, float]
    memory_bytes: int
    provenance: tuple[str, ...]

    @property
    def jitter(self) -> float:
        """Standard deviation of a pass over a layer, over its mean: of the normal distribution with
        the median spread of all points and passes."""
        spreads = [time.spread for times in self.measured for time in times.passes.values()]
        return min(MAX_JITTER, max(MIN_JITTER, float(np.median(spreads)) / NORMAL_SPREAD))

    def error(self, dtype: str) -> float:
        """Return the mean absolute residual over a dtype's points and passes."""
        of = [times for times in self.measured if times.point.dtype == dtype]
        return float(np.mean([abs(self.fits[dtype].residual(t, n)) for t in of for n in PASSES]))


def profile_yaml(calibration: Calibration) -> str:
    """Return the text of the device profile, a file that a scenario can name."""
    first = next(iter(calibration.fits))
    fits = {**calibration.fits, "default": calibration.fits[first]}
    lines = [
        f"# {calibration.device}: measured with GPT layers, see `source`.",
        *_table(calibration),
        "flops: # achieved; a forward pass takes `layer` and its FLOPs at this rate",
        *(f"  {dtype}: {format_flops(fit.flops, DIGITS)}" for dtype, fit in fits.items()),
        "layer: # of a forward pass over a layer, whatever its size; a backward pass: 2 or 3 times",
        *(f"  {dtype}: {format_time(_ps(fit.layer_s), DIGITS)}" for dtype, fit in fits.items()),
        *_memory_lines(fits),
        "optimizer_per_parameter:",
        *(f"  {s}: {format_time(_ps(t), DIGITS)}" for s, t in calibration.optimizer_s.items()),
        f"jitter: {calibration.jitter:.2%} # of a layer; a stage of several varies less",
        f"memory: {format_bytes(calibration.memory_bytes, DIGITS)}",
        "source: >-",
        *(f"  {line}" for line in calibration.provenance),
    ]
    return "\n".join(lines) + "\n"


def _memory_lines(fits: Mapping[str, Fit]) -> list[str]:
    """Return the speeds of memory that were fitted; none if no dtype has one."""
    known = {dtype: fit.memory_speed for dtype, fit in fits.items()}
    known = {dtype: speed for dtype, speed in known.items() if math.isfinite(speed)}
    if not known:
        return []
    head = "memory_speed: # of all other work of a layer; `flops` are those of matrix products"
    return [head, *(f"  {d}: {format_memory_speed(speed, DIGITS)}" for d, speed in known.items())]


def _ps(seconds: float) -> float:
    """Round to the picosecond."""
    return round(seconds, 12)


def _table(calibration: Calibration) -> list[str]:
    """Return the measurements as comments: medians, spreads and residuals of the fit."""
    lines = ["# median ms (interquartile range), predicted; activations kept, by estimate; peak"]
    for times in calibration.measured:
        cells = [
            f"{name.replace('_', ' ')} {time.median_s * 1e3:.4g} ({time.spread:.0%}) "
            f"{calibration.fits[times.point.dtype].residual(times, name):+.0%}"
            for name, time in times.passes.items()
        ]
        estimate = layer_bytes(times.point.workload, 1)
        memory = (
            f"{times.activation_bytes / 1e6:.3g} MB, {estimate / 1e6:.3g} MB; "
            f"{times.peak_bytes / 1e6:.3g} MB"
        )
        lines.append(f"#   {times.point.text}: {', '.join(cells)}; {memory}")
    return lines
