"""Hivemind as it runs on rented machines: a swarm of peers with a target batch size.

Source: Erben, Mayer, Jacobsen, "How Can We Train Deep Learning Models Across Clouds and Continents?
An Experimental Study" (PVLDB 17(6), 2024), and the logs of its runs. `rounds` has the time of a
round. Beside `hivemind`, which divides a batch evenly, peers here differ in speed, look for a group
before each round, and average in lock-step.
"""

import re

from netbench.plan.model import AVERAGING, UPDATE, Plan
from netbench.scenario.model import Workload
from netbench.systems.base import System, Variant
from netbench.systems.iteration import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    OPTIMIZER,
    Segment,
    SegmentBuilder,
)
from netbench.systems.rounds import time_round

MATCHMAKING_S = 5.0
"""Matchmaking time where the name does not say, seconds. Source: the default of Hivemind 1.1."""

BESIDE = {None: "", "delayed": UPDATE, "background": AVERAGING}
"""Ending of a name -> `Plan.beside`. They are Hivemind's `delay_optimizer_step` alone, and with
`delay_grad_averaging`."""


class HivemindSwarm(System):
    """An iteration is one round: all peers together accumulate the batch, then average once."""

    name = "hivemind-swarm"
    grammar = "hivemind-swarm[-m<seconds>][-delayed|-background]"
    pattern = re.compile(
        r"hivemind-swarm(-m(?P<seconds>\d{1,4}))?(-(?P<beside>delayed|background))?", re.ASCII
    )
    examples = ("hivemind-swarm",)
    trainer = "netbench.trainers.systems.swarm:SwarmRank"
    updates_on_host = True
    trains_named_models = True
    has_peers = True
    one_connection = True
    survives_churn = True

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            data_parallel="lock-step butterfly",
            pipeline=1,
            staleness=1 if found["beside"] else 0,
            beside=BESIDE[found["beside"]],
            compression="fp16",
            matchmaking_s=float(found["seconds"] or MATCHMAKING_S),
        )

    def micro_batches(self, workload: Workload, num_replicas: int) -> int:
        """Micro-batches of a peer if all were equally fast, rounded up."""
        return -(-workload.batch // (num_replicas * workload.micro_batch))

    def representative(self, plan: Plan) -> Plan:
        return plan

    def largest_tensors_bytes(self, plan: Plan) -> int:
        """A peer of an emulation holds pieces only."""
        return 0

    def iteration_bytes(self, plan: Plan) -> float:
        return float(time_round(plan).pair_bytes.sum())

    def segments(self, plan: Plan) -> tuple[Segment, ...]:
        """Accumulation, the rest of the matchmaking, averaging, update. The update alone, or
        averaging and update, may run beside the accumulation of the next round."""
        found, builder = time_round(plan), SegmentBuilder()
        stage = plan.stages[0]
        part = stage.forward_s / (stage.forward_s + stage.backward_s)
        builder.add("device", FORWARD, part * found.compute_s)
        builder.add("device", BACKWARD, (1 - part) * found.compute_s)
        last = builder.add("device", COLLECTIVE, found.wait_s)
        if plan.beside == UPDATE:
            builder.add("host", OPTIMIZER, found.update_s)
        after = () if plan.beside == AVERAGING else (last,)
        builder.add("host", COLLECTIVE, found.average_s, after=after)
        if plan.beside != UPDATE:
            builder.add("host", OPTIMIZER, found.update_s)
        return (builder.build("round"),)
