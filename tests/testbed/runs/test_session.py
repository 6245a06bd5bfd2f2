"""The calls of a session to its testbed, and the iterations it runs. No rank is started."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from netbench.network.probing.dynamics import Messages
from netbench.network.shaping.segments import goodput_ratio
from netbench.plan.build import Choices, build_plans
from netbench.plan.experiment import experiment_from_json, experiment_hash
from netbench.plan.model import Execution, Plan
from netbench.plan.serial import plan_hash
from netbench.scenario import load_scenario
from netbench.scenario.model import NO_TCP, UNMODELLED, Network
from netbench.testbed import interface
from netbench.testbed.namespaces import node_addresses
from netbench.testbed.runs.session import PlanTask, run_session
from netbench.testing.nodes import FakeChannel, FakeTestbed

CLOCK_OFFSET_S = 1000.0
"""Every node's clock is ahead of that of the node before by this."""

LATE_S = 0.25
RUNNING_S = 2.0


class Rank(FakeChannel):
    """A channel to a rank that does what it is told: late, for a set time, which doubles with every
    plan that it prepares."""

    def __init__(self, rank: int) -> None:
        super().__init__(self._answers, [json.dumps({"event": "started", "rank": rank, "pid": 0})])
        self.rank = rank
        self._running_s: dict[str, float] = {}

    def _answers(self, line: str) -> Iterator[str]:
        order = json.loads(line)
        answer: dict[str, Any]
        match order["op"]:
            case "connect":
                answer = {"event": "ready"}
            case "prepare":
                key = experiment_hash(experiment_from_json(order["plan"]))
                self._running_s[key] = RUNNING_S * 2 ** len(self._running_s)
                answer = {"event": "prepared", "address": None}
            case "run":
                start_s = order["start_at"] + LATE_S
                times = {"start_s": start_s, "end_s": start_s + self._running_s[order["plan_hash"]]}
                passes_s = {"forward_s": 0.25 + 0.125 * self.rank, "backward_s": 0.5}
                answer = {"event": "iteration", **times, "phases": passes_s, "loss": None}
            case _:
                return
        yield json.dumps({"rank": self.rank, **answer})


def run(
    plan: Plan, finished: Collection[int], drops: Sequence[int] = ()
) -> tuple[FakeTestbed, list[dict[str, Any]]]:
    """Run a session: its testbed, and its events. drops: counts of packets dropped so far."""
    nodes = node_addresses(plan.node_names)
    made = FakeTestbed(
        nodes,
        lambda node, rank: Rank(rank),
        offsets_s=[CLOCK_OFFSET_S * index for index in range(len(nodes))],
    )
    made.drops = iter(drops)
    testbed: interface.Testbed = made
    events: list[dict[str, Any]] = []

    def emit(event: str, **fields: Any) -> None:
        events.append({"event": event, **fields})

    run_session(testbed, [PlanTask(plan=plan, finished=finished)], emit)
    return made, events


def make_plan(variant: str) -> Plan:
    scenario = load_scenario("example-two-labs")
    (plan,) = build_plans(
        scenario,
        Choices(variants=[variant], layers=[8], batch=[16], seeds=[1]),
        Execution(iterations=10, warmup_iterations=2, scale=10),
    )
    return plan


def without_tcp(plan: Plan) -> Plan:
    """The plan at a scale that divides no segments."""
    network = dataclasses.replace(plan.network, tcp=NO_TCP)
    return dataclasses.replace(plan, network=network)


def test_tcp_is_tuned_before_connections_and_links_are_shaped_after() -> None:
    """At 1/scale of the rate, connecting would take long. Drops are counted per iteration."""
    testbed, events = run(make_plan("megatron"), range(8))
    started = [f"start_rank {node} {node}" for node in range(4)]
    assert testbed.asked == ["tune", *started, "shape", "verify", *["dropped_packets"] * 10]
    phases = dict.fromkeys(event["name"] for event in events if event["event"] == "phase")
    assert list(phases) == ["tune", "ranks", "connect", "prepare", "shape", "verify", "repeat"]
    others = [event["event"] for event in events if event["event"] != "phase"]
    assert others == ["probe", "iteration", "iteration"]
    (probe,) = (event["probe"] for event in events if event["event"] == "probe")
    assert probe["scale"] == 10


def test_every_rank_starts_at_the_same_time_by_its_own_clock() -> None:
    """The nodes' clocks are far apart; times in the result are by the session's."""
    _, events = run(make_plan("megatron"), range(9))
    (iteration,) = [event for event in events if event["event"] == "iteration"]
    assert iteration["late_start_s"] == pytest.approx(LATE_S)
    assert iteration["iteration_s"] == pytest.approx(LATE_S + RUNNING_S)
    assert iteration["passes_s"] == pytest.approx(LATE_S + 0.75 + 0.125 * 3)


@pytest.mark.parametrize("finished", [(), (0, 1, 2), (0, 1, 3), range(9)])
def test_a_resumed_plan_repeats_its_finished_iterations_without_reporting_them(
    finished: Collection[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections and parameters are then those of a run that was not interrupted."""
    orders: list[int] = []
    send = Rank.send

    def count(rank: Rank, line: str) -> None:
        order = json.loads(line)
        if order["op"] == "run" and rank.rank == 0:
            orders.append(order["iteration"])
        send(rank, line)

    monkeypatch.setattr(Rank, "send", count)
    _, events = run(make_plan("megatron"), finished)
    assert orders == list(range(10))
    found = [event["iteration"] for event in events if event["event"] == "iteration"]
    assert found == [index for index in range(10) if index not in finished]
    # A session that says nothing for long counts as hung.
    repeated = [event["done"] - 1 for event in events if event.get("name") == "repeat"]
    assert repeated == list(finished)


def test_iterations_after_the_last_missing_one_are_not_repeated() -> None:
    """A record file whose lines were lost has gaps."""
    _, events = run(make_plan("megatron"), [0, *range(2, 10)])
    assert [event["iteration"] for event in events if event["event"] == "iteration"] == [1]


def test_plans_of_a_session_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same connections and links. The second is half done."""
    orders: list[str] = []
    send = Rank.send

    def note(rank: Rank, line: str) -> None:
        if rank.rank == 0:
            orders.append(json.loads(line)["op"])
        send(rank, line)

    monkeypatch.setattr(Rank, "send", note)
    first = without_tcp(make_plan("megatron"))
    second = without_tcp(make_plan("dtfm-scheduled"))
    tasks = [PlanTask(plan=first, finished=range(8)), PlanTask(plan=second, finished=range(9))]
    testbed = FakeTestbed(node_addresses(first.node_names), lambda node, rank: Rank(rank))
    testbed.drops = iter([*[0] * 12, 3, *[3] * 7])
    events: list[dict[str, Any]] = []
    run_session(testbed, tasks, lambda event, **fields: events.append({"event": event, **fields}))
    assert orders == ["connect", "prepare", *["run"] * 10, "forget", "prepare", *["run"] * 10,
                      "stop"]  # fmt: skip
    assert testbed.asked.count("shape") == testbed.asked.count("verify") == 1
    found = [(e["plan_hash"], e["iteration"]) for e in events if e["event"] == "iteration"]
    keys = plan_hash(first), plan_hash(second)
    assert found == [(keys[0], 8), (keys[0], 9), (keys[1], 9)]
    (drops,) = [event for event in events if event["event"] == "drops"]
    assert (drops["plan_hash"], drops["iteration"]) == (keys[1], 2)


def test_dropped_packets_are_reported_before_their_iteration() -> None:
    """Only new ones: the kernel counts all since the network was shaped."""
    _, events = run(make_plan("megatron"), range(7), drops=[*[0] * 7, 3, 3, 5])
    others = [event for event in events if event["event"] in ("iteration", "drops")]
    assert [event["event"] for event in others] == ["drops", "iteration", "iteration", "drops",
                                                    "iteration"]  # fmt: skip
    assert [event["packets"] for event in others if event["event"] == "drops"] == [3, 2]


def test_hosts_are_asked_before_and_after_each_iteration() -> None:
    """Nodes 0 and 1 are on host 7, the others on host 9; each node sends its number of bytes."""
    plan = make_plan("megatron")
    kernels = [7, 7, 9, 9]
    nodes = [
        dataclasses.replace(node, kernel=kernel)
        for node, kernel in zip(node_addresses(plan.node_names), kernels, strict=True)
    ]
    asked: list[str] = []

    class Hosts(FakeTestbed):
        num_sent = 0

        def host_use(self) -> dict[int, dict[str, Any]]:
            asked.append("use")
            return {7: {"host": "a"}, 9: {"host": "b"}}

        def sent_bytes(self) -> list[int]:
            asked.append("sent")
            self.num_sent += 1
            return [self.num_sent * index for index in range(4)]

    events: list[dict[str, Any]] = []
    run_session(
        Hosts(nodes, lambda node, rank: Rank(rank)),
        [PlanTask(plan=plan, finished=range(8))],
        lambda event, **fields: events.append({"event": event, **fields}),
    )
    found = [event["hosts"] for event in events if event["event"] == "iteration"]
    assert found == [[{"host": "a", "sent_bytes": 1}, {"host": "b", "sent_bytes": 5}]] * 2
    assert asked == ["use", "sent", "sent", "use"] * 10


def test_a_plan_in_parts_runs_two_short_iterations_for_each() -> None:
    """Both are prepared. The first is reported at once, unless the iteration was before; then the
    longer, with the shorter in it."""
    plan = dataclasses.replace(make_plan("megatron"), parts=(2, 4))
    _, events = run(plan, range(8))
    ends = [event for event in events if event["event"] in ("part", "iteration")]
    assert [event["event"] for event in ends] == ["part", "iteration"] * 2
    found = [event for event in ends if event["event"] == "iteration"]
    assert [event["iteration"] for event in found] == [8, 9]
    assert {event["plan_hash"] for event in found} == {plan_hash(plan)}
    for event in found:
        (short,) = event["parts"]
        assert short["iteration_s"] == pytest.approx(LATE_S + RUNNING_S)
        assert event["iteration_s"] == pytest.approx(LATE_S + 2 * RUNNING_S)
    parts = [event for event in ends if event["event"] == "part"]
    assert [event["iteration"] for event in parts] == [8, 9]
    assert {event["periods"] for event in parts} == {2}
    assert {event["iteration_s"] for event in parts} == {short["iteration_s"]}


@pytest.mark.parametrize(("congestion", "begins"), [("cubic", True), (UNMODELLED, False)])
def test_a_session_in_parts_begins_with_the_shorter_where_tcp_acts(
    congestion: str, begins: bool
) -> None:
    plan = dataclasses.replace(make_plan("megatron"), parts=(2, 4))
    tcp = dataclasses.replace(plan.network.tcp, congestion=congestion)
    network = dataclasses.replace(plan.network, tcp=tcp)
    _, events = run(dataclasses.replace(plan, network=network), range(9))
    phases = [event["name"] for event in events if event["event"] == "phase"]
    assert ("warm" in phases) == begins
    (first,) = [event for event in events if event["event"] == "part"]
    assert first["periods"] == (4 if begins else 2)
    assert first["iteration_s"] == pytest.approx(LATE_S + RUNNING_S * (2 if begins else 1))


def test_messages_of_the_probe_are_expected_on_nics_that_keep_to_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that carries 2 Gbit/s of payload in and out sends 1."""
    plan = make_plan("megatron")
    tcp = dataclasses.replace(plan.network.tcp, congestion="cubic")
    num_nodes = plan.network.num_nodes
    network = dataclasses.replace(
        plan.network, tcp=tcp, nic_bps=(10e9,) * num_nodes, host_bps=(2e9,) * num_nodes
    )
    asked: list[Messages | None] = []
    verify = FakeTestbed.verify

    def spy(testbed: FakeTestbed, network: Network, scale: float, messages: Any) -> Any:
        asked.append(messages)
        return verify(testbed, network, scale, messages)

    monkeypatch.setattr(FakeTestbed, "verify", spy)
    run(dataclasses.replace(plan, network=network), range(9))
    (messages,) = asked
    assert messages is not None
    assert messages.network.nic_bps == pytest.approx(
        [1e9 / goodput_ratio(network.mtu_bytes)] * num_nodes
    )


def test_a_session_that_does_not_verify_still_shapes_and_reads_back() -> None:
    plan = make_plan("megatron")
    testbed = FakeTestbed(node_addresses(plan.node_names), lambda node, rank: Rank(rank))
    events: list[str] = []
    tasks = [PlanTask(plan=plan, finished=range(9))]
    run_session(testbed, tasks, lambda event, **fields: events.append(event), verify=False)
    assert "shape" in testbed.asked
    assert "verify" not in testbed.asked
    assert {*events} == {"phase", "iteration"}
