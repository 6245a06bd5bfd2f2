"""Packet trains: their length, and what is expected of them. Pure. `probe` sends and counts them.

A fraction p of n packets has the standard deviation sqrt(p (1 - p) / n), or more if losses come in
bursts. A standard deviation s of n delays has the standard deviation s x sqrt((k - 1) / 4n), where
k is the fourth standardised moment. A figure may be off by the tolerance plus `SIGMAS` of these.
"""

import math
from dataclasses import dataclass

from netbench.scenario.model import Link

SIGMAS = 3.0

MAX_PACKETS = 20_000
MIN_PACKETS = 50
PLAIN_PACKETS = 1000
"""Packets on a link without impairments: enough to see a loss of 0.5% in 149 of 150 cases."""

MAX_TRAIN_S = 60.0
"""Longest packet train, seconds; longer ones get fewer packets."""

SPACING_S = 0.5e-3
"""Shortest interval between packets: an interpreter can send and receive several times faster."""

SPACING_FRAMES = 4
"""Interval between packets in frames at the link's rate, so that none queues behind another."""

SPACING_JITTERS = 8
"""Interval between packets in standard deviations of the jitter, so that none meet."""

KURTOSIS = {"normal": 3.0, "uniform": 1.8, "pareto": 11.4, "paretonormal": 7.9}
"""Fourth standardised moment of netem's distributions, of iproute2's tables (6.1)."""

FRAME_BYTES = 98
"""Size of a packet of a train, and of an echo: a ping with its headers."""

MAC_BYTES = 6
"""Bytes of the sender's hardware address, which no checksum covers: a flipped bit does no harm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PacketTrain:
    """A packet train. purpose: `jitter` or `loss`, or `both` if they can share one."""

    purpose: str
    num_packets: int
    interval_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PacketTrainResult:
    """Result of a packet train; see `probe.describe`. mean_s includes the offset of the clocks."""

    num_packets: int
    received: int
    duplicates: int
    ahead: int
    mean_s: float
    jitter_s: float

    @property
    def loss(self) -> float:
        """Fraction of packets that never arrived."""
        return 1 - self.received / self.num_packets

    @property
    def duplication(self) -> float:
        """Fraction of packets that arrived twice."""
        return self.duplicates / self.num_packets

    @property
    def reordering(self) -> float:
        """Fraction of arrived packets that overtook an earlier one."""
        return self.ahead / max(self.received, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """An expected figure. allowed: tolerance plus random error, in the unit of `value`."""

    quantity: str
    value: float
    allowed: float


def plan_trains(
    link: Link, rate_bps: float, tolerance: float, always: bool
) -> tuple[PacketTrain, ...]:
    """Plan the packet trains that judge `link`; none for a plain link unless `always`.

    rate_bps: of the link, scaled. tolerance: relative, of every figure.
    """
    interval_s = max(SPACING_S, SPACING_FRAMES * FRAME_BYTES * 8 / rate_bps)
    fractions = [p for p in (link.mean_loss, link.duplication, link.reordering) if p]
    if not link.jitter_s and not fractions:
        plain = PacketTrain(purpose="both", num_packets=PLAIN_PACKETS, interval_s=interval_s)
        return (plain,) if always else ()
    trains = []
    precision = (SIGMAS / tolerance) ** 2
    if link.jitter_s:
        apart_s = max(interval_s, SPACING_JITTERS * link.jitter_s)
        trains.append(_train("jitter", precision * _spread_factor(link), apart_s))
    if fractions:
        wanted = max(precision * (1 - p) / p for p in fractions) * _clumping(link)
        trains.append(_train("loss", wanted, interval_s))
    elif always:
        trains.append(_train("loss", PLAIN_PACKETS, interval_s))
    return tuple(trains)


def settle_s(link: Link) -> float:
    """Return the pause after a packet train, seconds: jitter may delay its last packet."""
    return SPACING_JITTERS * link.jitter_s + SPACING_S


def expectations(
    link: Link, train: PacketTrain, tolerance: float, resolution_s: float
) -> tuple[Expected, ...]:
    """Return what `link` should do to `train`. resolution_s: absolute tolerance of a jitter.

    The jitter of a link that reorders is not judged: some packets pass without their delay.
    """
    found = []
    if train.purpose in ("jitter", "both") and not link.reordering:
        error = math.sqrt(_spread_factor(link) / train.num_packets)
        allowed_s = link.jitter_s * (tolerance + SIGMAS * error) + resolution_s
        found.append(Expected(quantity="jitter_s", value=link.jitter_s, allowed=allowed_s))
    if train.purpose in ("loss", "both"):
        loss, twice = _lost(link), _doubled(link)
        found.append(_fraction("loss", loss, train, tolerance, _clumping(link)))
        found.append(_fraction("duplication", twice, train, tolerance))
        late = link.one_way_delay_s > 2 * train.interval_s
        if not link.jitter_reorders and (late or not link.reordering):
            found.append(_fraction("reordering", link.reordering, train, tolerance))
    return tuple(found)


def _train(purpose: str, wanted: float, interval_s: float) -> PacketTrain:
    most = max(MIN_PACKETS, min(MAX_PACKETS, int(MAX_TRAIN_S / interval_s)))
    num_packets = min(max(math.ceil(wanted), MIN_PACKETS), most)
    return PacketTrain(purpose=purpose, num_packets=num_packets, interval_s=interval_s)


def _fraction(
    quantity: str, value: float, train: PacketTrain, tolerance: float, clumping: float = 1.0
) -> Expected:
    """Expect a fraction of packets. One more packet is allowed, because counts are whole."""
    chance = SIGMAS * math.sqrt(value * (1 - value) * clumping / train.num_packets)
    allowed = tolerance * value + chance + 1 / train.num_packets
    return Expected(quantity=quantity, value=value, allowed=allowed)


def _lost(link: Link) -> float:
    """Return the fraction that never arrives.

    netem draws duplication first, and a packet that is both duplicated and lost arrives once. A
    damaged packet fails its checksum, except as `MAC_BYTES` says.
    """
    drawn = max(link.loss, link.bursts.loss) * (1 - link.duplication)
    damaged = link.corruption * (1 - MAC_BYTES / FRAME_BYTES)
    return 1 - (1 - drawn) * (1 - damaged)


def _doubled(link: Link) -> float:
    """Return the fraction that arrives twice: neither the packet nor its copy was lost."""
    return link.duplication * (1 - max(link.loss, link.bursts.loss)) ** 2 * (1 - link.corruption)


def _clumping(link: Link) -> float:
    """Return the variance of the number of losses over that of independent losses.

    For a Gilbert-Elliott link with states g and b of probability G and B, correlated by c = 1 -
    to_bad - to_good from one packet to the next:
    1 + 2 G B (loss_b - loss_g)^2 / (p (1 - p)) x c / (1 - c).
    """
    bursts = link.bursts
    p, change = bursts.loss, bursts.to_bad + bursts.to_good
    if not 0 < p < 1 or not change:
        return 1.0
    bad = bursts.to_bad / change
    between = bad * (1 - bad) * (bursts.loss_bad - bursts.loss_good) ** 2
    return max(1.0, 1 + 2 * between / (p * (1 - p)) * (1 - change) / change)


def _spread_factor(link: Link) -> float:
    """Return n x the squared relative standard error of the standard deviation of n delays."""
    return (KURTOSIS[link.jitter_distribution] - 1) / 4
