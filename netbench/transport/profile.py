"""Transport profiles: limits and costs of libraries, sockets and TCP beside those of the links.

The built-in profiles are `profiles/*.yaml`; every value has its source there. The simulator reads
them, and a plan embeds what the trainers need (`plan.model.Transport`).
"""

import functools
from pathlib import Path

from pydantic import Field

from netbench.errors import ScenarioError, nearest
from netbench.scenario.schema import Bandwidth, Bytes, Positive, Seconds, Section
from netbench.scenario.source import read_source
from netbench.scenario.validate import validate

PROFILES = Path(__file__).parent / "profiles"


class EmulationValues(Section):
    """Values that the trainers use where they differ from the simulator's.

    slice_bytes: of chains where TCP does not act; where it does, they are as simulated.
    max_slices: of a chain or tree.
    """

    slice_bytes: Bytes = Field(alias="slice", examples=["4MiB"])
    max_slices: Positive = Field(examples=["128"])


class TransportProfile(Section):
    """One communication library over TCP on a host. A file writes keys without their units.

    header_bytes, ethernet_bytes: IPv4 + TCP + timestamps inside the MTU, and Ethernet beside it.
    inside_node_bps: between two GPUs of one node. host_bps: limit of one connection between two
    hosts, bit/s of payload; a collective has `channels` of them side by side. sockets: parallel
    ones per connection. Each starts with a window of `first_window_segments`, and has one of
    `max_window_bytes` at most. retransmission_s: idle time beyond the round trip after which a
    window is halved. fifo_bytes, window_bytes, window_factor: each end of a connection buffers
    fifo + window bytes + factor x rate x round trip.

    NCCL: slice_bytes, max_slices: slices of a chain or tree. chain_overhead: what a chain
    that is timed alone moves beside its message, as a fraction of it, at most
    `chain_overhead_bytes`. ring_chunk_bytes, ring_slices: what a
    rank passes on in one step of a ring, and the parts it is passed on in. emulation: see there.
    gloo: segment_bytes: longest message of its rings. overhead_bytes: what a message adds to its
    payload beside the frame of the announcement. 0, None: the library has none.
    """

    header_bytes: Bytes = Field(alias="header", examples=["52B"])
    ethernet_bytes: Bytes = Field(alias="ethernet", examples=["14B"])
    inside_node_bps: Bandwidth = Field(alias="inside_node", examples=["100Gbit"])
    host_bps: Bandwidth = Field(alias="host", examples=["9.4Gbit"])
    channels: Positive = Field(examples=["2"])
    sockets: Positive = Field(examples=["16"])
    first_window_segments: Positive = Field(examples=["10"])
    max_window_bytes: Bytes = Field(alias="max_window", examples=["3MB"])
    retransmission_s: Seconds = Field(alias="retransmission", examples=["200ms"])
    fifo_bytes: Bytes = Field(alias="fifo", examples=["1MiB"])
    window_bytes: Bytes = Field(alias="window", examples=["1MiB"])
    window_factor: float = Field(examples=["2"], ge=0)
    slice_bytes: Bytes = Field(default=0, alias="slice", examples=["1MiB"])
    max_slices: int = Field(default=0, examples=["64"], ge=0)
    chain_overhead: float = Field(default=0.0, examples=["0.3"], ge=0)
    chain_overhead_bytes: Bytes = Field(default=0, alias="max_chain_overhead", examples=["30MB"])
    ring_chunk_bytes: Bytes = Field(default=0, alias="ring_chunk", examples=["4MiB"])
    ring_slices: int = Field(default=0, examples=["2"], ge=0)
    segment_bytes: Bytes = Field(default=0, alias="segment", examples=["1MiB"])
    overhead_bytes: Bytes = Field(default=0, alias="overhead", examples=["96B"])
    emulation: EmulationValues | None = None
    source: str = ""


def list_transports() -> tuple[str, ...]:
    """List the names of the built-in profiles."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


@functools.cache
def load_transport(name: str) -> TransportProfile:
    """Return the built-in profile called `name`. Raises ScenarioError with the nearest name."""
    known = list_transports()
    if name not in known:
        raise ScenarioError(f'no built-in transport profile "{name}"; {nearest(name, known)}')
    return read_transport(PROFILES / f"{name}.yaml")


def read_transport(path: Path) -> TransportProfile:
    """Read a profile from a file. Raises ScenarioError with the file, line and key of an error."""
    return validate(read_source(path), TransportProfile)
