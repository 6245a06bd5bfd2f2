"""Which of the local testbeds a run takes, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from netbench.errors import TestbedError, UsageError, nearest
from netbench.network.fidelity import cells_path, doubt, read_cells
from netbench.plan.experiment import Experiment
from netbench.plan.model import VIRTUAL
from netbench.plan.what_if import changed_links
from netbench.scenario.model import Network
from netbench.testbed.host import Host
from netbench.units import counted

SIMULATOR = "sim"
REQUESTS = ("local", "local:native", "local:guest", "local:guest-real", SIMULATOR)
"""What `--testbed` accepts. local: the best of the `local:` ones for this machine and run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """mode: one of `records.MODES`. reason: one line for the person who waits."""

    mode: str
    reason: str


def check_request(request: str) -> None:
    """Raises UsageError naming the nearest when `request` is none of `REQUESTS`."""
    if request not in REQUESTS:
        raise UsageError(f'unknown testbed "{request}"; {nearest(request, REQUESTS)}')


def choose(request: str, host: Host, num_ranks: int, compute: str = VIRTUAL) -> Choice:
    """The testbed for `num_ranks` ranks on `host`. Raises TestbedError with what to install.

    compute: `Plan.compute`. What computes needs real time: UsageError for virtual time.
    """
    check_request(request)
    if compute != VIRTUAL and request in ("local", "local:guest"):
        return _real_time(request, host, compute)
    if request == SIMULATOR:
        return Choice(mode="sim", reason="no ranks are started, no network is shaped")
    if request == "local:native":
        return _native(host)
    if request == "local:guest":
        return _guest_virtual(host)
    if request == "local:guest-real":
        return _guest_real(host)
    if host.guest_kernel is not None and host.guest_tmpdir is not None:
        return _guest_virtual(host)
    if host.is_root and host.has_netem and num_ranks <= host.num_cores:
        return _native(host)
    raise TestbedError(
        f"no local testbed can run {counted(num_ranks, 'rank')} exactly on this machine: "
        f"{_why_no_guest(host)}; native needs root, sch_netem and a core per rank "
        f"({_native_state(host)}, {counted(host.num_cores, 'core')}). "
        "Build the guest kernel: netbench kernel build. `netbench doctor` says more"
    )


def _real_time(request: str, host: Host, compute: str) -> Choice:
    if request == "local:guest":
        raise UsageError(
            f"local:guest runs in virtual time, in which what is computed (by {compute}) would "
            "take none; use --testbed local:guest-real, or leave out --compute and --command"
        )
    if host.is_root and host.has_netem:
        return _native(host)
    return _guest_real(host)


HELD_REQUESTS = ("local", "local:native", "local:guest-real")
"""What holds a network open for people: in real time, since they type."""


def choose_held(request: str, host: Host) -> Choice:
    """The testbed that holds a network open. Raises UsageError, TestbedError."""
    if request == "local:guest":
        raise UsageError(
            "local:guest runs in virtual time: an hour passes while nobody types; "
            "hold the network with --testbed local:guest-real"
        )
    if request not in HELD_REQUESTS:
        raise UsageError(
            f'no network can be held on testbed "{request}"; {nearest(request, HELD_REQUESTS)}'
        )
    if request == "local:native" or (request == "local" and host.is_root and host.has_netem):
        return _native(host)
    return _guest_real(host)


def network_doubts(mode: str, plans: Sequence[Experiment]) -> tuple[str, ...]:
    """Why the testbed of `mode` may not deliver the plans' networks, as far as it was measured."""
    found = dict.fromkeys(network_doubt(mode, plan.network, plan.scale) for plan in plans)
    return tuple(reason for reason in found if reason)


def network_doubt(mode: str, network: Network, scale: float = 1.0) -> str:
    """The same for one network; "" where there is no doubt.

    Every node is taken to send at once, at the highest rate and the longest delay of its network.
    """
    if network.num_nodes < 2:
        return ""
    return doubt(
        read_cells(cells_path()),
        backend=mode,
        num_flows=network.num_nodes,
        bandwidth_bps=_highest_bps(network) / scale,
        one_way_delay_s=max(link.one_way_delay_s for link in changed_links(network, "all")),
    )


def _highest_bps(network: Network) -> float:
    """The highest limited rate; 0 where none is."""
    rates = [link.bandwidth_bps for link in changed_links(network, "all")]
    if network.sharing == "nic":
        rates += network.nic_bps
    return max((rate for rate in rates if math.isfinite(rate)), default=0.0)


def _native(host: Host) -> Choice:
    if not (host.is_root and host.has_netem):
        raise TestbedError(
            f"local:native needs root and the sch_netem qdisc, found {_native_state(host)}; "
            "use --testbed local:guest"
        )
    return Choice(mode="native", reason=f"this kernel has netem; {counted(host.num_cores, 'core')}")


def _guest_virtual(host: Host) -> Choice:
    if host.guest_kernel is None or host.guest_tmpdir is None:
        raise TestbedError(f"local:guest cannot start: {_why_no_guest(host)}")
    return Choice(
        mode="guest-virtual",
        reason="guest kernel in virtual time: its clock stops while the CPU works, so "
        f"{host.num_cores} cores are as exact as one per rank",
    )


def _guest_real(host: Host) -> Choice:
    if host.guest_kernel is None and host.packaged_kernel is None:
        raise TestbedError(
            "local:guest-real needs a User-Mode Linux kernel; run `netbench kernel build`, "
            "or install Debian's package user-mode-linux"
        )
    return Choice(
        mode="guest-real",
        reason=f"guest kernel in real time: exact only while {host.num_cores} cores keep up",
    )


def _why_no_guest(host: Host) -> str:
    if host.guest_kernel is None:
        return "the guest kernel is not built; run: netbench kernel build"
    return "no directory allows executable mappings (all are mounted noexec); set TMPDIR to one"


def _native_state(host: Host) -> str:
    user = "root" if host.is_root else "not root"
    return f"{user}, {'netem' if host.has_netem else f'no netem ({host.netem_error})'}"
