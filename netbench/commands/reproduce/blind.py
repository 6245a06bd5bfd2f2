"""Values of the ledger's blind predictions, simulated."""

from collections.abc import Iterable, Iterator

from netbench.commands.reproduce.simulated import simulate_tasks
from netbench.report.page.blind import MILLISECONDS, BlindPrediction

MS_PER_S = 1e3


def predicted(predictions: Iterable[BlindPrediction]) -> Iterator[tuple[BlindPrediction, float]]:
    """Yield every prediction with its value, in its unit and in order; equal plans are simulated
    once."""
    plans = {each: each.plan() for each in predictions}
    seconds: dict[object, float] = dict(simulate_tasks(tuple(dict.fromkeys(plans.values()))))
    for each, plan in plans.items():
        factor = MS_PER_S if each.quantity == MILLISECONDS else 1.0
        yield each, factor * seconds[plan]
