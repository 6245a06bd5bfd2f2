"""`python -m netbench.trainers [--fork-server SOCKET | --command | --calibrate]`."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from netbench.trainers.protocol import Channel


def main() -> None:
    """One rank on standard input and output, or a fork server on a Unix socket."""
    parser = argparse.ArgumentParser(prog="python -m netbench.trainers", description=__doc__)
    parser.add_argument(
        "--fork-server",
        type=Path,
        metavar="SOCKET",
        help="listen on this Unix socket and fork one rank per connection",
    )
    parser.add_argument(
        "--command", action="store_true", help="the rank is a script that the controller names"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="measure a device instead, as the controller says"
    )
    arguments = parser.parse_args()
    if arguments.calibrate:
        from netbench.trainers.calibrate import run_calibration

        sys.exit(run_calibration(Channel.over_standard_streams()))
    if arguments.command:
        from netbench.trainers.command import serve as serve_command

        # Not sys.exit: a thread may still wait for orders.
        os._exit(serve_command(Channel.over_standard_streams()))
    if arguments.fork_server:
        # A fifth of the time of importing torch went into looking for garbage, of which there is
        # none; `serve` does it once, and turns it on again.
        gc.disable()
        from netbench.trainers.fork_server import serve

        serve(arguments.fork_server)
    else:
        from netbench.trainers.rank import run_rank

        sys.exit(run_rank(Channel.over_standard_streams()))


if __name__ == "__main__":
    main()
