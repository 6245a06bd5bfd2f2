"""Runs whose times are predicted before anyone here has seen what was measured.

They have other sizes of models, machines and networks of the families whose published
times netbench is compared with. `predictions` lists them; `ledger` registers their times.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

from netbench.plan.build import build_plan
from netbench.plan.experiment import Experiment
from netbench.plan.maps import SEEDED
from netbench.plan.model import Plan
from netbench.report.page.published import DEEPSPEED, SEED, load
from netbench.report.page.under_tc.machines import (
    IN_PARTS,
    NETWORKS,
    Link,
    collective,
    machines,
    network_name,
)
from netbench.scenario import Scenario, load_scenario
from netbench.scenario.model import Setting
from netbench.systems import find_variant

SEEDS = (2022, 2023, 2024)
"""Seeds of the published runs."""

DEEPSPEED_CASES = ("case4", "case5")

LAYERS, BATCHES = (24, 32, 40), (1024, 2048, 4096)

MODELS = {"GPT3-6.7B": (32, 4096, 32), "GPT3-13B": (40, 5120, 40)}
"""Layers, hidden size and heads. Their embeddings grow with the hidden size."""

FLUIDSTACK_SYSTEMS = ("dtfm-scheduled", "dtfm-random-nodes", "megatron-p8-random-nodes")
"""The published scheduled and fair systems, and Megatron on shuffled nodes."""

FLUIDSTACK_TIMES = {
    ("fluidstack2", "dtfm-random-nodes"): 2,
    ("fluidstack2", "megatron-p8-random-nodes"): 3,
    ("fluidstack3", "megatron-p8-random-nodes"): 2,
}
"""Number of predictions of a system on a scenario, where more than one."""

COLLECTIVE_MACHINES = (8, 32)

COLLECTIVES_ONCE = (("broadcast", "gloo"),)
"""Operations and libraries that were not predicted a second time."""

PIPELINE, PIPELINE_BATCHES = 8, (32, 64, 96, 108)
"""Machines of a pipeline, and its sequences per iteration."""

ITERATION, MILLISECONDS = ("iteration_s", "s"), ("time_ms", "ms")
"""Quantities and their units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlindPrediction:
    """A time to predict. scenario, experiment, model, batch: its place in the ledger.

    quantity: `ITERATION` or `MILLISECONDS`. plan: builds what is timed. superseded: another
    prediction of the same run was registered later. in_parts: the collective is divided
    (`machines.IN_PARTS`).
    """

    scenario: str
    experiment: str
    model: str
    batch: str
    plan: Callable[[], Experiment]
    quantity: tuple[str, str] = ITERATION
    superseded: bool = False
    in_parts: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Unique among all predictions of the ledger."""
        return self.experiment, self.model, self.batch, self.quantity[0]


def predictions() -> Iterator[BlindPrediction]:
    """Yield every run, in the order of the ledger."""
    for again, case in product((False, True), DEEPSPEED_CASES):
        for each in sweep(case, (DEEPSPEED,), LAYERS, BATCHES):
            name = f"{each.experiment} (2)" if again else each.experiment
            yield replace(each, experiment=name, superseded=not again)
    yield from _larger_models()
    yield from _collectives()
    yield from _pipelines()


def _again(first: BlindPrediction, times: int) -> tuple[BlindPrediction, ...]:
    """Return a prediction that was registered several times: (2) and so on are the later ones."""
    names = (first.experiment, *(f"{first.experiment} ({n})" for n in range(2, times + 1)))
    return tuple(replace(first, experiment=name, superseded=name != names[-1]) for name in names)


def sweep(
    scenario: str, variants: tuple[str, ...], layers: tuple[int, ...], batches: tuple[int, ...]
) -> Iterator[BlindPrediction]:
    """Yield a prediction for every system, seed, number of layers and batch of a scenario."""
    for variant, count, batch in product(variants, layers, batches):
        for seed in _seeds(variant):
            setting = Setting(layers=count, batch=batch, seed=seed)
            yield BlindPrediction(
                scenario=scenario,
                experiment=f"{scenario} {variant} seed {seed}",
                model=f"GPT-XL L{count}",
                batch=str(batch),
                plan=_planned(scenario, variant, setting),
            )


def _seeds(variant: str) -> tuple[int, ...]:
    return SEEDS if find_variant(variant).scheduler in SEEDED else (SEED,)


def _planned(scenario: str, variant: str, setting: Setting) -> Callable[[], Plan]:
    return lambda: build_plan(_scenario(scenario), variant, setting)


def _larger_models() -> Iterator[BlindPrediction]:
    """GPT-3 of 6.7 and 13 billion parameters on FluidStack."""
    for scenario, (name, model), batch in (
        *product(("fluidstack2",), MODELS.items(), (1024,)),
        ("fluidstack3", ("GPT3-13B", MODELS["GPT3-13B"]), 1536),
    ):
        for variant in FLUIDSTACK_SYSTEMS:
            for seed in _seeds(variant):
                first = BlindPrediction(
                    scenario=scenario,
                    experiment=f"{scenario} {variant} seed {seed}",
                    model=name,
                    batch=str(batch),
                    plan=_of_model(scenario, variant, model, batch, seed),
                )
                yield from _again(first, FLUIDSTACK_TIMES.get((scenario, variant), 1))


def _of_model(
    scenario: str, variant: str, model: tuple[int, int, int], batch: int, seed: int
) -> Callable[[], Plan]:
    def plan() -> Plan:
        layers, hidden, heads = model
        base = _scenario(scenario)
        embeddings = base.workload.embedding_parameters * hidden // base.workload.hidden
        workload = replace(
            base.workload, hidden=hidden, heads=heads, embedding_parameters=embeddings
        )
        setting = Setting(layers=layers, batch=batch, seed=seed)
        return build_plan(replace(base, workload=workload), variant, setting)

    return plan


def _collectives() -> Iterator[BlindPrediction]:
    """The operations of results/published/collectives_under_tc.csv on other numbers of machines."""
    table = load("collectives_under_tc")
    kept = ["op", "delay_one_way_ms", "bandwidth_gbps", "backend", "message_mb"]
    for op, delay_ms, rate_gbps, backend, size_mib in (
        table[kept].drop_duplicates().itertuples(index=False)
    ):
        link = (float(delay_ms), float(rate_gbps))
        for num_nodes in COLLECTIVE_MACHINES:
            first = BlindPrediction(
                scenario="collectives under tc",
                experiment=f"{op} {backend} {network_name(link)}",
                model=f"{size_mib} MiB",
                batch=f"{num_nodes} machines",
                plan=partial(collective, op, num_nodes, link, backend, int(size_mib)),
                quantity=MILLISECONDS,
                in_parts=op.startswith(IN_PARTS),
            )
            yield from _again(first, 1 if (op, backend) in COLLECTIVES_ONCE else 2)


def _pipelines() -> Iterator[BlindPrediction]:
    """Pipelines of GPT-XL on 8 machines each; several share a central or a sharded server."""
    for number, kind in ((1, ""), *product((2, 4, 8), ("", "-sharded-ps"))):
        for link, batch in product(NETWORKS, PIPELINE_BATCHES):
            server = {"": " central", "-sharded-ps": " sharded"}[kind] if number > 1 else ""
            yield BlindPrediction(
                scenario="pipelines of 8",
                experiment=f"{number} x 8 machines{server} {network_name(link)}",
                model="GPT-XL L24 fp16",
                batch=f"{batch} each",
                plan=partial(_pipeline_plan, number, f"dtfm-scheduled{kind}", link, batch),
            )


def _pipeline_plan(number: int, variant: str, link: Link, batch: int) -> Plan:
    workload = _scenario("case3").workload
    scenario = machines("pipelines", number * PIPELINE, link, workload, PIPELINE)
    return build_plan(
        scenario, variant, Setting(layers=workload.layers, batch=number * batch, seed=SEED)
    )


@cache
def _scenario(name: str) -> Scenario:
    return load_scenario(name)
