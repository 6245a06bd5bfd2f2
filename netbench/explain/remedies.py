"""Simulate changes that might shorten an iteration, and report by how much each one does."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from netbench.errors import PlanError
from netbench.explain.losses import lost_seconds, seconds_words
from netbench.plan.model import Plan
from netbench.plan.what_if import Amount, check_links, with_bandwidth, with_delay
from netbench.scenario.model import Network
from netbench.simulator import simulate
from netbench.simulator.iteration import Simulation
from netbench.units import counted

LEAST_GAIN = 0.01
"""Fraction of the iteration below which a change is not worth naming."""

WHERE = {"between": "between regions", "inside": "inside regions", "all": "of all links and NICs"}
"""Words for the choices of links in `plan.what_if`."""

Change = Callable[[Network, str], Network]

CHANGES: dict[str, Change] = {
    "twice the bandwidth": lambda network, which: with_bandwidth(
        network, Amount(value=2.0, relative=True), which
    ),
    "half the delay": lambda network, which: with_delay(
        network, Amount(value=0.5, relative=True), which
    ),
}
"""Changes of a network, each on some of its links."""

ADVICE = {
    "optimizer": "Give each rank fewer parameters: more stages, or states that are sharded.",
    "bubble": "Use more micro-batches per pipeline, fewer stages, or an interleaved schedule.",
    "point_to_point": "Try another placement: netbench schedule.",
    "collective": "Send less: fewer ranks per collective, or a smaller tensor-parallel degree.",
}
"""General advice by group of losses, for losses that no simulated change shortens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """A way to shorten an iteration. text: sentences. iteration_s: simulated with the best change;
    None for general advice, which was not simulated."""

    group: str
    text: str
    iteration_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """A change and its simulation. lost_s: seconds by group, see `losses.lost_seconds`."""

    kind: str
    name: str
    iteration_s: float
    lost_s: dict[str, float]


def remedies(simulation: Simulation) -> dict[str, Remedy]:
    """Return a remedy for every group of losses of an iteration.

    Losses on the network: of twice the bandwidth and half the delay, each on the links where it
    saves most of the group. Bubbles of several rounds: all micro-batches in one round.
    """
    plan, iteration_s = simulation.plan, simulation.iteration_s
    lost_s = lost_seconds(simulation)
    trials = list(_network_trials(plan))
    found = {}
    for group, seconds in lost_s.items():
        tried = trials if group in ("point_to_point", "collective") else []
        if group == "bubble":
            tried = list(_round_trials(plan))
        best = _best(tried, group, seconds)
        helps = bool(best) and best[0].iteration_s < (1 - LEAST_GAIN) * iteration_s
        found[group] = Remedy(
            group=group,
            text=_text(best, iteration_s) if helps else ADVICE[group],
            iteration_s=best[0].iteration_s if helps else None,
        )
    return found


def _best(trials: list[_Trial], group: str, seconds: float) -> list[_Trial]:
    """Return the trial of each kind that saves most of a group, the fastest first."""
    best: dict[str, _Trial] = {}
    for trial in trials:
        saved_s = seconds - trial.lost_s[group]
        if saved_s > 0 and (
            trial.kind not in best or trial.lost_s[group] < best[trial.kind].lost_s[group]
        ):
            best[trial.kind] = trial
    return sorted(best.values(), key=lambda trial: trial.iteration_s)


def _text(best: list[_Trial], iteration_s: float) -> str:
    """Name each change that shortens the iteration, and how long it then takes."""
    outcomes = [
        f"{trial.name}: {seconds_words(trial.iteration_s)} "
        f"({percent_change(trial.iteration_s / iteration_s - 1)})"
        for trial in best
        if trial.iteration_s <= iteration_s
    ]
    text = "; ".join(outcomes)
    return f"{text[0].upper()}{text[1:]}."


def percent_change(change: float) -> str:
    """Format a relative change with its sign; `0.0%` if it rounds to nothing."""
    return f"{change:+.1%}".replace("+0.0%", "0.0%").replace("-0.0%", "0.0%")


def _network_trials(plan: Plan) -> Iterator[_Trial]:
    network = plan.network
    for kind, change in CHANGES.items():
        for which in _scopes(network):
            with suppress(PlanError):  # nothing to change, or not simulated
                changed = change(network, which)
                yield _try(kind, f"{kind} {WHERE[which]}", _on(plan, changed))


def _scopes(network: Network) -> Iterator[str]:
    """Yield the choices of links that are worth telling apart."""
    is_capped = any(map(math.isfinite, network.nic_bps))
    if len(set(network.node_regions)) == 1 or is_capped:
        yield "all"
    if len(set(network.node_regions)) > 1:
        yield "between"
        with suppress(PlanError):
            check_links(network, "inside")
            yield "inside"


def _round_trials(plan: Plan) -> Iterator[_Trial]:
    if plan.has_pipelines and plan.num_rounds > 1:
        total = plan.num_rounds * plan.num_micro_batches
        name = f"one round of {counted(total, 'micro-batch', 'micro-batches')}, if memory allows"
        with suppress(PlanError):
            changed = dataclasses.replace(plan, num_rounds=1, num_micro_batches=total)
            yield _try("rounds", name, changed)


def _on(plan: Plan, network: Network) -> Plan:
    return dataclasses.replace(plan, network=network)


def _try(kind: str, name: str, plan: Plan) -> _Trial:
    simulation = simulate(plan)
    return _Trial(
        kind=kind, name=name, iteration_s=simulation.iteration_s, lost_s=lost_seconds(simulation)
    )
