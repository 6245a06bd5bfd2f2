"""The scale of an emulation, and whether TCP acts in it.

A plan is built at full size. To emulate it, bytes and bandwidths are divided by one factor, so that
the same messages carry fewer bytes in the same time. Merged collectives, slices of chains and the
sockets of a connection depend on it too.
"""

import dataclasses
import math
from collections.abc import Sequence

from netbench.network.shaping.segments import largest_scale
from netbench.plan.checks import fits_guest
from netbench.plan.collectives import CHAINS
from netbench.plan.model import VIRTUAL, Plan, Transport
from netbench.plan.tensor import all_reduce_bytes, num_all_reduce_messages, num_all_reduces
from netbench.scenario.model import Network, Scenario, Tcp
from netbench.systems import system_of
from netbench.transport.profile import load_transport

FULL_SIZE_BYTES = 2e9
"""Limit on the bytes of an iteration that runs at scale 1."""

SCALED_BYTES = 1e9
"""Limit on the bytes of a scaled iteration: under virtual time the guest kernel carries about 1.8
simulated Gbit per second of wall time (measured)."""

MOST_ADDED, MOST_ADDED_WAITED = 0.25, 0.05
"""Largest part of a message that gloo's own bytes may be, where the scale can be chosen: in gathers
beside the computation, and in all-reduces that layers wait for. At 0.15 an iteration of
megatron-t8 between nodes took 17% longer than at 0.03."""

RAMP = 8
"""An eighth of a chain's slices grow, and an eighth shrink: docs/simulator.md, slices of 430 MB."""

SCALES = (10.0, 100.0, 1000.0)
"""Beyond 1000 an 8 MiB activation would no longer fill one jumbo frame."""


def at_scale(plan: Plan, scale: float) -> Plan:
    """`plan` at this scale, merged for an emulation or whole as its system does at this scale."""
    return system_of(plan).simplify(dataclasses.replace(plan, scale=float(scale)))


def at_common_scale(plans: Sequence[Plan], scale: float | None = None) -> tuple[Plan, ...]:
    """Return plans at one scale, so that a network is shaped once.

    scale: None = the largest that any needs, but for no plan more than its `most_scale`.
    """
    if scale is not None:
        return tuple(at_scale(plan, scale) for plan in plans)
    needed = (choose_scale(p) if p.compute == VIRTUAL else p.scale for p in plans)
    common = max(needed, default=1.0)
    return tuple(at_scale(plan, min(common, _most_scale_emulated(plan))) for plan in plans)


def unmerge(plan: Plan, scale: float | None = None) -> Plan:
    """Return `plan` with the collectives that its system really has, however many messages.

    scale: None = the plan's, but at most its `most_scale`.
    """
    whole = system_of(plan).unmerged(plan)
    if scale is not None or whole == plan:
        return whole
    return dataclasses.replace(whole, scale=min(plan.scale, most_scale(whole)))


def most_scale(plan: Plan) -> float:
    """Return the largest scale at which gloo adds little to a plan's gathers, and to all-reduces
    between nodes that layers wait for; inf if it has neither."""
    system = system_of(plan)
    limit = _scale_of_messages(plan, system.smallest_message_bytes(plan), MOST_ADDED)
    if system.num_network_all_reduces(plan):
        message_bytes = plan.activation_bytes / num_all_reduce_messages(plan)
        limit = min(limit, _scale_of_messages(plan, message_bytes, MOST_ADDED_WAITED))
    return _round(limit)


def _most_scale_emulated(plan: Plan) -> float:
    """Return `most_scale` of the plan as its emulation runs it, which may merge collectives."""
    return most_scale(at_scale(plan, SCALES[-1]))


def _scale_of_messages(plan: Plan, message_bytes: float, most_added: float) -> float:
    """Return the scale at which gloo adds this part to messages of this size at full size."""
    return message_bytes * most_added / plan.transport.overhead_bytes


def _round(scale: float) -> float:
    """Return the largest of 1000, 500, 200, 100, .. up to `scale`; at least 1. inf stays."""
    if math.isinf(scale):
        return scale
    scales = (base * 10.0**power for power in (2, 1, 0) for base in (10, 5, 2))
    return next((each for each in scales if each <= scale), 1.0)


def network_bytes(plan: Plan) -> float:
    """`System.iteration_bytes` without the all-reduces of tensor-parallel ranks of one node, during
    which an emulation sleeps."""
    system = system_of(plan)
    layers = sum(stage.num_layers for stage in plan.stages)
    inside = plan.layout.dp * num_all_reduces(plan, layers) - system.num_network_all_reduces(plan)
    return system.iteration_bytes(plan) - inside * all_reduce_bytes(plan)


def with_tcp(network: Network, tcp: Tcp, backend: str) -> Network:
    """Return the network in which TCP acts, with the sockets that `backend` has per connection."""
    return dataclasses.replace(
        network, tcp=dataclasses.replace(tcp, sockets=load_transport(backend).sockets)
    )


def with_one_connection(network: Network, tcp: Tcp) -> Network:
    """Return the network in which TCP acts, and the window of a pair's connection limits links."""
    return dataclasses.replace(network, tcp=dataclasses.replace(tcp, sockets=1, limits_links=True))


def keep_dynamics(plan: Plan, scenario: Scenario, scale: float | None = None) -> Plan:
    """Return `plan` for an emulation in which TCP acts as on the scenario's machines.

    scale: None = `choose_scale`. Plans of layers that compute, or of a script, stay as they are:
    they run in real time. So do those whose tensors do not fit a guest at a scale that keeps TCP's
    dynamics.
    """
    if plan.compute != VIRTUAL:
        return plan
    network = with_tcp(plan.network, scenario.tcp, plan.backend)
    if system_of(plan).one_connection:
        network = with_one_connection(plan.network, scenario.tcp)
    acting = dataclasses.replace(plan, network=network)
    if plan.data_parallel in CHAINS and plan.layout.dp > 1:
        acting = dataclasses.replace(acting, transport=_with_fine_chains(plan.transport))
    chosen = choose_scale(acting) if scale is None else scale
    if not fits_guest(plan, chosen):
        return plan
    return at_scale(acting, chosen)


def _with_fine_chains(transport: Transport) -> Transport:
    """Return `transport` with chains cut so finely that no connection falls idle between slices.

    Slices are NCCL's, unless those are too many: then they are longer in the middle of a chain.
    """
    return dataclasses.replace(
        transport,
        chunk_bytes=load_transport("nccl").slice_bytes,
        ramp_slices=max(1, transport.max_slices // RAMP),
    )


def is_quick(plan: Plan) -> bool:
    """Return True if an emulation keeps TCP's dynamics and is quick: at full size, or with at most
    `SCALED_BYTES` in an iteration. Layers that compute and scripts take the time that they take."""
    if plan.compute != VIRTUAL:
        return True
    sent_bytes = network_bytes(plan) * max(1, plan.local_steps)
    return plan.network.tcp.acts and (plan.scale == 1 or sent_bytes <= SCALED_BYTES * plan.scale)


def choose_scale(plan: Plan) -> float:
    """Return the factor that divides bytes and bandwidths.

    It is 1 if an iteration sends at most 2 GB and a rank's tensors fit a guest, else the smallest
    of 10, 100 and 1000 that brings an iteration to at most 1 GB, or 1000. Where TCP acts, it is a
    power of two, and at most the largest that leaves segments large enough. Otherwise it is at most
    `most_scale`.
    """
    # diloco sends the bytes of all its local steps at once.
    total = network_bytes(plan) * max(1, plan.local_steps)
    if total <= FULL_SIZE_BYTES and fits_guest(plan, 1.0):
        return 1.0
    scales: tuple[float, ...] = SCALES
    if plan.network.tcp.acts:
        most = int(math.log2(largest_scale(plan.network)))
        scales = tuple(2.0**power for power in range(most + 1))
    chosen = next(
        (s for s in scales if total / s <= SCALED_BYTES and fits_guest(plan, s)), scales[-1]
    )
    return chosen if plan.network.tcp.acts else min(chosen, _most_scale_emulated(plan))
