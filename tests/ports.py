"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import os
import socket

import pytest

PORTS = range(10_000, 26_000)
"""Below the ephemeral ports: any connection of another test may take one of those meanwhile."""

_NUMBERS = itertools.count(499 * os.getpid())
"""Processes that test side by side begin at different ports."""


def free_port(address: str = "127.0.0.1") -> int:
    """Return a TCP port of `address` that nothing uses, each time another."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            pytest.skip(f"this machine has no {address}: {error}")
    for number in itertools.islice(_NUMBERS, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port of {address} is free")
