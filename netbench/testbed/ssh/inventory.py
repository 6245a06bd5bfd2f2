"""Inventory files: the hosts to give a network to, and how to log in there.

A host is written out (`address:` and login), or is an argument of `ssh`, which OpenSSH itself
resolves (`netbench.testbed.ssh.openssh`).
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import pwd
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from netbench.errors import TestbedError, UsageError
from netbench.scenario.schema import NAME, Section
from netbench.scenario.source import SourceFile, read_source, shown_path
from netbench.scenario.validate import validate
from netbench.testbed.ssh import openssh
from netbench.testbed.ssh.host import SSH_PORT, Host
from netbench.testbed.ssh.slurm import SLURM, job_hosts
from netbench.units import counted

KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
"""Default files of OpenSSH for host keys."""

MAX_JUMPS = 8
"""Most jump hosts in front of a host; more are taken for a loop in the OpenSSH config."""

HOP = re.compile(
    r"(ssh://)?((?P<user>[^@]+)@)?(\[(?P<bracketed>[^]]+)]|(?P<host>[^:@]+))(:(?P<port>\d+))?"
)
"""Syntax of a jump host in OpenSSH's ProxyJump."""

ROUTES, VXLAN = "routes", "vxlan"
"""Ways to join nodes of several hosts."""

NODE_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
"""Default addresses of nodes that share hosts: those of benchmarks of networks (RFC 2544)."""

HOST_PREFIX = 24
"""Prefix length of the addresses of one host's nodes."""

MAX_NODES = 250
"""Most nodes of a host: what fits into its addresses."""

MIN_NODES = 2
"""Nodes of this machine if there is no scenario to tell."""

LOCALHOST = "localhost"
"""Alias of this machine, which is reached without SSH."""

MAX_INTERFACE_CHARACTERS = 15
"""Longest name of an interface: IFNAMSIZ - 1 of linux/if.h."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Hosts of an inventory file, in order.

    known_hosts: files with their host keys. overlay: how nodes of several hosts are joined.
    node_network: addresses of the nodes that share hosts; each host gets a /24 of it.
    """

    path: Path
    hosts: tuple[Host, ...]
    known_hosts: tuple[Path, ...]
    overlay: str = ROUTES
    node_network: ipaddress.IPv4Network = NODE_NETWORK

    @property
    def is_divided(self) -> bool:
        """Nodes are namespaces of the hosts: some host has several of them."""
        return any(host.nodes != 1 for host in self.hosts)

    @property
    def num_nodes(self) -> int:
        """Number of nodes; at least 2 if there are as many as the scenario has."""
        return sum(host.nodes or MIN_NODES for host in self.hosts)

    def first(self, count: int) -> tuple[Host, ...]:
        """Return the hosts of `count` nodes, each with the number of those nodes that it has.

        Raises UsageError if there are fewer.
        """
        found: list[Host] = []
        left = count
        for host in self.hosts:
            if left > 0:
                found.append(replace(host, nodes=min(host.nodes or left, left)))
                left -= found[-1].nodes
        if left > 0:
            have = counted(len(self.hosts), "host")
            have += f" with {counted(self.num_nodes, 'node')}" if self.is_divided else ""
            raise UsageError(
                f"{shown_path(self.path)}: has {have}, the scenario needs {count}; "
                f"add {left}, or take nodes out of the scenario"
            )
        return tuple(found)

    def one_node_each(self) -> None:
        """Raises UsageError if hosts have several nodes, which only `netbench run` makes."""
        if self.is_divided:
            raise UsageError(
                f"{shown_path(self.path)}: has hosts with several nodes, which exist only while "
                "`netbench run` or `netbench doctor` needs them; take an inventory without `nodes:`"
            )


def load_inventory(path: Path) -> Inventory:
    """Read an inventory file, without connecting or looking up names.

    The path `slurm:` stands for the hosts of the Slurm job that this process is in.
    Raises ScenarioError with file, line and key, what was found and what was expected.
    """
    if str(path) == SLURM:
        source = SourceFile(path=path, data={"hosts": list(job_hosts())}, root=None)
        return _Reader(source, validate(source, InventoryForm), sys.executable).inventory()
    if not path.exists():
        raise UsageError(f"{path}: no such file; give the path of an inventory (YAML)")
    source = read_source(path)
    return _Reader(source, validate(source, InventoryForm)).inventory()


def ssh_ports(hosts: Sequence[Host]) -> tuple[int, ...]:
    """Return the ports of SSH on the hosts and on their jump hosts; always includes port 22."""
    ports = {SSH_PORT}
    for first in hosts:
        host: Host | None = first
        while host is not None:
            ports.add(host.port)
            host = host.jump
    return tuple(sorted(ports))


def inventory_json_schema() -> dict[str, Any]:
    """Return the JSON schema of an inventory file, for editors."""
    schema = InventoryForm.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _word(pattern: str, what: str) -> AfterValidator:
    """Accept what matches `pattern`; else the value is not `what`."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f'"{value}" is not {what}')
        return value

    return AfterValidator(check)


def _ip(value: str) -> str:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(
            f'"{value}" is not an IPv4 or IPv6 address; write e.g. "10.0.0.5"'
        ) from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f'"{value}" is not an address of one host; write e.g. "10.0.0.5"')
    return str(address)


def _node_network(value: str) -> str:
    try:
        network = ipaddress.IPv4Network(value)
    except ValueError as error:
        raise ValueError(
            f'"{value}" is not an IPv4 network ({error}); write e.g. "{NODE_NETWORK}"'
        ) from None
    if network.prefixlen > HOST_PREFIX or not network.is_private:
        raise ValueError(
            f'"{value}" has to be private, with a /{HOST_PREFIX} for each host; write e.g. '
            f'"{NODE_NETWORK}"'
        )
    return value


Address = Annotated[
    str, _word(r"[^\s@/-][^\s@/]*", "an address; write a name, an IPv4 or an IPv6 address")
]
User = Annotated[str, _word(r"[^\s@:/-][^\s@:/]*", 'a user; write e.g. "ubuntu"')]
IpAddress = Annotated[str, AfterValidator(_ip)]
NodeNetwork = Annotated[str, AfterValidator(_node_network)]
Interface = Annotated[
    str,
    _word(
        rf"[^\s/]{{1,{MAX_INTERFACE_CHARACTERS}}}",
        'an interface; write e.g. "ens6" (`ip link` on the host lists them)',
    ),
]
Alias = Annotated[str, _word(r"[^\s-]\S*", "a host; write an alias or USER@HOST, as after `ssh`")]
AgentPath = Annotated[str, _word(r"/[\w./-]+\.zip", "the path of a zip on the host")]
Port = Annotated[int, Field(ge=1, le=65535)]


def _host_form(value: Any) -> str:
    return "form:host" if isinstance(value, Mapping) else "form:alias"


def _list_form(value: Any) -> str:
    return "form:several" if isinstance(value, list) else "form:one"


class LoginForm(Section):
    """A login. jump: hosts in between, in the syntax of OpenSSH's ProxyJump; `none` for none."""

    user: User | None = Field(default=None, examples=["ubuntu"])
    port: Port | None = Field(default=None, examples=["22"])
    key: str | None = Field(default=None, min_length=1, examples=["~/.ssh/id_ed25519"])
    agent: bool | None = None
    jump: (
        Annotated[
            Annotated[Alias, Tag("form:alias")] | Annotated[JumpForm, Tag("form:host")],
            Discriminator(_host_form),
        ]
        | None
    ) = None


class JumpForm(LoginForm):
    """A host on the way."""

    address: Address = Field(examples=["bastion.example.org"])
    known_as: str | None = Field(default=None, min_length=1)


class HostForm(LoginForm):
    """A machine of the network: `address`, or `alias` of the OpenSSH config."""

    address: Address | None = Field(default=None, examples=["10.0.0.5"])
    alias: Alias | None = Field(default=None, examples=["gpu-1"])
    name: str | None = Field(default=None, pattern=NAME, examples=["gpu-1"])
    data_address: (
        Annotated[
            Annotated[IpAddress, Tag("form:one")]
            | Annotated[list[IpAddress], Field(min_length=1), Tag("form:several")],
            Discriminator(_list_form),
        ]
        | None
    ) = None
    interface: Interface | None = Field(default=None, examples=["ens6"])
    nodes: int | None = Field(default=None, ge=1, le=MAX_NODES, examples=["8"])
    sudo: bool | None = None
    python: str | None = Field(default=None, min_length=1, examples=["/usr/bin/python3.12"])
    agent_path: AgentPath | None = Field(
        default=None, examples=["/usr/local/lib/netbench/agent.zip"]
    )
    known_as: str | None = Field(default=None, min_length=1)


class SshForm(LoginForm):
    """Defaults of all hosts."""

    sudo: bool = True
    python: str = Field(default="python3", min_length=1)
    agent_path: AgentPath = ""
    known_hosts: str | None = Field(default=None, examples=["~/.ssh/known_hosts"])
    config: str | None = Field(default=None, examples=["~/.ssh/config"])


class InventoryForm(Section):
    """An inventory file."""

    ssh: SshForm = Field(default=SshForm())
    hosts: list[
        Annotated[
            Annotated[Alias, Tag("form:alias")] | Annotated[HostForm, Tag("form:host")],
            Discriminator(_host_form),
        ]
    ] = Field(min_length=1, examples=["[{address: 10.0.0.5, user: ubuntu}]"])
    overlay: Literal["routes", "vxlan"] = "routes"
    node_network: NodeNetwork = str(NODE_NETWORK)


def _own_name() -> str:
    """Return the user that runs this process, by its effective number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run as a user without a name
        return str(os.geteuid())


Keys = tuple[str | int, ...]
JumpChoice = str | JumpForm | None


class _Reader:
    def __init__(self, source: SourceFile, form: InventoryForm, python: str = "") -> None:
        """python: the interpreter of hosts for which the file names none."""
        self._source = source
        self._form = form
        self._python = python
        self._config = self._file(("ssh", "config"), form.ssh.config)
        self._asked_known_hosts: list[Path] = []

    def inventory(self) -> Inventory:
        """Return all hosts and the files of their keys."""
        hosts: list[Host] = []
        for index, form in enumerate(self._form.hosts):
            if isinstance(form, str):
                form = HostForm(alias=form)
            hosts.append(self._host(("hosts", index), form))
            self._check_new(("hosts", index), hosts)
        network = ipaddress.IPv4Network(self._form.node_network)
        self._check_nodes(hosts, network)
        given = self._file(("ssh", "known_hosts"), self._form.ssh.known_hosts)
        usual = [path.expanduser() for path in KNOWN_HOSTS]
        files = [given] if given else [*usual, *self._asked_known_hosts]
        return Inventory(
            path=self._source.path,
            hosts=tuple(hosts),
            known_hosts=tuple(dict.fromkeys(files)),
            overlay=self._form.overlay,
            node_network=network,
        )

    def _check_nodes(self, hosts: Sequence[Host], network: ipaddress.IPv4Network) -> None:
        """Raise if nodes that share hosts cannot be reached, or have too few addresses."""
        if all(host.nodes == 1 for host in hosts):
            return
        most = 2 ** (HOST_PREFIX - network.prefixlen)
        if len(hosts) > most:
            raise self._source.error(
                ("node_network",), f"has addresses for {counted(most, 'host')}, not {len(hosts)}"
            )
        for index, host in enumerate(hosts):
            addresses = [ipaddress.ip_address(address) for address in host.data_addresses]
            is_routed = len(hosts) > 1 and self._form.overlay == ROUTES
            if is_routed and addresses and addresses[0].version != 4:
                raise self._source.error(
                    ("hosts", index, "data_address"),
                    f"is {addresses[0]}; nodes are joined by IPv4 routes: put an IPv4 address "
                    'first, or write "overlay: vxlan"',
                )
            if any(address in network for address in addresses):
                raise self._source.error(
                    ("hosts", index, "data_address"),
                    f"is in {network}, the network of the nodes; name another `node_network`",
                )

    def _host(self, keys: Keys, form: HostForm) -> Host:
        """Convert an entry. Defaults come from `ssh:`, or from OpenSSH."""
        defaults = self._form.ssh
        jump = form.jump or defaults.jump
        if form.alias is not None and form.address is not None:
            raise self._source.error(keys, "has both address and alias; keep one of the two")
        if form.alias == LOCALHOST:
            return self._this_machine(keys, form)
        if form.alias is not None:
            login = self._asked(keys, form.alias, self._options(keys, form), jump)
            agent = defaults.agent if form.agent is None else form.agent
            login = login if agent is None else replace(login, use_agent=agent)
        elif form.address is not None:
            login = self._written(keys, form.address, form, jump)
        else:
            raise self._source.error(
                keys, 'has neither address nor alias; write e.g. "address: 10.0.0.5"'
            )
        addresses = form.data_address or []
        return replace(
            login,
            name=form.name or login.name,
            sudo=defaults.sudo if form.sudo is None else form.sudo,
            python=form.python or self._default_python(self._python),
            agent_path=form.agent_path or defaults.agent_path,
            data_addresses=(addresses,) if isinstance(addresses, str) else tuple(addresses),
            interface=form.interface or "",
            known_as=form.known_as or login.known_as,
            nodes=form.nodes or 1,
        )

    def _default_python(self, otherwise: str) -> str:
        """Return the interpreter for hosts that name none. otherwise: "" = python3."""
        given = self._form.ssh.python
        return given if "python" in self._form.ssh.model_fields_set else otherwise or given

    def _this_machine(self, keys: Keys, form: HostForm) -> Host:
        """Convert `localhost`: no login. If it is the only host, it needs no address."""
        defaults, is_alone = self._form.ssh, len(self._form.hosts) == 1
        for key in ("user", "port", "key", "jump", "known_as"):
            if getattr(form, key) is not None:
                raise self._source.error(
                    (*keys, key),
                    f"is for SSH, and {LOCALHOST} is this machine; write `address: {LOCALHOST}` to "
                    "log in to its sshd",
                )
        addresses = form.data_address or (["127.0.0.1"] if is_alone else [])
        if not addresses:
            raise self._source.error(
                keys,
                f"{LOCALHOST} needs its address on the network of the others (`data_address:`)",
            )
        is_on_loopback = is_alone and form.data_address is None and form.interface is None
        return Host(
            name=form.name or LOCALHOST,
            address=LOCALHOST,
            user=_own_name(),
            sudo=defaults.sudo if form.sudo is None else form.sudo,
            python=form.python or self._default_python(sys.executable),
            agent_path=form.agent_path or defaults.agent_path,
            data_addresses=(addresses,) if isinstance(addresses, str) else tuple(addresses),
            interface=form.interface or ("lo" if is_on_loopback else ""),
            nodes=form.nodes or (0 if is_alone else 1),
            is_local=True,
        )

    def _written(self, keys: Keys, address: str, form: LoginForm, jump: JumpChoice) -> Host:
        """Convert a host that the file describes itself."""
        defaults = self._form.ssh
        key = self._key(keys, form)
        agent = defaults.agent if form.agent is None else form.agent
        return Host(
            name=address,
            address=address,
            port=form.port or defaults.port or SSH_PORT,
            user=form.user or defaults.user or getpass.getuser(),
            keys=(key,) if key else (),
            use_agent=agent is not False,
            jump=self._jump(keys, jump),
        )

    def _options(self, keys: Keys, form: LoginForm) -> list[str]:
        """Return the login of the file as options of `ssh`."""
        defaults, key = self._form.ssh, self._key(keys, form)
        user, port = form.user or defaults.user, form.port or defaults.port
        options = ["-l", user] if user else []
        options += ["-p", str(port)] if port else []
        return options + (["-i", str(key)] if key else [])

    def _asked(
        self, keys: Keys, name: str, options: Sequence[str], jump: JumpChoice, depth: int = 0
    ) -> Host:
        """Return the host that `ssh options name` would reach."""
        if jump is not None:
            options = [*options, "-J", jump if isinstance(jump, str) else "none"]
        try:
            found = openssh.look_up(name, options, self._config)
        except TestbedError as error:
            raise self._source.error(keys, f'"{name}" {error}') from error
        self._asked_known_hosts += found.known_hosts
        jump = found.jump if isinstance(jump, str | None) else jump
        return replace(found.host, jump=self._jump(keys, jump, depth))

    def _jump(self, keys: Keys, jump: JumpChoice, depth: int = 0) -> Host | None:
        """Return the last jump host; it refers to the one before it."""
        if jump in (None, "", "none"):
            return None
        if isinstance(jump, JumpForm):
            before = self._written((*keys, "jump"), jump.address, jump, jump.jump)
            return replace(before, known_as=jump.known_as or "")
        assert jump is not None
        if depth == MAX_JUMPS:
            raise self._source.error(
                keys, f'is behind more than {MAX_JUMPS} jump hosts, the last "{jump}": a loop?'
            )
        first, _, last = jump.rpartition(",")
        hop = HOP.fullmatch(last)
        if hop is None:
            raise self._source.error(keys, f'jumps to "{last}"; write [USER@]HOST[:PORT]')
        options = ["-l", hop["user"]] if hop["user"] else []
        options += ["-p", hop["port"]] if hop["port"] else []
        name = hop["bracketed"] or hop["host"]
        return self._asked(keys, name, options, first or None, depth + 1)

    def _key(self, keys: Keys, form: LoginForm) -> Path | None:
        """Return the private key of a login. Reject a public key given by mistake."""
        if form.key is None:
            key = self._file(("ssh", "key"), self._form.ssh.key)
            keys = ("ssh",)
        else:
            key = self._file((*keys, "key"), form.key)
        if key is not None and key.suffix == ".pub":
            raise self._source.error((*keys, "key"), f"is the public key {key}; give the private")
        return key

    def _file(self, keys: Keys, name: str | None) -> Path | None:
        """Return a file that must exist. A relative path is relative to the inventory."""
        if name is None:
            return None
        path = self._source.path.parent / Path(name).expanduser()
        if not path.is_file():
            raise self._source.error(keys, f'"{name}" does not exist (looked for: {path})')
        return path

    def _check_new(self, keys: Keys, hosts: Sequence[Host]) -> None:
        """Raise if the last of `hosts` repeats an earlier one, by name or by address."""
        *before, last = hosts
        for index, other in enumerate(before):
            if other.name == last.name:
                raise self._source.error(
                    keys, f'has the name "{last.name}", as hosts[{index}] has; names must differ'
                )
            if (other.address, other.port, other.jump) == (last.address, last.port, last.jump):
                raise self._source.error(
                    keys,
                    f"is {last.address} port {last.port}, as hosts[{index}] is; a host is one node",
                )
            for address in last.data_addresses:
                if address in other.data_addresses:
                    raise self._source.error(
                        keys,
                        f"has the data_address {address}, as hosts[{index}] has; each host has its "
                        "own",
                    )
