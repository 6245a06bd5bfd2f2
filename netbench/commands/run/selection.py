"""Options of `netbench run` that select plans, and the plans they select."""

import dataclasses
import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from netbench.api.emulation import ITERATIONS, WARMUP
from netbench.commands.options import split_names
from netbench.errors import UsageError
from netbench.plan.build import Choices, build_command_plans, build_plans
from netbench.plan.model import VIRTUAL, Execution, Plan
from netbench.scenario import Scenario
from netbench.systems import examples
from netbench.systems.script import SCRIPT
from netbench.testbed.ranks.reports import GROUPS

EVERY = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Part of a scenario's sweep to run; None = its default slice, or with `--all` the sweep."""

    systems: str | None
    layers: tuple[int, ...] | None
    batch: tuple[int, ...] | None
    micro_batch: tuple[int, ...] | None
    networks: str | None
    seeds: tuple[int, ...] | None
    whole_sweep: bool
    iterations: int | None
    warmup: int | None
    scale: float | None
    models: str | None
    replicas: tuple[int, ...] | None
    peers: str | None
    compute: str
    token_file: str | None
    script: str | None
    iteration_regex: str | None

    @property
    def sizes(self) -> tuple[object, ...]:
        """Return what was asked for of layers, batches, micro-batches and networks."""
        return self.layers, self.batch, self.micro_batch, self.networks

    @property
    def selects(self) -> bool:
        """Return true if any option but the number of iterations was given."""
        given = dataclasses.asdict(self)
        del given["iterations"], given["warmup"]
        return given.pop("compute") != VIRTUAL or any(given.values())

    def plans(self, scenario: Scenario, simulated: bool) -> tuple[Plan, ...]:
        """Build the plans. A simulation is deterministic: one iteration, no warm-up, scale 1."""
        if scenario.workload.model and (self.layers or self.batch or self.micro_batch):
            raise UsageError(
                f"scenario {scenario.name} trains models by name, which fix layers and batches; "
                "leave out --layers, --batch and --micro-batch, and use --models and --replicas"
            )
        warmup = WARMUP if self.warmup is None else self.warmup
        iterations = ITERATIONS if self.iterations is None else self.iterations
        execution = Execution(
            iterations=1 if simulated else iterations + warmup,
            warmup_iterations=0 if simulated else warmup,
            scale=1.0 if simulated else self.scale,
            compute=self.compute,
            token_file=str(Path(self.token_file).resolve()) if self.token_file else "",
        )
        choices = Choices.of(
            scenario.sweep,
            whole=self.whole_sweep,
            variants=split_names(self.systems),
            layers=self.layers,
            batch=self.batch,
            seeds=self.seeds,
            networks=self._networks(scenario),
            micro_batch=self.micro_batch,
            models=split_names(self.models),
            replicas=self.replicas,
            peers=split_names(self.peers),
        )
        if self.script is None:
            return build_plans(scenario, choices, execution)
        choices = dataclasses.replace(choices, variants=split_names(self.systems) or (SCRIPT,))
        plans = build_command_plans(scenario, shlex.split(self.script), choices, execution)
        regex = check_regex(self.iteration_regex or "")
        return tuple(dataclasses.replace(plan, iteration_regex=regex) for plan in plans)

    def _networks(self, scenario: Scenario) -> tuple[str, ...]:
        if self.networks != EVERY:
            return split_names(self.networks)
        names = tuple(network.name for network in scenario.sweep.networks)
        if not names:
            raise UsageError(f"scenario {scenario.name} has only one network; leave out --networks")
        return names


def check_regex(regex: str) -> str:
    """Return `regex`. Raises UsageError if it is not an expression with groups that are read."""
    try:
        unknown = set(re.compile(regex).groupindex) - GROUPS
    except re.error as error:
        raise UsageError(f"--iteration-regex {regex!r}: {error}") from error
    if unknown:
        raise UsageError(
            f"--iteration-regex has a group {min(unknown)}; groups are {', '.join(sorted(GROUPS))}"
        )
    return regex


def check_script(
    script: str | None, systems: str | None, *, simulated: bool, scale: float | None, others: bool
) -> None:
    """Raises UsageError for a script that is missing, cannot be parsed, or would not be used.

    others: true if an option was given that only netbench's own trainers support.
    """
    names = examples(script=True)
    if script is None:
        if named := [name for name in (systems or "").split(",") if name in names]:
            raise UsageError(
                f"--systems {named[0]} needs a script; add e.g. --command 'python train.py'"
            )
        return
    if simulated:
        raise UsageError(
            "--testbed sim starts no ranks, so no script would run; leave out --command"
        )
    if scale not in (None, 1.0):
        raise UsageError(
            f"--scale {scale:g} cannot divide the bytes that a script sends; leave it out"
        )
    if others:
        raise UsageError(
            "--command runs the script's own layers on its own data; leave out --compute, "
            "--token-file and --all"
        )
    try:
        words = shlex.split(script)
    except ValueError as error:
        raise UsageError(f"--command {script!r} cannot be split into words: {error}") from error
    plain = " ".join(itertools.dropwhile(lambda word: word in WRAPPERS or "=" in word, words))
    if launcher := LAUNCHERS.match(plain):
        given = re.search(r"\S+\.py\b.*", plain)
        raise UsageError(
            f"--command starts {launcher[0]}, which starts ranks itself; netbench starts one on "
            "every device, with the variables that torchrun sets; give the script alone: "
            f"--command 'python {given[0] if given else 'train.py'}'"
        )


WRAPPERS = ("env", "exec", "sh", "bash", "-c")
"""Words that may precede a command, besides assignments."""

LAUNCHERS = re.compile(
    r"(\S*/)?(torchrun|accelerate(-| )launch|deepspeed|mpirun|mpiexec(\.\w+)?|horovodrun|srun"
    r"|python[\d.]*( -(?!m)\S+)* -m (torch\.distributed\.(run|launch)|accelerate\.commands\.launch"
    r"|deepspeed(\.launcher\.\w+)?))(?!\S)"
)
"""Matches the words of a command that starts ranks itself."""
