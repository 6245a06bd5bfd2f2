"""The processes that netbench starts on nodes: `python -m netbench.trainers [OPTION ...]`."""

import argparse
import gc
import os
import sys
from pathlib import Path

from netbench.trainers.protocol import MessageChannel


def main() -> None:
    """Run one rank on standard input and output, or a fork server on a Unix socket."""
    parser = argparse.ArgumentParser(prog="python -m netbench.trainers", description=__doc__)
    parser.add_argument(
        "--fork-server",
        nargs="+",
        metavar=("SOCKET", "MODULE"),
        help="import modules, listen on this Unix socket and fork one rank per connection",
    )
    parser.add_argument(
        "--command", action="store_true", help="run a script that the controller names as the rank"
    )
    parser.add_argument(
        "--calibrate", action="store_true", help="measure a device for the controller instead"
    )
    parser.add_argument(
        "--node-server",
        nargs=2,
        metavar=("FOLDER", "INTERFACE"),
        help="start the ranks of a host for a controller elsewhere",
    )
    arguments = parser.parse_args()
    if arguments.node_server:
        from netbench.trainers.node_server import serve as serve_node

        folder, interface = arguments.node_server
        sys.exit(serve_node(Path(folder), interface))
    if arguments.calibrate:
        from netbench.trainers.calibrate import run_calibration

        sys.exit(run_calibration(MessageChannel.over_standard_streams()))
    if arguments.command:
        from netbench.trainers.systems.script import serve as serve_command

        # Not sys.exit: a thread may still wait for orders.
        os._exit(serve_command(MessageChannel.over_standard_streams()))
    if arguments.fork_server:
        # Garbage collection would take a fifth of the time of importing torch, and find nothing.
        # `serve` collects once and enables it again.
        gc.disable()
        from netbench.trainers.fork_server import serve

        path, *modules = arguments.fork_server
        serve(Path(path), modules)
    else:
        from netbench.trainers.rank import run_rank

        sys.exit(run_rank(MessageChannel.over_standard_streams()))


if __name__ == "__main__":
    main()
