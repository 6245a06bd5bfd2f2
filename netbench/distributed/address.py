"""Values of `--dask`. Imports nothing, so that every command can check its options."""

import os

LOCAL = "local"
SCHEMES = ("tcp://", "tls://", "ws://", "wss://", "ucx://")
"""Protocols of Dask."""


def parse_address(text: str) -> str | int:
    """Return the address of a scheduler, or the number of workers of a local cluster.

    Raises ValueError.
    """
    kind, colon, number = text.partition(":")
    if kind == LOCAL:
        if not colon:
            return len(os.sched_getaffinity(0))
        if number.isdecimal() and int(number) > 0:
            return int(number)
    elif text.startswith(SCHEMES):
        return text
    raise ValueError(
        f'"{text}" is not the address of a Dask scheduler; write e.g. tcp://10.0.0.1:8786, or '
        "local:4 for 4 workers of this machine"
    )
