"""Lengths of packet trains and their random errors, against simulated links."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from netbench.network.probing.packet_trains import (
    FRAME_BYTES,
    MAX_PACKETS,
    MAX_TRAIN_S,
    PacketTrain,
    expectations,
    plan_trains,
    settle_s,
)
from netbench.scenario.model import BurstLoss, Link

PLAIN = Link(one_way_delay_s=0.02, bandwidth_bps=100e6)
TRIALS = 400


def allowed(
    link: Link, quantity: str, train: PacketTrain, tolerance: float = 0.0
) -> tuple[float, float]:
    """Expected value and what it may be off by."""
    found = {e.quantity: e for e in expectations(link, train, tolerance, 0.0)}
    return found[quantity].value, found[quantity].allowed


def lost_in_bursts(bursts: BurstLoss, num_packets: int, trials: int) -> NDArray[np.float64]:
    """Shares lost by links that are good or bad, packet by packet: plain Markov chains."""
    rng = np.random.default_rng(11)
    bad = rng.random(trials) < bursts.to_bad / (bursts.to_bad + bursts.to_good)
    lost = np.zeros(trials)
    for _ in range(num_packets):
        change, loss = rng.random((2, trials))
        bad = np.where(bad, change >= bursts.to_good, change < bursts.to_bad)
        lost += loss < np.where(bad, bursts.loss_bad, bursts.loss_good)
    return lost / num_packets


def test_a_plain_link_needs_no_packets_unless_asked() -> None:
    """Runs on plain links are as fast as before."""
    assert plan_trains(PLAIN, 100e6, 0.05, always=False) == ()
    (train,) = plan_trains(PLAIN, 100e6, 0.05, always=True)
    assert (train.purpose, train.num_packets) == ("both", 1000)
    figures = {e.quantity for e in expectations(PLAIN, train, 0.05, 0.0)}
    assert figures == {"jitter_s", "loss", "duplication", "reordering"}


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02, 0.001, 0.00001])
def test_losses_that_the_link_makes_are_within_chance(share: float) -> None:
    """Nearly all of 400 links that lose as they should pass, all but a few in a thousand; one
    that loses half as much again is found out, where enough packets can be sent."""
    link = replace(PLAIN, loss=share)
    (train,) = plan_trains(link, 100e6, 0.05, always=False)
    expected, chance = allowed(link, "loss", train)
    assert expected == pytest.approx(share)
    lost = np.random.default_rng(3).binomial(train.num_packets, share, TRIALS) / train.num_packets
    assert np.mean(np.abs(lost - share) > chance) <= 3 / TRIALS
    if share >= 0.01:
        assert chance < share / 2


@pytest.mark.parametrize(
    "bursts",
    [
        BurstLoss(to_bad=0.01, to_good=0.3),
        BurstLoss(to_bad=0.002, to_good=0.05, loss_bad=0.5),
        BurstLoss(to_bad=0.9, to_good=0.9, loss_good=0.1),
    ],
)
def test_losses_in_bursts_may_vary_more(bursts: BurstLoss) -> None:
    """Against a Markov chain: the spread that is allowed for is the spread there is."""
    link = replace(PLAIN, bursts=bursts)
    train = PacketTrain(purpose="loss", num_packets=5000, interval_s=0.0005)
    expected, chance = allowed(link, "loss", train)
    lost = lost_in_bursts(bursts, 5000, TRIALS)
    assert np.mean(lost) == pytest.approx(expected, rel=0.1)
    assert np.mean(np.abs(lost - expected) > chance) <= 4 / TRIALS
    independent = math.sqrt(expected * (1 - expected) / 5000)
    if bursts.to_bad + bursts.to_good < 1:
        assert np.std(lost) > 1.3 * independent
        assert chance < 5 * np.std(lost)


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_jitter_that_the_link_makes_is_within_chance(distribution: str) -> None:
    """The standard deviation of as many delays as are sent, 400 times over."""
    link = replace(PLAIN, jitter_s=0.002, jitter_distribution=distribution)
    (train,) = plan_trains(link, 100e6, 0.05, always=False)
    expected, chance = allowed(link, "jitter_s", train)
    assert expected == 0.002
    assert chance <= 0.051 * 0.002
    rng = np.random.default_rng(5)
    delays = rng.normal(0, 0.002, (TRIALS, train.num_packets))
    if distribution == "uniform":
        half = 0.002 * math.sqrt(3)
        delays = rng.uniform(-half, half, (TRIALS, train.num_packets))
    assert np.mean(np.abs(delays.std(axis=1) - 0.002) > chance) <= 4 / TRIALS


def test_jitter_packets_are_too_far_apart_to_meet() -> None:
    """Closer ones would be held back to keep their order, which makes the jitter look smaller."""
    link = replace(PLAIN, jitter_s=0.005)
    (train,) = plan_trains(link, 100e6, 0.05, always=False)
    assert train.interval_s >= 6 * math.sqrt(2) * link.jitter_s * 0.9
    assert settle_s(link) >= 4 * link.jitter_s


@pytest.mark.parametrize("rate_bps", [64e3, 1.12e6, 1e9, math.inf])
def test_trains_leave_room_on_the_link_and_end_in_time(rate_bps: float) -> None:
    """At most a quarter of the rate, at most a minute, at most `MAX_PACKETS`."""
    link = replace(PLAIN, loss=0.001, jitter_s=0.01)
    for train in plan_trains(link, rate_bps, 0.05, always=True):
        assert FRAME_BYTES * 8 / train.interval_s <= rate_bps / 4
        assert train.num_packets * train.interval_s <= MAX_TRAIN_S
        assert 50 <= train.num_packets <= MAX_PACKETS


def test_the_share_of_packets_that_is_stated_is_that_of_the_issue() -> None:
    """0.1% of 20000 packets: 0.1% give or take 0.07%, and one packet."""
    link = replace(PLAIN, loss=0.001)
    (train,) = plan_trains(link, 100e6, 0.05, always=False)
    assert train.num_packets == 20_000
    expected, chance = allowed(link, "loss", train)
    assert (round(expected * 100, 2), round(chance * 100, 2)) == (0.1, 0.07)


def test_what_cannot_be_told_is_not_judged() -> None:
    """The jitter of a link that lets packets pass, and their order where jitter changes it."""
    train = PacketTrain(purpose="both", num_packets=1000, interval_s=0.0005)
    passing = {e.quantity for e in expectations(replace(PLAIN, reordering=0.1), train, 0.05, 0.0)}
    assert passing == {"loss", "duplication", "reordering"}
    mixed = replace(PLAIN, jitter_s=0.001, jitter_reorders=True)
    assert "reordering" not in {e.quantity for e in expectations(mixed, train, 0.05, 0.0)}
    near = replace(PLAIN, one_way_delay_s=0.0005, reordering=0.1)
    assert "reordering" not in {e.quantity for e in expectations(near, train, 0.05, 0.0)}
