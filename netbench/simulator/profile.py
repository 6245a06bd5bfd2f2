"""What a transport does beside the links it runs over: libraries, sockets, TCP.

The built-in ones are `profiles/*.yaml`, every figure with its source.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from netbench.errors import ScenarioError, nearest
from netbench.scenario.schema import Bandwidth, Bytes, Positive, Seconds, Section
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportProfile:
    """One communication library over TCP on a host.

    header_bytes, ethernet_bytes: IPv4 + TCP + timestamps inside the MTU, and Ethernet beside it.
    inside_node_bps: between two GPUs of one node. host_bps: what one connection moves at most
    between two hosts, bit/s of payload; a collective has `channels` of them side by side. sockets:
    parallel ones per connection, each with a first window of `first_window_segments` and one of
    `max_window_bytes` at most. retransmission_s: the least idleness, beside the round trip, after
    which a window is halved. fifo_bytes, window_bytes, window_factor: a side of a connection
    buffers fifo + window bytes + factor x rate x round trip.
    """

    header_bytes: int = 52
    ethernet_bytes: int = 14
    inside_node_bps: float = 100e9
    host_bps: float = 9.42e9
    channels: int = 1
    sockets: int = 16
    first_window_segments: int = 10
    max_window_bytes: float = 3e6
    retransmission_s: float = 0.2
    fifo_bytes: int = 1 << 20
    window_bytes: int = 1 << 20
    window_factor: float = 2.0


class TransportForm(Section):
    """A transport profile as written; the names are `TransportProfile`'s without units."""

    header: Bytes = Field(examples=["52B"])
    ethernet: Bytes = Field(examples=["14B"])
    inside_node: Bandwidth = Field(examples=["100Gbit"])
    host: Bandwidth = Field(examples=["9.4Gbit"])
    channels: Positive = Field(examples=["2"])
    sockets: Positive = Field(examples=["16"])
    first_window_segments: Positive = Field(examples=["10"])
    max_window: Bytes = Field(examples=["3MB"])
    retransmission: Seconds = Field(examples=["200ms"])
    fifo: Bytes = Field(examples=["1MiB"])
    window: Bytes = Field(examples=["1MiB"])
    window_factor: float = Field(examples=["2"], ge=0)
    source: str = ""


def list_transports() -> tuple[str, ...]:
    """Names of the built-in profiles."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


@functools.cache
def load_transport(name: str) -> TransportProfile:
    """The built-in profile called `name`. Raises ScenarioError suggesting the nearest."""
    known = list_transports()
    if name not in known:
        raise ScenarioError(f'no built-in transport profile "{name}"; {nearest(name, known)}')
    return read_transport(PROFILES / f"{name}.yaml")


def read_transport(path: Path) -> TransportProfile:
    """The profile in a file. Raises ScenarioError naming file, line and key of what is wrong."""
    form = validate(read_source(path), TransportForm)
    return TransportProfile(
        header_bytes=form.header,
        ethernet_bytes=form.ethernet,
        inside_node_bps=form.inside_node,
        host_bps=form.host,
        channels=form.channels,
        sockets=form.sockets,
        first_window_segments=form.first_window_segments,
        max_window_bytes=form.max_window,
        retransmission_s=form.retransmission,
        fifo_bytes=form.fifo,
        window_bytes=form.window,
        window_factor=form.window_factor,
    )
