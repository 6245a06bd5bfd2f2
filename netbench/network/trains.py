"""Trains of packets: how many tell jitter and loss well enough, and what is expected of them. Pure.

Packets at even intervals are numbered and carry the time they were sent at. The share that never
comes, that comes twice and that comes ahead of an earlier one is counted; the jitter is the
standard deviation of (arrived - sent) around a straight line over the time of sending, so that
neither the offset nor the drift of two clocks is in it.

What is counted varies by chance. A share p of n packets has the standard deviation
sqrt(p (1 - p) / n), more where losses come in bursts; a standard deviation s of n delays has one of
s x sqrt((k - 1) / 4n), k the fourth standardised moment (3 for a normal distribution). A figure may
be off by the tolerance and `SIGMAS` of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from netbench.scenario.model import Link

SIGMAS = 3.0

MAX_PACKETS = 20_000
MIN_PACKETS = 50
PLAIN_PACKETS = 1000
"""Where nothing is expected: enough to see a loss of 0.5% in all but 1 of 150 cases."""

MAX_TRAIN_S = 60.0
"""A train that would take longer has fewer packets."""

SPACING_S = 0.5e-3
"""Between packets: what an interpreter can send and take, several times over."""

SPACING_FRAMES = 4
"""Packets take at most this part of the rate, so that none waits for another."""

SPACING_JITTERS = 8
"""Where jitter is measured packets are so many of its standard deviations apart: closer ones would
meet, and a link that keeps their order then holds the second back."""

KURTOSIS = {"normal": 3.0, "uniform": 1.8, "pareto": 11.4, "paretonormal": 7.9}
"""Fourth standardised moment of netem's distributions, of iproute2's tables (6.1)."""

FRAME_BYTES = 98
MAC_BYTES = 6
"""A flipped bit of the sender's hardware address is in no checksum: the packet arrives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Train:
    """Packets to send. purpose: `jitter` or `loss`, or `both` where they can share one."""

    purpose: str
    num_packets: int
    interval_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """What came of a train; see `probe.describe`. mean_s has the clocks' offset in it."""

    num_packets: int
    received: int
    duplicates: int
    ahead: int
    mean_s: float
    jitter_s: float

    @property
    def loss(self) -> float:
        """Share that never came."""
        return 1 - self.received / self.num_packets

    @property
    def duplication(self) -> float:
        """Share that came twice."""
        return self.duplicates / self.num_packets

    @property
    def reordering(self) -> float:
        """Share, of those that came, that was ahead of an earlier one."""
        return self.ahead / max(self.received, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One figure of a train. allowed: tolerance and chance, in the unit of `value`."""

    quantity: str
    value: float
    allowed: float


def plan_trains(link: Link, rate_bps: float, tolerance: float, always: bool) -> tuple[Train, ...]:
    """What has to be sent over `link` to judge it; nothing for a plain link unless `always`.

    rate_bps: what the link carries, scaled. tolerance: relative, of every figure.
    """
    interval_s = max(SPACING_S, SPACING_FRAMES * FRAME_BYTES * 8 / rate_bps)
    shares = [p for p in (link.mean_loss, link.duplication, link.reordering) if p]
    if not link.jitter_s and not shares:
        plain = Train(purpose="both", num_packets=PLAIN_PACKETS, interval_s=interval_s)
        return (plain,) if always else ()
    trains = []
    if link.jitter_s:
        apart_s = max(interval_s, SPACING_JITTERS * link.jitter_s)
        wanted = (SIGMAS / tolerance) ** 2 * _spread_factor(link)
        trains.append(_train("jitter", wanted, apart_s))
    if shares:
        wanted = max((SIGMAS / tolerance) ** 2 * (1 - p) / p for p in shares) * _clumping(link)
        trains.append(_train("loss", wanted, interval_s))
    elif always:
        trains.append(_train("loss", PLAIN_PACKETS, interval_s))
    return tuple(trains)


def settle_s(link: Link) -> float:
    """How long to wait after a train, seconds: its last packet may be late by its jitter."""
    return SPACING_JITTERS * link.jitter_s + SPACING_S


def expectations(
    link: Link, train: Train, tolerance: float, resolution_s: float
) -> tuple[Expected, ...]:
    """What `link` does to `train`. resolution_s: how far a delay may be off whatever it is.

    The jitter of a link that lets some packets pass without their delay is not judged.
    """
    found = []
    if train.purpose in ("jitter", "both") and not link.reordering:
        error = math.sqrt(_spread_factor(link) / train.num_packets)
        allowed_s = link.jitter_s * (tolerance + SIGMAS * error) + resolution_s
        found.append(Expected(quantity="jitter_s", value=link.jitter_s, allowed=allowed_s))
    if train.purpose in ("loss", "both"):
        loss, twice = _lost(link), _doubled(link)
        found.append(_share("loss", loss, train, tolerance, _clumping(link)))
        found.append(_share("duplication", twice, train, tolerance))
        late = link.one_way_delay_s > 2 * train.interval_s
        if not link.jitter_reorders and (late or not link.reordering):
            found.append(_share("reordering", link.reordering, train, tolerance))
    return tuple(found)


def _train(purpose: str, wanted: float, interval_s: float) -> Train:
    most = max(MIN_PACKETS, min(MAX_PACKETS, int(MAX_TRAIN_S / interval_s)))
    num_packets = min(max(math.ceil(wanted), MIN_PACKETS), most)
    return Train(purpose=purpose, num_packets=num_packets, interval_s=interval_s)


def _share(
    quantity: str, share: float, train: Train, tolerance: float, clumping: float = 1.0
) -> Expected:
    """A share of packets. One packet more is allowed: what is counted is whole."""
    chance = SIGMAS * math.sqrt(share * (1 - share) * clumping / train.num_packets)
    allowed = tolerance * share + chance + 1 / train.num_packets
    return Expected(quantity=quantity, value=share, allowed=allowed)


def _lost(link: Link) -> float:
    """Share that never comes. netem draws duplication first, and a packet that is to be both
    doubled and lost comes once. A damaged one fails its checksum, but see `MAC_BYTES`."""
    drawn = max(link.loss, link.bursts.loss) * (1 - link.duplication)
    damaged = link.corruption * (1 - MAC_BYTES / FRAME_BYTES)
    return 1 - (1 - drawn) * (1 - damaged)


def _doubled(link: Link) -> float:
    """Share that comes twice: neither was lost, nor was its copy, which is drawn for again."""
    return link.duplication * (1 - max(link.loss, link.bursts.loss)) ** 2 * (1 - link.corruption)


def _clumping(link: Link) -> float:
    """Variance of the number of losses over that of independent ones.

    Of a Gilbert-Elliott link, states g and b with shares G and B, correlated by c = 1 - to_bad -
    to_good from one packet to the next: 1 + 2 G B (loss_b - loss_g)^2 / (p (1 - p)) x c / (1 - c).
    """
    bursts = link.bursts
    p, change = bursts.loss, bursts.to_bad + bursts.to_good
    if not 0 < p < 1 or not change:
        return 1.0
    bad = bursts.to_bad / change
    between = bad * (1 - bad) * (bursts.loss_bad - bursts.loss_good) ** 2
    return max(1.0, 1 + 2 * between / (p * (1 - p)) * (1 - change) / change)


def _spread_factor(link: Link) -> float:
    """n x (standard error of the standard deviation of n delays, relative) squared."""
    return (KURTOSIS[link.jitter_distribution] - 1) / 4
