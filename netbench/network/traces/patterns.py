"""Generate traces: a diurnal bandwidth, and a link that fails and recovers. Pure."""

import math
import random

from netbench.limits import MAX_CHANGES
from netbench.network.traces.trace import Change
from netbench.scenario.model import NO_BURSTS, Link


def diurnal(
    src: int,
    dst: int,
    link: Link,
    *,
    low: float,
    period_s: float,
    num_steps: int,
    num_periods: int = 1,
    phase_s: float = 0.0,
) -> tuple[Change, ...]:
    """Vary the rate as a cosine between the link's own and `low` times that, once per period.

    low: between 0 and 1, exclusive. num_steps: changes per period, each to the value of the curve
    in the middle of the step. phase_s: time of the highest rate after the start.
    Raises ValueError for a link without a rate, or if nothing would change.
    """
    if math.isinf(link.bandwidth_bps):
        raise ValueError("the link has no rate to vary; give it a bandwidth")
    if not 0 < low < 1:
        raise ValueError(f"low is {low:g}; expected a fraction of the rate between 0 and 1")
    if num_steps < 2 or num_periods < 1 or period_s <= 0:
        raise ValueError("expected a period above 0 of two or more steps, and one or more periods")
    if num_steps * num_periods > MAX_CHANGES:
        raise ValueError(f"{num_steps * num_periods} changes; expected at most {MAX_CHANGES}")
    step_s = period_s / num_steps
    changes = []
    for step in range(num_steps * num_periods):
        angle = 2 * math.pi * ((step + 0.5) * step_s - phase_s) / period_s
        fraction = low + (1 - low) * (1 + math.cos(angle)) / 2
        rate_bps = float(8 * round(link.bandwidth_bps * fraction / 8))
        changes.append(Change(time_s=step * step_s, src=src, dst=dst, bandwidth_bps=rate_bps))
    return tuple(changes)


def outages(
    src: int,
    dst: int,
    link: Link,
    *,
    up_s: float,
    down_s: float,
    end_s: float,
    seed: int | None = None,
) -> tuple[Change, ...]:
    """Let a link fail and recover: up for `up_s`, down for `down_s`, until `end_s`.

    seed: draw the times from exponential distributions with these means; None: use them as they
    are. An outage at `end_s` still ends, so the link keeps its former loss.
    Raises ValueError if nothing would fail, and for a link that loses in bursts.
    """
    if link.bursts != NO_BURSTS:
        raise ValueError(
            "the link loses in bursts, which a trace cannot restore; "
            "give it a loss of independent packets (loss: 0.1%)"
        )
    if up_s <= 0 or down_s <= 0:
        raise ValueError("the times up and down must be more than 0")
    draw = random.Random(seed)
    changes: list[Change] = []
    time_s = 0.0
    while True:
        time_s += up_s if seed is None else draw.expovariate(1 / up_s)
        if time_s >= end_s:
            break
        if len(changes) >= MAX_CHANGES:
            raise ValueError(f"more than {MAX_CHANGES} changes; make the times longer")
        changes.append(Change(time_s=time_s, src=src, dst=dst, loss=1.0))
        time_s += down_s if seed is None else draw.expovariate(1 / down_s)
        changes.append(Change(time_s=time_s, src=src, dst=dst, loss=link.loss))
    if not changes:
        raise ValueError(f"nothing fails within {end_s:g} s; make the time up shorter than that")
    return tuple(changes)
