"""A network that `netbench net apply` keeps applied on this machine until its process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from netbench.testbed.guest.boot import HANG_S

NETBENCH = (sys.executable, "-m", "netbench")
SCENARIO = """
name: {name}
regions: [Campus, Garage]
nodes:
  - {{region: Campus, count: 2, device: V100}}
  - {{region: Garage, count: 2, device: V100}}
network:
  sharing: trunk
  inside: {{one_way_delay: 1ms, bandwidth: 100Mbit}}
  links:
    - {{between: [Campus, Garage], one_way_delay: 40ms, bandwidth: 20Mbit}}
devices: {{V100: {{flops: 10TFLOPS, memory: 16GB, source: made up}}}}
workload: {{layers: 8, hidden: 512, heads: 8, sequence: 1024, batch: 16}}
"""


class Daemon:
    """A process that keeps a network of its own name open."""

    def __init__(self, directory: Path) -> None:
        self.name = f"kept-{os.getpid()}-{time.monotonic_ns()}"
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        scenario = directory / f"{self.name}.yaml"
        scenario.write_text(SCENARIO.format(name=self.name))
        self.process = subprocess.Popen(
            [*NETBENCH, "net", "apply", str(scenario), "--testbed", "local:guest-real"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(self.scratch), "PYTHONUNBUFFERED": "1"},
        )
        self.printed = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if "Ctrl-C" in line:
                return
        raise AssertionError(self.printed)

    def shell(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        """`netbench net shell` from a script."""
        done = subprocess.run(
            [*NETBENCH, "net", "shell", "--network", self.name, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Exit status, and what it printed after the signal."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, rest
