"""Read and write placement files: JSON with the device of every rank, by name.

A file may be edited or written by hand: reading checks it against the scenario and reports the
position of each error.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from netbench.errors import PlanError, ScenarioError, nearest
from netbench.placement.plan_problem import Request
from netbench.placement.problem import Grid
from netbench.plan.build import choose_network
from netbench.plan.model import Layout, Plan
from netbench.plan.serial import network_to_json
from netbench.records import content_hash
from netbench.scenario import list_scenarios, load_scenario
from netbench.scenario.load import scenario_argument
from netbench.scenario.model import Scenario, Setting
from netbench.scenario.schema import Batch, Devices, Layers, Section, Seed, shown
from netbench.scenario.source import SourceFile, read_source, shown_path
from netbench.scenario.validate import validate
from netbench.systems import examples, find_variant
from netbench.units import counted
from netbench.version import __version__

DEVICE_SEPARATOR = ":"
"""Separator between a node's name and the index of its device."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Placed:
    """A placement with its request and its search.

    grid, stage_layers: as in `placement.problem`. budget: as text. num_evaluated: candidates of the
    scheduler. search_s: duration of the search. simulated_s: of an iteration. bound_s: lower bound
    of an iteration; None = not known. num_layouts: plans that were simulated to choose this one;
    None = the plan was given.
    """

    request: Request
    scheduler: str
    seed: int
    grid: Grid
    stage_layers: tuple[int, ...]
    budget: str
    num_evaluated: int
    search_s: float
    simulated_s: float
    bound_s: float | None = None
    num_layouts: int | None = None

    @property
    def gap(self) -> float | None:
        """Relative distance above the bound; None without a bound."""
        return self.simulated_s / self.bound_s - 1 if self.bound_s else None

    def plan(self) -> Plan:
        """Return the plan with this placement; raises like `build_plan`."""
        return self.request.placed(
            self.grid, self.stage_layers, scheduler=self.scheduler, seed=self.seed
        )

    def on(self, request: Request) -> "Placed":
        """Return the same placement for another depth, batch or network.

        Layers are added to or removed from all stages equally. Raises PlanError where the number of
        stages does not divide them.
        """
        wanted, has = request.setting.layers, self.request.setting.layers
        each, rest = divmod(wanted - has, len(self.stage_layers))
        stage_layers = tuple(layers + each for layers in self.stage_layers)
        if rest or min(stage_layers) < 1:
            layers = ", ".join(map(str, self.stage_layers))
            raise PlanError(
                f"the placement has stages of {layers} layers, {has} in all, which cannot change "
                f"equally to a total of {wanted}; search a placement for {counted(wanted, 'layer')}"
            )
        return dataclasses.replace(self, request=request, stage_layers=stage_layers)


def device_names(scenario: Scenario) -> tuple[str, ...]:
    """Return the name of every device: its node's, with an index if it has several: `spot-1:3`."""
    return tuple(
        node.name if node.num_devices == 1 else f"{node.name}{DEVICE_SEPARATOR}{index}"
        for node in scenario.nodes
        for index in range(node.num_devices)
    )


def scenario_hash(scenario: Scenario, network: str = "") -> str:
    """Return a hash of everything that a placement depends on: nodes, devices and network."""
    nodes = [[n.name, n.region, n.device, n.num_devices, n.nic_bps] for n in scenario.nodes]
    return content_hash(json.dumps([nodes, network_to_json(choose_network(scenario, network))]))


def placed_text(placed: Placed) -> str:
    """Return the text of the file, with a line per key and per pipeline."""
    request = placed.request
    scenario, plan = request.scenario, placed.plan()
    names = device_names(scenario)
    head = {
        "netbench": __version__,
        "scenario": scenario.name,
        "scenario_hash": scenario_hash(scenario, request.setting.network),
        "network": request.setting.network,
        "system": request.variant,
        "layers": request.setting.layers,
        "batch": request.setting.batch,
        "micro_batch": plan.workload.micro_batch,
        "layout": dataclasses.asdict(plan.layout),
        "scheduler": placed.scheduler,
        "seed": placed.seed,
        "budget": placed.budget,
        **({} if placed.num_layouts is None else {"num_layouts": placed.num_layouts}),
        "num_evaluated": placed.num_evaluated,
        "search_s": round(placed.search_s, 3),
        "simulated_s": placed.simulated_s,
        "bound_s": placed.bound_s,
        "stage_layers": [stage.num_layers for stage in plan.stages],
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rows = [json.dumps([names[device] for device in lane]) for lane in placed.grid]
    pipelines = ",\n".join(f"    {row}" for row in rows)
    return "\n".join(["{", *lines, '  "pipelines": [', pipelines, "  ]", "}"]) + "\n"


class LayoutForm(Section):
    """Degrees of parallelism."""

    tp: Devices = 1
    pp: Devices = 1
    dp: Devices = 1


class PlacementForm(Section):
    """Schema of the file that `placed_text` writes. pipelines: a row per lane (dp x tp) with the
    device of every stage."""

    netbench: str
    scenario: str = Field(examples=['"case5"'])
    scenario_hash: str
    network: str = ""
    system: str = Field(examples=['"dtfm-scheduled"'])
    layers: Layers = Field(examples=["24"])
    batch: Batch = Field(examples=["1024"])
    micro_batch: Batch | None = None
    layout: LayoutForm = Field(examples=['{"tp": 1, "pp": 8, "dp": 8}'])
    scheduler: str = Field(min_length=1, examples=['"by hand"'])
    seed: Seed = 0
    budget: str = ""
    num_layouts: int | None = None
    num_evaluated: int = 1
    search_s: float = 0.0
    simulated_s: float | None = None
    bound_s: float | None = None
    stage_layers: list[Layers] = Field(min_length=1, examples=["[3, 3, 3, 3]"])
    pipelines: list[list[str]] = Field(min_length=1, examples=['[["node0", "node1"]]'])


def read_placed(path: Path, scenario: Scenario) -> Placed:
    """Read a placement of `scenario`.

    Raises ScenarioError with the line and key of the first error; raises like `build_plan` where
    the layout does not fit.
    """
    source = _source(path, scenario_argument(scenario))
    form = validate(source, PlacementForm)
    _check_scenario(source, form, scenario)
    try:
        find_variant(form.system)
    except PlanError:
        hint = nearest(form.system, examples())
        raise source.error(
            ("system",), f"is {shown(form.system)}, an unknown system; {hint}"
        ) from None
    if (num_ranks := form.layout.tp * form.layout.pp * form.layout.dp) > scenario.num_devices:
        raise source.error(
            ("layout",), f"has {num_ranks} ranks, more than the {scenario.num_devices} devices"
        )
    request = Request(
        scenario=scenario,
        variant=form.system,
        setting=Setting(
            layers=form.layers, batch=form.batch, micro_batch=form.micro_batch, network=form.network
        ),
        num_ranks=num_ranks,
    )
    try:
        expected = request.listed().layout
    except PlanError as error:
        raise source.error(("layout",), f"is {_layout_text(form.layout)}, but {error}") from None
    _check_layout(source, form, expected)
    return Placed(
        request=request,
        scheduler=form.scheduler,
        seed=form.seed,
        grid=_grid(source, form, scenario),
        stage_layers=tuple(form.stage_layers),
        budget=form.budget,
        num_evaluated=form.num_evaluated,
        search_s=form.search_s,
        simulated_s=form.simulated_s or float("nan"),
        bound_s=form.bound_s,
        num_layouts=form.num_layouts,
    )


def read_scenario(path: Path) -> Scenario:
    """Load the scenario that a placement names. Raises ScenarioError for an unknown one."""
    source = _source(path, "SCENARIO")
    name = validate(source, PlacementForm).scenario
    if name not in list_scenarios():
        raise source.error(
            ("scenario",),
            f"is {shown(name)}, which netbench does not include; give its file with --scenario",
        )
    return load_scenario(name)


def _source(path: Path, scenario: str) -> SourceFile:
    """Read the file. scenario: as given to a command, for the error message."""
    if not path.is_file():
        raise ScenarioError(
            f"{shown_path(path)}: no such file; write one with: netbench schedule "
            f"{scenario} -o {shown_path(path)}"
        )
    return read_source(path)


def _check_scenario(source: SourceFile, form: PlacementForm, scenario: Scenario) -> None:
    """Raise ScenarioError unless it is for this scenario with its present nodes and network."""
    again = f"netbench schedule {scenario_argument(scenario)} -o"
    if form.scenario != scenario.name:
        raise source.error(
            ("scenario",),
            f"is {shown(form.scenario)}; expected {shown(scenario.name)}: the placement is for "
            f"another scenario; search one with: {again} FILE",
        )
    now = scenario_hash(scenario, form.network)
    if form.scenario_hash != now:
        raise source.error(
            ("scenario_hash",),
            f'is {shown(form.scenario_hash)}; expected "{now}": nodes or network of '
            f"{scenario.name} have changed since; search again with: {again} "
            f"{shown_path(source.path)}, or write the expected hash to keep the placement",
        )


def _check_layout(source: SourceFile, form: PlacementForm, expected: Layout) -> None:
    """Raise ScenarioError unless stages, pipelines and layers agree with the system."""
    found = form.layout
    if (found.tp, found.pp, found.dp) != (expected.tp, expected.pp, expected.dp):
        raise source.error(
            ("layout",),
            f"is {_layout_text(found)}; expected {_layout_text(expected)}, that of {form.system} "
            f"on {form.scenario}",
        )
    stages, total = form.stage_layers, sum(form.stage_layers)
    if len(stages) != found.pp or total != form.layers:
        raise source.error(
            ("stage_layers",),
            f"has {counted(len(stages), 'stage')} and {counted(total, 'layer')} in all; expected "
            f"{counted(found.pp, 'stage')} and {counted(form.layers, 'layer')}",
        )
    if len(form.pipelines) != found.dp * found.tp:
        raise source.error(
            ("pipelines",),
            f"has {counted(len(form.pipelines), 'row')}; expected {found.dp * found.tp}, one per "
            + ("pipeline and tensor-parallel index" if found.tp > 1 else "pipeline"),
        )
    for index, row in enumerate(form.pipelines):
        if len(row) != found.pp:
            raise source.error(
                ("pipelines", index),
                f"has {counted(len(row), 'device')}; expected {found.pp}, one per stage",
            )


def _layout_text(layout: Layout | LayoutForm) -> str:
    return f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}"


def _grid(source: SourceFile, form: PlacementForm, scenario: Scenario) -> Grid:
    """Return the devices by name; a node's name alone means its next device."""
    numbers = {name: index for index, name in enumerate(device_names(scenario))}
    several = {node.name: node.num_devices for node in scenario.nodes if node.num_devices > 1}
    written = Counter(name for row in form.pipelines for name in row)
    taken: dict[str, tuple[int, int]] = {}
    grid = np.empty((len(form.pipelines), len(form.pipelines[0])), np.int64)
    for lane, row in enumerate(form.pipelines):
        for stage, given in enumerate(row):
            keys, name = ("pipelines", lane, stage), given
            if given in several:
                names = [f"{given}{DEVICE_SEPARATOR}{index}" for index in range(several[given])]
                free = [other for other in names if other not in taken and other not in written]
                if not free:
                    raise source.error(
                        keys,
                        f"is {shown(given)}, whose {len(names)} devices are all placed; {ONCE}",
                    )
                name = free[0]
            if name not in numbers:
                raise source.error(keys, _unknown(given, scenario.name, list(numbers)))
            if name in taken:
                first, second = taken[name]
                raise source.error(
                    keys, f"is {shown(given)}, as is pipelines[{first}][{second}]; {ONCE}"
                )
            taken[name] = (lane, stage)
            grid[lane, stage] = numbers[name]
    return grid


ONCE = "expected every device at most once"


def _unknown(name: str, scenario: str, known: Sequence[str]) -> str:
    """Return the message for an unknown device, without listing hundreds of names."""
    hint = nearest(name, known)
    if not hint.startswith("did you mean"):
        hint = f"expected names from {known[0]} to {known[-1]}"
    return f"is {shown(name)}, not a device of scenario {scenario}; {hint}"
