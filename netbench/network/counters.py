"""Counters of queues in namespaces of this kernel, as often as they are asked for.

`python -m netbench.network.counters INTERFACE NAMESPACE...`, as root, NAMESPACE a file. For every
line of stdin it prints one, JSON: what each namespace answers, in order (`look`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbench.errors import NetworkError
from netbench.network import netlink


def look(namespace: Path, interface: str) -> dict[str, Any]:
    """`at_s` by this kernel's clock and, by class, `leaves` (`netlink.read_leaves`); or `error`."""
    try:
        return {"at_s": time.monotonic(), "leaves": netlink.read_leaves(namespace, interface)}
    except NetworkError as error:
        return {"error": str(error)}


def main(interface: str, namespaces: Sequence[str]) -> None:
    """Until the end of stdin."""
    for _ in sys.stdin:
        print(json.dumps([look(Path(x), interface) for x in namespaces]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
