"""Examine the hosts of an inventory: what each can do, and whether they reach each other."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from netbench.errors import NetbenchError, TestbedError
from netbench.network.nodes import at_once, split
from netbench.network.probing.measure import Endpoints
from netbench.network.remote.facts import Facts
from netbench.network.remote.pairs import unreachable
from netbench.network.remote.preflight import Deviation, preflight
from netbench.testbed.cluster.certificate import FOLDER
from netbench.testbed.cluster.players import Players
from netbench.testbed.cluster.testbed import check_versions
from netbench.testbed.interface import STORE_PORT
from netbench.testbed.ssh.inventory import Inventory
from netbench.testbed.ssh.nodes import HostNode
from netbench.units import counted, format_bytes

DEADLINE_S = 180.0
"""Deadline for all hosts to say what they have, seconds. torch may come from a slow file system."""

DEFAULT_MTU_BYTES = 1500
"""MTU of the nodes that share hosts, bytes: a scenario's, unless it says another."""

PROBE = """\
import glob, json, platform, sys
found = {"python": platform.python_version(), "executable": sys.executable, "torch": None,
         "cuda": "", "nccl": "", "gpus": [], "error": "", "runs": glob.glob(sys.argv[1] + "*")}
try:
    import numpy, torch
    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
"""Program for the Python that the inventory names. Argument: the beginning of folders of runs."""

UNKNOWN = "-"

COLUMNS = (
    "login", "nodes", "Python", "torch", "CUDA", "NCCL", "GPUs", "root", "netem", "interface",
    "MTU", "free", "clock", "runs",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """Result of `examine`. cells: by host, then by `COLUMNS`. deviations: by index into `names`.

    names: of the hosts, then of the nodes that share hosts. num_nodes: of all hosts. versions: why
    unequal versions exclude a run, "" = they do not. pairs: what ordered pairs of nodes failed at,
    also in `deviations`; None = not tried, for a host is not known well enough.
    """

    cells: Mapping[str, Mapping[str, str]]
    names: tuple[str, ...]
    num_nodes: int
    deviations: tuple[Deviation, ...]
    versions: str
    pairs: tuple[Deviation, ...] | None

    @property
    def can_run(self) -> bool:
        return not self.versions and not any(found.is_error for found in self.deviations)


def examine(inventory: Inventory, step: Callable[[str], None] = lambda name: None) -> Examination:
    """Examine all hosts of an inventory. step: gets each step's name.

    Nodes that share hosts are made meanwhile, and removed. Nothing that is started stays.
    """
    with Players(inventory, inventory.num_nodes, step) as players:
        hosts, names = players.hosts, players.host_names
        step("logging in")
        clocks = at_once({n: partial(_clock, hosts[n]) for n in range(len(names))}, DEADLINE_S)
        reached, lost = split(clocks)
        step("asking for Python, torch and GPUs")
        probes = at_once({n: partial(_probe, hosts[n]) for n in reached}, DEADLINE_S)
        all_facts = players.host_facts() if reached else {}
        facts, unknown = split({node: all_facts[node] for node in reached})
        deviations = [*_errors(lost), *_errors(split(probes)[1]), *_errors(unknown)]
        deviations += preflight(None, {}, facts, replace=True)
        pairs = None
        is_bad = players.is_divided and any(found.is_error for found in deviations)
        if len(facts) == len(names) and not is_bad:
            pairs, more = _pairs(players, facts, step)
            deviations += [*(pairs or ()), *more]
    found, _ = split(probes)
    usable = {names[node]: probe for node, probe in found.items() if probe["torch"]}
    deviations += [_no_torch(node, probe) for node, probe in found.items() if not probe["torch"]]
    deviations += _uneven(players.counts, found)
    try:
        check_versions(usable, needs_torch=True)
        versions = ""
    except TestbedError as error:
        versions = str(error)
    cells = {
        name: _cells(clocks[node], found.get(node), facts.get(node))
        | {"nodes": str(players.counts[node])}
        for node, name in enumerate(names)
    }
    return Examination(
        cells=cells,
        names=(*names, *players.names) if players.is_divided else names,
        num_nodes=len(players.names),
        deviations=tuple(deviations),
        versions=versions,
        pairs=pairs,
    )


def _pairs(
    players: Players, facts: Mapping[int, Facts], step: Callable[[str], None]
) -> tuple[tuple[Deviation, ...] | None, list[Deviation]]:
    """Try every ordered pair of nodes. Return what failed, and other deviations."""
    if not players.is_divided:
        step("trying every ordered pair of hosts")
        return unreachable(_endpoints(players, facts), players.names, STORE_PORT), []
    first = len(players.host_names)  # index of the first node in `Examination.names`
    try:
        with players.divided(DEFAULT_MTU_BYTES):
            found, unknown = split(players.fleet.facts())
            deviations = [*_errors(unknown), *preflight(None, {}, found)]
            pairs = None
            if not unknown:
                step("trying every ordered pair of nodes")
                pairs = unreachable(_endpoints(players, found), players.names, STORE_PORT)
    except NetbenchError as error:
        return None, [Deviation(node=0, text=str(error), is_error=True)]
    hint = [Deviation(node=0, text=players.hint, is_error=False)] if pairs and players.hint else []
    return (
        None if pairs is None else tuple(replace(x, node=x.node + first) for x in pairs),
        [replace(x, node=x.node + first) for x in deviations] + hint,
    )


def _endpoints(players: Players, facts: Mapping[int, Facts]) -> Endpoints:
    return Endpoints(
        addresses=[facts[node].addresses for node in range(len(players.names))],
        nodes=players.nodes,
        python=[login.python for login in players.logins],
    )


def _uneven(counts: Sequence[int], probes: Mapping[int, Mapping[str, Any]]) -> list[Deviation]:
    """Name hosts whose GPUs cannot be split evenly. counts: nodes of each host."""
    text = "has {gpus} for {nodes}: some nodes have fewer than others, or none"
    return [
        Deviation(
            node=host,
            text=text.format(
                gpus=counted(len(probe["gpus"]), "GPU"), nodes=counted(counts[host], "node")
            ),
            is_error=False,
        )
        for host, probe in probes.items()
        if len(probe["gpus"]) % counts[host]
    ]


def _errors(failures: Mapping[int, Exception]) -> list[Deviation]:
    return [Deviation(node=n, text=str(error), is_error=True) for n, error in failures.items()]


def _no_torch(node: int, probe: Mapping[str, Any]) -> Deviation:
    text = (
        f"{probe['executable']} cannot import torch ({probe['error']}); install it there, or name "
        "the environment that has it in the inventory (`python:`); only scripts run without"
    )
    return Deviation(node=node, text=text, is_error=True)


def _clock(host: HostNode) -> float:
    """Return the host's clock minus that of this machine, seconds: to half a round trip."""
    before_s = time.time()
    status, stdout, stderr = host.run(["date", "+%s.%N"], timeout_s=DEADLINE_S)
    if status:
        raise TestbedError(f"`date` failed: {stderr.strip()}")
    return float(stdout) - (before_s + time.time()) / 2


def _probe(host: HostNode) -> dict[str, Any]:
    status, stdout, stderr = host.run([host.python, "-c", PROBE, FOLDER], timeout_s=DEADLINE_S)
    if status:
        raise TestbedError(f"`{host.python}` failed: {' '.join(stderr.split()[-20:])}")
    found: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return found


def _cells(
    clock: float | Exception, found: Mapping[str, Any] | None, facts: Facts | None
) -> dict[str, str]:
    cells = dict.fromkeys(COLUMNS, UNKNOWN)
    if isinstance(clock, Exception):
        return cells | {"login": "failed"}
    cells |= {"login": "yes", "clock": f"{clock:+.1f} s"}
    if found is not None:
        gpus = found["gpus"]
        cells |= {
            "Python": found["python"],
            "torch": found["torch"] or "missing",
            "CUDA": found["cuda"] or "none",
            "NCCL": found["nccl"] or "none",
            "GPUs": f"{len(gpus)} x {gpus[0]}" if gpus else "none",
            "runs": str(len(found["runs"])),
        }
    cells["root"] = "no" if facts is None else "yes"
    if facts is not None:
        free = [number for number in facts.free_bytes.values() if number is not None]
        cells |= {
            "netem": "no" if {"htb", "netem", "u32", ""} & facts.lacking.keys() else "yes",
            "interface": facts.interface or UNKNOWN,
            "MTU": str(facts.mtu_bytes or UNKNOWN),
            "free": format_bytes(min(free)) if free else UNKNOWN,
        }
    return cells
