"""Runs whose times are predicted before anyone here has seen what was measured.

They have other sizes of models, machines and networks of the families whose published
times netbench is compared with. `predictions` lists them; `ledger` registers their times.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from netbench.plan.build import build_plan
from netbench.plan.experiment import Experiment
from netbench.plan.maps import SEEDED
from netbench.plan.model import Plan
from netbench.report.page.published import DEEPSPEED, SEED
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.systems import find_variant

SEEDS = (2022, 2023, 2024)
"""Seeds of the published runs."""

DEEPSPEED_CASES = ("case4", "case5")

LAYERS, BATCHES = (24, 32, 40), (1024, 2048, 4096)

ITERATION, MILLISECONDS = ("iteration_s", "s"), ("time_ms", "ms")
"""Quantities and their units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlindPrediction:
    """A time to predict. scenario, experiment, model, batch: its place in the ledger.

    quantity: `ITERATION` or `MILLISECONDS`. plan: builds what is timed. superseded: another
    prediction of the same run was registered later.
    """

    scenario: str
    experiment: str
    model: str
    batch: str
    plan: Callable[[], Experiment]
    quantity: tuple[str, str] = ITERATION
    superseded: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies the prediction among all of the ledger."""
        return self.experiment, self.model, self.batch, self.quantity[0]


def predictions() -> Iterator[BlindPrediction]:
    """Yield every run, in the order of the ledger."""
    for again, case in product((False, True), DEEPSPEED_CASES):
        for each in sweep(case, (DEEPSPEED,), LAYERS, BATCHES):
            name = f"{each.experiment} (2)" if again else each.experiment
            yield replace(each, experiment=name, superseded=not again)


def sweep(
    scenario: str, variants: tuple[str, ...], layers: tuple[int, ...], batches: tuple[int, ...]
) -> Iterator[BlindPrediction]:
    """Yield a prediction for every system, seed, number of layers and batch of a scenario."""
    for variant, count, batch in product(variants, layers, batches):
        for seed in SEEDS if find_variant(variant).scheduler in SEEDED else (SEED,):
            setting = Setting(layers=count, batch=batch, seed=seed)
            yield BlindPrediction(
                scenario=scenario,
                experiment=f"{scenario} {variant} seed {seed}",
                model=f"GPT-XL L{count}",
                batch=str(batch),
                plan=_planned(scenario, variant, setting),
            )


def _planned(scenario: str, variant: str, setting: Setting) -> Callable[[], Plan]:
    return lambda: build_plan(_scenario(scenario), variant, setting)


@cache
def _scenario(name: str) -> Scenario:
    return load_scenario(name)
