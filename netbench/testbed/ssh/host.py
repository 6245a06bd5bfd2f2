"""A machine of an inventory."""

from dataclasses import dataclass
from pathlib import Path

SSH_PORT = 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine and how to log in there.

    keys: private keys to try; none = OpenSSH's default ones. use_agent: also try the keys of the
    SSH agent at agent_socket (None = SSH_AUTH_SOCK). only_named: of the agent's keys, try only
    those whose public half is beside a key of `keys`. jump: host through which to connect. sudo:
    `user` may use sudo without a password (root needs none). data_addresses: IPv4 and IPv6 on the
    network to shape; none = the address at which the host accepts SSH, as the host sees it.
    interface: "" = the one that has the first data address. agent_path: of an agent that root has
    installed there, "" = it is sent. known_as: name in known_hosts; "" =
    address and port. nodes: number of nodes on it; 0 = as many as the scenario has. is_local: it is
    this machine, reached without SSH.
    """

    name: str
    address: str
    user: str
    port: int = SSH_PORT
    keys: tuple[Path, ...] = ()
    use_agent: bool = True
    agent_socket: Path | None = None
    only_named: bool = False
    jump: "Host | None" = None
    sudo: bool = True
    python: str = "python3"
    data_addresses: tuple[str, ...] = ()
    interface: str = ""
    agent_path: str = ""
    known_as: str = ""
    nodes: int = 1
    is_local: bool = False

    @property
    def login(self) -> str:
        """`user@address:port`."""
        if self.is_local:
            return "this machine"
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"
