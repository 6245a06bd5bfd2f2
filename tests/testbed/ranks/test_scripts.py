"""Scripts on every rank: real processes on loopback, started by what starts them on a node."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.plan.build import build_command_plan
from netbench.plan.model import Execution, Plan
from netbench.scenario import load_scenario
from netbench.scenario.model import Setting
from netbench.testbed.interface import NodeAddress
from netbench.testbed.namespaces import SocketChannel, node_addresses
from netbench.testbed.ranks import hangs as activity
from netbench.testbed.ranks import pool as ranks
from netbench.testbed.ranks.hangs import Activity, read_activity
from netbench.testbed.ranks.reports import Iteration
from netbench.testbed.ranks.scripts import ScriptPool, inherited_environment, script_environment
from netbench.testing.nodes import FakeTestbed
from tests.ports import free_port

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "ddp.py"

PATIENCE_S = 120.0

REPORTS = """
import json, os
for iteration in range(int(os.environ["NETBENCH_ITERATIONS"])):
    print(json.dumps({"netbench": "iteration", "iteration_s": 1.5 + iteration}))
"""


def read_quiet() -> Activity:
    """Only processes: other traffic of this machine is on loopback too."""
    return dataclasses.replace(read_activity(), num_bytes=0)


class Loopback(FakeTestbed):
    """Every rank in the namespace of this test."""

    def __init__(self, nodes: Sequence[NodeAddress]) -> None:
        super().__init__(nodes, self._start_rank, read_quiet)
        self.commands: list[subprocess.Popen[bytes]] = []

    def _start_rank(self, node: int, rank: int) -> SocketChannel:
        here, there = socket.socketpair()
        with there:
            command = subprocess.Popen(
                [sys.executable, "-m", "netbench.trainers", "--command"],
                stdin=there.fileno(),
                stdout=there.fileno(),
            )
        self.commands.append(command)
        return SocketChannel(here)


class Run:
    """A script on the four ranks of a scenario."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.output: list[tuple[int, str]] = []
        nodes = tuple(
            dataclasses.replace(node, address="127.0.0.1", interface="lo")
            for node in node_addresses(plan.node_names)
        )
        self.all_have_printed = threading.Event()
        self.testbed = Loopback(nodes)
        self.pool = ScriptPool(self.testbed, plan, self._print)
        self.pool.start(lambda count: None)
        self.pool.launch(folder, str(folder / "plan.json"), free_port())

    def _print(self, rank: int, text: str) -> None:
        self.output.append((rank, text))
        if {rank for rank, _ in self.output} == set(range(4)):
            self.all_have_printed.set()

    def pids(self) -> list[int]:
        """Processes of the scripts, which print their own first."""
        return [int(text) for _, text in sorted(self.output) if text.isdecimal()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def run(*script: str, variant: str = "command", iterations: int = 3) -> Run:
        plan = build_command_plan(
            load_scenario("example-two-labs"),
            variant,
            script,
            Setting(layers=8, batch=16, seed=1),
            Execution(iterations=iterations, warmup_iterations=1),
        )
        runs.append(Run(plan, tmp_path))
        return runs[-1]

    yield run
    for each in runs:
        each.pool.stop()
        for command in each.testbed.commands:
            command.kill()
            command.wait()


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_the_example_of_the_docs_trains_on_four_ranks(start: Callable[..., Run]) -> None:
    """It meets by torchrun's variables, and every iteration has a time and a finite loss."""
    found = list(start(sys.executable, str(EXAMPLE)).pool.iterations())
    assert len(found) == 3
    assert all(iteration.iteration_s > 0 for iteration in found)
    losses = [iteration.loss for iteration in found if iteration.loss is not None]
    assert len(losses) == 3
    # A random linear layer of width n maps unit noise to a mean square of about 1/3.
    assert losses[0] == pytest.approx(1 / 3, rel=0.3)


def test_how_a_script_ends_after_its_last_iteration_changes_nothing(
    start: Callable[..., Run],
) -> None:
    """Its times are in. torch may abort an interpreter that ends: such an end is only told."""
    report = 'print(\'{"netbench": "iteration", "iteration_s": 1.5}\', flush=True)\n'
    run = start(*python(f"import os\n{report * 3}os.abort()"))
    assert [found.iteration_s for found in run.pool.iterations()] == [1.5] * 3
    told = [rank for rank, text in run.output if "was killed by SIGABRT, after its last" in text]
    assert sorted(told) == [0, 1, 2, 3]


STEPS = """
import torch, sys
model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.Adam(other.parameters())  # of a discriminator, say
for step in range(int(sys.argv[1])):
    for each in (optimizer, second):
        each.zero_grad()
    (model(torch.randn(4, 2)) + other(torch.randn(4, 2))).square().mean().backward()
    optimizer.step()
    second.step()
    print(f"{{'loss': {step}}}")
"""


def test_a_script_that_reports_nothing_is_timed_by_its_optimizer(start: Callable[..., Run]) -> None:
    """For example an unmodified Trainer of Hugging Face. Its first optimizer counts, once a step,
    and the run is over after the planned iterations."""
    run = start(*python(STEPS), "5")
    found = list(run.pool.iterations())
    assert len(found) == 3
    assert all(iteration.iteration_s > 0 for iteration in found)
    assert found[0].iteration_s > found[1].iteration_s  # it includes the import of torch
    assert {iteration.loss for iteration in found} == {None}
    assert not [text for _, text in run.output if "iteration_s" in text]


def test_too_few_steps_are_too_few_iterations(start: Callable[..., Run]) -> None:
    """They are reported, and the run misses the others."""
    assert len(list(start(*python(STEPS), "2").pool.iterations())) == 2


def test_a_script_that_reports_is_not_timed_by_its_optimizer(start: Callable[..., Run]) -> None:
    """Its own line counts, even if steps came before it."""
    reporting = STEPS.replace(
        "print(f", 'print(\'{"netbench": "iteration", "iteration_s": 1.5}\'); print(f'
    )
    found = list(start(*python(reporting), "3").pool.iterations())
    assert [iteration.iteration_s for iteration in found] == [1.5] * 3


def test_the_docs_show_the_example_as_it_is() -> None:
    """From where it meets to its end."""
    text = EXAMPLE.read_text()
    shown = (EXAMPLE.parents[1] / "own-trainer.md").read_text()
    assert text[text.index("dist.init_process_group") :] in shown


def test_the_docs_name_every_variable() -> None:
    """All variables of the environment that a script gets."""
    shown = (EXAMPLE.parents[1] / "own-trainer.md").read_text()
    plan = build_command_plan(
        load_scenario("case1"),
        "command",
        ["a"],
        Setting(layers=24, batch=64, seed=1),
        Execution(iterations=2, warmup_iterations=1),
    )
    inherited = inherited_environment(sys.executable, os.environ)
    names = script_environment(plan, 0, node_addresses(plan.node_names), 1, "p", inherited)
    assert [name for name in names if f"`{name}`" not in shown] == []


def test_a_script_knows_who_and_where_it_is(start: Callable[..., Run]) -> None:
    """Each rank prints its environment; torchrun's meaning of it, by hand for four nodes."""
    run = start(*python("import json, os; print(json.dumps(dict(os.environ)))" + REPORTS))
    list(run.pool.iterations())
    found = {rank: json.loads(text) for rank, text in run.output if '"RANK"' in text}
    assert {rank: each["RANK"] for rank, each in found.items()} == {r: str(r) for r in range(4)}
    assert {each["WORLD_SIZE"] for each in found.values()} == {"4"}
    assert {each["LOCAL_RANK"] for each in found.values()} == {"0"}
    assert {each["LOCAL_WORLD_SIZE"] for each in found.values()} == {"1"}
    assert [found[rank]["NODE_RANK"] for rank in range(4)] == ["0", "1", "2", "3"]
    assert [found[rank]["NETBENCH_REGION"] for rank in range(4)] == ["Campus"] * 2 + ["Garage"] * 2
    assert found[2]["NETBENCH_NODE"] == load_scenario("example-two-labs").nodes[2].name
    assert {each["NETBENCH_PLACEMENT"] for each in found.values()} == {"0,1,2,3"}
    assert {each["GLOO_SOCKET_IFNAME"] for each in found.values()} == {"lo"}
    assert "PYTHONPATH" not in found[0]


def test_nodes_of_several_devices_and_a_random_placement_number_ranks_as_torchrun() -> None:
    """Case 1 has 8 GPUs per machine: rank r sits on the node of the device it was given."""
    scenario = load_scenario("case1")
    plan = build_command_plan(
        scenario,
        "command-random",
        ["a"],
        Setting(layers=24, batch=1024, seed=2022),
        Execution(iterations=2, warmup_iterations=1),
    )
    nodes = node_addresses(plan.node_names)
    found = [script_environment(plan, r, nodes, 1, "p", {}) for r in range(64)]
    devices = [int(device) for device in found[0]["NETBENCH_PLACEMENT"].split(",")]
    assert sorted(devices) == list(range(64)) != devices
    per_node = 64 // len(nodes)
    assert [int(each["NODE_RANK"]) for each in found] == [d // per_node for d in devices]
    for number in range(len(nodes)):
        local = [each["LOCAL_RANK"] for each in found if each["NODE_RANK"] == str(number)]
        assert local == [str(index) for index in range(per_node)]
    assert {each["MASTER_ADDR"] for each in found} == {nodes[devices[0] // per_node].address}


def test_enough_iterations_end_scripts_that_go_on(start: Callable[..., Run]) -> None:
    """Whoever stops listening and stops the pool finds no process of theirs left."""
    run = start(
        *python(
            "import itertools, json, os, subprocess\n"
            "print(os.getpid(), flush=True)\n"
            "subprocess.Popen(['sleep', '1000'])\n"
            "for n in itertools.count():\n"
            "    print(json.dumps({'netbench': 'iteration', 'iteration_s': 1.0 + n}))\n"
        )
    )
    found = list(itertools.islice(run.pool.iterations(), 3))
    assert [iteration.iteration_s for iteration in found] == [1.0, 2.0, 3.0]
    pids = run.pids()
    run.pool.stop()
    for pid in pids:
        assert not alive_in_session(pid)


def alive_in_session(leader: int) -> list[int]:
    """Processes of a session that have not ended."""
    found = activity.read_processes()
    return [pid for pid, each in found.items() if each.session == leader and each.state != "Z"]


FAILING = """
import os, signal, sys, time
print(os.getpid(), flush=True)
print('{"netbench": "iteration", "iteration_s": 2.5}', flush=True)
if os.environ["RANK"] == "2":
    %s
try:
    input_closed = sys.stdin.read()
    time.sleep(1000)
except BaseException:
    pass
"""


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed by SIGKILL, in command"),
        ("raise MemoryError", r"ended with status 1, in command (?s:.*)\n  \| MemoryError$"),
        ("sys.exit('no such file')", r"ended with status 1, (?s:.*)\n  \| no such file$"),
        (
            """print('{"netbench": "iteration", "iteration_s": 1, "loss": NaN}', flush=True)""",
            r"the loss of iteration 1 is nan; it diverged$",
        ),
        (
            """print('{"netbench": "iteration", "seconds": 1}', flush=True)""",
            r"found the key 'seconds' in the line .*; expected e\.g\. ",
        ),
    ],
)
def test_a_script_that_fails_is_named_and_what_was_finished_is_kept(
    start: Callable[..., Run], act: str, said: str
) -> None:
    """Rank 2 of four; all had reported one iteration."""
    run = start(*python(FAILING % act))
    found: list[Iteration] = []
    with pytest.raises(TestbedError) as caught:
        found.extend(run.pool.iterations())
    assert re.match(rf"rank 2 on \S+: {said}", str(caught.value)), caught.value
    assert [iteration.iteration_s for iteration in found] == [2.5]


def test_a_script_that_lost_its_peer_is_not_the_cause(start: Callable[..., Run]) -> None:
    """Rank 0 fails at once with what gloo says; rank 1 was killed."""
    text = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "if os.environ['RANK'] == '0': raise RuntimeError('Connection closed by peer [10.1.1.1]')\n"
        "time.sleep(1000)\n"
    )
    with pytest.raises(TestbedError, match=r"^rank 1 on \S+: was killed by SIGKILL"):
        list(start(*python(text)).pool.iterations())


def test_a_script_that_is_stopped_is_named(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its last lines, here after 2 s without a line or a byte, counted once it is stopped."""
    monkeypatch.setattr(ranks, "WATCH_S", 0.5)
    run = start(*python(FAILING % "os.kill(os.getpid(), signal.SIGSTOP)"))

    def expect_less_patience() -> None:
        assert run.all_have_printed.wait(PATIENCE_S)
        while activity.read_processes()[run.pids()[2]].state != "T":
            select.select([], [], [], 0.05)
        monkeypatch.setattr(activity, "QUIET_S", 2.0)

    watcher = threading.Thread(target=expect_less_patience, daemon=True)
    watcher.start()
    with pytest.raises(
        TestbedError, match=r"stopped, by a signal or a debugger: (rank 2 on \S+), in"
    ) as caught:
        list(run.pool.iterations())
    assert re.search(r"; rank 2 on \S+ printed last:\n  \| \d+\n  \| {", str(caught.value))
    watcher.join()
    run.pool.stop()
    assert not any(alive_in_session(pid) for pid in run.pids())


def test_scripts_die_with_whoever_started_them(start: Callable[..., Run]) -> None:
    """SIGKILL on a node's side: the kernel ends the script too."""
    run = start(*python("import os, time; print(os.getpid(), flush=True); time.sleep(1000)"))
    killer = threading.Thread(target=kill_first_command, args=(run,))
    killer.start()
    with pytest.raises(TestbedError, match=r"^rank 0 on \S+: ended without a message"):
        list(run.pool.iterations())
    killer.join()
    process = os.pidfd_open(run.pids()[0]) if alive_in_session(run.pids()[0]) else None
    assert process is None or select.select([process], [], [], PATIENCE_S)[0]


def kill_first_command(run: Run) -> None:
    """Once all have printed."""
    assert run.all_have_printed.wait(PATIENCE_S)
    os.kill(run.testbed.commands[0].pid, signal.SIGKILL)


def test_a_command_that_is_not_there_says_so(start: Callable[..., Run]) -> None:
    """Which word was not found."""
    with pytest.raises(TestbedError, match=r"ended with status 127(?s:.*)no-such-program"):
        list(start("no-such-program").pool.iterations())
