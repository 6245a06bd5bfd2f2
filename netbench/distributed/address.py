"""Values of `--dask`. Imports nothing, so that every command can check its options."""

import os
from pathlib import Path

LOCAL = "local"
SSH = "ssh"
SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://")
"""Protocols of Dask."""


def parse_address(text: str) -> str | int | Path:
    """Return the address of a scheduler, the number of workers of a local cluster, or the path of
    an inventory whose hosts shall have a worker each.

    Raises ValueError.
    """
    kind, colon, number = text.partition(":")
    if kind == LOCAL:
        if not colon:
            return len(os.sched_getaffinity(0))
        if number.isdecimal() and int(number) > 0:
            return int(number)
    elif kind == SSH and number:
        return Path(number)
    elif text.startswith(SCHEMES):
        return text
    raise ValueError(
        f'"{text}" is not the address of a Dask scheduler; write e.g. tcp://10.0.0.1:8786, '
        "local:4 for 4 workers of this machine, or ssh:hosts.yaml for one on each host"
    )
