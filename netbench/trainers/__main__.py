"""`python -m netbench.trainers [--fork-server SOCKET]`."""

from __future__ import annotations

import argparse
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
    arguments = parser.parse_args()
    if arguments.fork_server:
        from netbench.trainers.fork_server import serve

        serve(arguments.fork_server)
    else:
        from netbench.trainers.rank import run_rank

        sys.exit(run_rank(Channel.over_standard_streams()))


if __name__ == "__main__":
    main()
