"""Choose the local testbed of a run, and give the reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from netbench.errors import TestbedError, UsageError, nearest
from netbench.network.probing.fidelity import cells_path, fidelity_warning, read_cells
from netbench.plan.experiment import Experiment
from netbench.plan.model import VIRTUAL
from netbench.plan.what_if import changed_links
from netbench.scenario.model import Network
from netbench.scenario.sharing import nic_caps_bps
from netbench.testbed.machine.capabilities import Capabilities
from netbench.testbed.network import network_of
from netbench.units import counted

SIMULATOR = "sim"
REQUESTS = ("local", "local:native", "local:guest", "local:guest-real", SIMULATOR)
"""Values of `--testbed`. local: the best `local:` testbed for this machine and run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """testbed: one of `records.TESTBEDS`. reason: one line for the person who waits."""

    testbed: str
    reason: str


def check_request(request: str) -> None:
    """Raises UsageError naming the nearest when `request` is none of `REQUESTS`."""
    if request not in REQUESTS:
        raise UsageError(f'unknown testbed "{request}"; {nearest(request, REQUESTS)}')


def choose(request: str, machine: Capabilities, num_ranks: int, compute: str = VIRTUAL) -> Choice:
    """The testbed for `num_ranks` ranks on `host`. Raises TestbedError with what to install.

    compute: `Plan.compute`. Real computation needs real time: UsageError for virtual time.
    """
    check_request(request)
    if compute != VIRTUAL and request in ("local", "local:guest"):
        return _real_time(request, machine, compute)
    if request == SIMULATOR:
        return Choice(testbed="sim", reason="no ranks are started, no network is shaped")
    if request == "local:native":
        return _native(machine)
    if request == "local:guest":
        return _guest_virtual(machine)
    if request == "local:guest-real":
        return _guest_real(machine)
    if machine.guest_kernel is not None and machine.guest_tmpdir is not None:
        return _guest_virtual(machine)
    if machine.is_root and machine.has_netem and num_ranks <= machine.num_cores:
        return _native(machine)
    raise TestbedError(
        f"no local testbed can run {counted(num_ranks, 'rank')} exactly on this machine: "
        f"{_why_no_guest(machine)}; native needs root, sch_netem and a core per rank "
        f"({_native_state(machine)}, {counted(machine.num_cores, 'core')}). "
        "Build the guest kernel: netbench kernel build. `netbench doctor` says more"
    )


def _real_time(request: str, machine: Capabilities, compute: str) -> Choice:
    if request == "local:guest":
        raise UsageError(
            f"local:guest runs in virtual time, in which what is computed (by {compute}) would "
            "take none; use --testbed local:guest-real, or leave out --compute and --command"
        )
    if machine.is_root and machine.has_netem:
        return _native(machine)
    return _guest_real(machine)


PERSISTENT_REQUESTS = ("local", "local:native", "local:guest-real")
"""Testbeds of a persistent network. They run in real time, because people type commands."""


def choose_persistent(request: str, machine: Capabilities) -> Choice:
    """Choose the testbed of a persistent network. Raises UsageError, TestbedError."""
    if request == "local:guest":
        raise UsageError(
            "local:guest runs in virtual time: an hour passes while nobody types; "
            "use --testbed local:guest-real"
        )
    if request not in PERSISTENT_REQUESTS:
        raise UsageError(
            f'no persistent network on testbed "{request}"; {nearest(request, PERSISTENT_REQUESTS)}'
        )
    if request == "local:native" or (request == "local" and machine.is_root and machine.has_netem):
        return _native(machine)
    return _guest_real(machine)


def network_doubts(testbed: str, plans: Sequence[Experiment]) -> tuple[str, ...]:
    """Reasons why `testbed` may not deliver the plans' networks, by measurement."""
    found = dict.fromkeys(network_doubt(testbed, *network_of(plan, testbed)) for plan in plans)
    return tuple(reason for reason in found if reason)


def network_doubt(testbed: str, network: Network, scale: float = 1.0) -> str:
    """Return the reason for one network, or "" where there is none.

    Every node is assumed to send at once, at the highest rate and the longest delay.
    """
    if network.num_nodes < 2:
        return ""
    return fidelity_warning(
        read_cells(cells_path()),
        testbed=testbed,
        num_flows=network.num_nodes,
        bandwidth_bps=_highest_bps(network) / scale,
        one_way_delay_s=max(link.one_way_delay_s for link in changed_links(network, "all")),
    )


def _highest_bps(network: Network) -> float:
    """Return the highest limited rate, or 0 if no rate is limited."""
    rates = [link.bandwidth_bps for link in changed_links(network, "all")]
    rates += nic_caps_bps(network)
    return max((rate for rate in rates if math.isfinite(rate)), default=0.0)


def _native(machine: Capabilities) -> Choice:
    if not (machine.is_root and machine.has_netem):
        raise TestbedError(
            f"local:native needs root and the sch_netem qdisc, found {_native_state(machine)}; "
            "use --testbed local:guest"
        )
    return Choice(
        testbed="native", reason=f"this kernel has netem; {counted(machine.num_cores, 'core')}"
    )


def _guest_virtual(machine: Capabilities) -> Choice:
    if machine.guest_kernel is None or machine.guest_tmpdir is None:
        raise TestbedError(f"local:guest cannot start: {_why_no_guest(machine)}")
    return Choice(
        testbed="guest-virtual",
        reason="guest kernel in virtual time: its clock stops while the CPU works, so "
        f"{machine.num_cores} cores are as exact as one per rank",
    )


def _guest_real(machine: Capabilities) -> Choice:
    if machine.guest_kernel is None and machine.packaged_kernel is None:
        raise TestbedError(
            "local:guest-real needs a User-Mode Linux kernel; run `netbench kernel build`, "
            "or install Debian's package user-mode-linux"
        )
    return Choice(
        testbed="guest-real",
        reason=f"guest kernel in real time: exact only while {machine.num_cores} cores keep up",
    )


def _why_no_guest(machine: Capabilities) -> str:
    if machine.guest_kernel is None:
        return "the guest kernel is not built; run: netbench kernel build"
    return "no directory allows executable mappings (all are mounted noexec); set TMPDIR to one"


def _native_state(machine: Capabilities) -> str:
    user = "root" if machine.is_root else "not root"
    return f"{user}, {'netem' if machine.has_netem else f'no netem ({machine.netem_error})'}"
