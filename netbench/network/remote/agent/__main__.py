"""Entry point on the host: one operation per process."""

import sys

from netbench.network.remote.agent.operations import main

if __name__ == "__main__":
    sys.exit(main())
