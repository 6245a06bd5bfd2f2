"""Entry point on the host."""

import sys

from netbench.network.remote.agent.operations import main

if __name__ == "__main__":
    sys.exit(main())
