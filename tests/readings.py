"""Output of measurement tools, as they print it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AWS = Path(__file__).parents[1] / "results" / "published" / "aws_region_links_directed.csv"

LINUX_PING = """\
PING 10.1.0.7 (10.1.0.7) 56(84) bytes of data.

--- 10.1.0.7 ping statistics ---
20 packets transmitted, 19 received, 5% packet loss, time 19029ms
rtt min/avg/max/mdev = 22.104/22.187/22.951/0.174 ms
"""


def iperf3(*, reverse: int = 0, received_bps: float = 941.4e6) -> dict[str, Any]:
    """The parts of `iperf3 -J` (3.12) that are read, with neighbours that must not be."""
    return {
        "start": {
            "connected": [
                {"socket": 5, "local_host": "10.1.0.2", "local_port": 40004,
                 "remote_host": "10.1.0.7", "remote_port": 5201},
            ],
            "version": "iperf 3.12",
            "tcp_mss_default": 1448,
            "test_start": {
                "protocol": "TCP", "num_streams": 2, "duration": 10, "reverse": reverse,
            },
        },
        "intervals": [],
        "end": {
            "streams": [
                {"sender": {"socket": 5, "max_rtt": 31000, "min_rtt": 22400, "mean_rtt": 26000}},
                {"sender": {"socket": 7, "max_rtt": 31000, "min_rtt": 22200, "mean_rtt": 26000}},
            ],
            "sum_sent": {"bits_per_second": 955.0e6, "retransmits": 3},
            "sum_received": {"bits_per_second": received_bps},
        },
    }  # fmt: skip
