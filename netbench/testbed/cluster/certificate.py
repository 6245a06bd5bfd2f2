"""End what a run has left on its hosts, and say what stays: nothing, or what, or unknown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from netbench.errors import TestbedError
from netbench.network.nodes import ALONE, at_once
from netbench.network.remote.deployer import AgentRefused
from netbench.network.remote.fleet import Cleared

if TYPE_CHECKING:
    from netbench.testbed.ssh.machines import Hosts
    from netbench.testbed.ssh.nodes import HostNode

FOLDER = "/tmp/netbench-node-"
"""Private folder of a run on a host, without the token of the run."""

DEADLINE_S = 30.0
"""Deadline for all hosts to be asked, seconds."""

NOTHING = "nothing"

CLEAN = """\
import fcntl, glob, json, os, shutil, signal, sys, time
FOLDER, TOKENS = sys.argv[1], sys.argv[2:]

def has_server(token):
    try:
        folder = os.open(FOLDER + token, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return True
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(folder)

def find():
    pids = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(b"NETBENCH_RUN="):
                pids[int(path.split("/")[2])] = word[13:].decode()
    folders = {path: path[len(FOLDER):] for path in glob.glob(FOLDER + "*")}
    ended = TOKENS or [x for x in {*pids.values(), *folders.values()} if not has_server(x)]
    return [x for x in pids if pids[x] in ended], [x for x in folders if folders[x] in ended]

end_s = time.monotonic() + 10.0
pids, folders = find()
while (pids or folders) and time.monotonic() < end_s:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    time.sleep(0.02)
    pids, folders = find()
print(json.dumps([f"process {pid}" for pid in pids] + [f"folder {path}" for path in folders]))
"""
"""Program for any Python: end the processes and delete the files of runs, and list what stays.

Arguments: the beginning of the names of folders, and tokens of runs; without any, those whose node
server has ended. A server locks its folder.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """Result for one host.

    found: names, e.g. `process 123`. unknown: why it is not known. other: who has the network, if
    it is another run, whose it stays.
    """

    found: tuple[str, ...] = ()
    unknown: str = ""
    other: str = ""

    @property
    def is_good(self) -> bool:
        """Nothing is left of runs that have ended."""
        return not self.found and not self.unknown

    def __str__(self) -> str:
        if self.unknown:
            return f"unknown: {self.unknown}"
        return ", ".join(self.found) or (f"{NOTHING}; {self.other}" if self.other else NOTHING)


def clean(
    hosts: "Hosts",
    nodes: Iterable[int],
    cleared: Mapping[int, Cleared | Exception],
    tokens: Sequence[str] = (),
    stayed: Mapping[int, Sequence[int]] | None = None,
) -> dict[int, Leftovers]:
    """End what runs have left on the hosts of `nodes`, and return what stays.

    cleared: answers of the hosts whose network was to be restored. tokens: of the runs; () = those
    that have ended. stayed: processes that node servers could not end.
    """
    stayed = stayed or {}
    cleans = {node: partial(_clean, hosts[node], tokens) for node in nodes}
    results = at_once(cleans, DEADLINE_S)
    return {
        node: _leftovers(found, cleared.get(node), [f"process {p}" for p in stayed.get(node, ())])
        for node, found in results.items()
    }


def _clean(host: "HostNode", tokens: Sequence[str]) -> list[str]:
    command = [host.python, *ALONE, "-c", CLEAN, FOLDER, *tokens]
    status, stdout, stderr = host.run(command, timeout_s=DEADLINE_S)
    if status:
        raise TestbedError(" ".join(stderr.split()[-20:]))
    names: list[str] = json.loads(stdout)
    return names


def _leftovers(
    found: list[str] | Exception, cleared: Cleared | Exception | None, stayed: Sequence[str]
) -> Leftovers:
    if isinstance(found, Exception):
        return Leftovers(unknown=str(found) or type(found).__name__)
    found = list(dict.fromkeys([*stayed, *found]))
    if isinstance(cleared, AgentRefused):
        return Leftovers(found=tuple(found), other=str(cleared))
    if isinstance(cleared, Exception):
        return Leftovers(unknown=str(cleared) or type(cleared).__name__)
    return Leftovers(found=(*found, *(cleared.notes if cleared else ())))
