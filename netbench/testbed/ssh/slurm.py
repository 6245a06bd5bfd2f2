"""Hosts of the Slurm job that this process is in, which `--inventory slurm:` takes."""

import os
import re
import shutil
import subprocess

from netbench.errors import UsageError

SLURM = "slurm:"
"""Path of an inventory that stands for the hosts of the job."""

NODE_LIST = "SLURM_JOB_NODELIST"
"""Variable of a job's processes: its hosts, e.g. "gpu[01-04,07],login1"."""

MAX_HOSTS = 4096

SCONTROL_S = 30.0
"""Deadline of scontrol, seconds."""

_PART = re.compile(r"[^\s,[\]]+(?:\[[\d,-]+\][^\s,[\]]*)*|(?:\[[\d,-]+\][^\s,[\]]*)+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def job_hosts() -> tuple[str, ...]:
    """Return the hosts of this job, in Slurm's order. Raises UsageError outside of a job."""
    text = os.environ.get(NODE_LIST, "")
    if not text:
        raise UsageError(
            f"--inventory {SLURM} takes the hosts of a Slurm job, and this process is in none "
            f"({NODE_LIST} is not set); start it in one, e.g. with "
            "`salloc --nodes=2 netbench run ...`, or give a file"
        )
    scontrol = shutil.which("scontrol")
    return _asked(scontrol, text) if scontrol else expand(text)


def _asked(scontrol: str, text: str) -> tuple[str, ...]:
    command = [scontrol, "show", "hostnames", text]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SCONTROL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"`{' '.join(command)}`: no answer within {SCONTROL_S:g} s") from None
    hosts = tuple(done.stdout.split())
    if done.returncode or not hosts:
        why = " ".join(done.stderr.split()) or "it printed no hosts"
        raise UsageError(f"`{' '.join(command)}` failed: {why}")
    return hosts


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as "gpu[01-02,07],login1": gpu01, gpu02, gpu07, login1.

    Raises UsageError for other syntax, and for more than `MAX_HOSTS`.
    """
    found: list[str] = []
    end = 0
    for part in _PART.finditer(text):
        if text[end : part.start()] != ("," if end else ""):
            break
        found += _expanded(part[0], text)
        end = part.end()
    if end != len(text):
        raise UsageError(
            f'{NODE_LIST} is "{text}", which netbench cannot expand from character {end + 1} on; '
            "put Slurm's `scontrol` on the PATH, which expands every list"
        )
    return tuple(found)


def _expanded(part: str, text: str) -> list[str]:
    """Expand one name, from its first bracket on."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    ranges, _, tail = rest.partition("]")
    numbers = [number for one in ranges.split(",") for number in _numbers(one, text)]
    found = [f"{head}{number}{end}" for number in numbers for end in _expanded(tail, text)]
    if len(found) > MAX_HOSTS:
        raise _too_many(text)
    return found


def _numbers(one: str, text: str) -> list[str]:
    """Return the numbers of "7" or "08-11", as wide as the first of them."""
    found = _RANGE.fullmatch(one)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise UsageError(f'{NODE_LIST} is "{text}", in which "{one}" is not a range such as 01-04')
    first, last = int(found[1]), int(found[2] or found[1])
    if last - first >= MAX_HOSTS:
        raise _too_many(text)
    return [f"{number:0{len(found[1])}d}" for number in range(first, last + 1)]


def _too_many(text: str) -> UsageError:
    return UsageError(f'{NODE_LIST} is "{text}": more than {MAX_HOSTS} hosts')
