"""Inventory files: the hosts to give a network to, and how to log in there.

A host is written out (`address:` and login), or is an argument of `ssh`, which OpenSSH itself
resolves (`netbench.testbed.ssh.openssh`).
"""

from __future__ import annotations

import getpass
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from netbench.errors import TestbedError, UsageError
from netbench.scenario.schema import NAME, Section
from netbench.scenario.source import SourceFile, read_source, shown_path
from netbench.scenario.validate import validate
from netbench.testbed.ssh import openssh
from netbench.testbed.ssh.host import SSH_PORT, Host
from netbench.units import counted

KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
"""Default files of OpenSSH for host keys."""

MAX_JUMPS = 8
"""Most jump hosts in front of a host; more are taken for a loop in the OpenSSH config."""

HOP = re.compile(
    r"(ssh://)?((?P<user>[^@]+)@)?(\[(?P<bracketed>[^]]+)]|(?P<host>[^:@]+))(:(?P<port>\d+))?"
)
"""Syntax of a jump host in OpenSSH's ProxyJump."""

MAX_INTERFACE_CHARACTERS = 15
"""Longest name of an interface: IFNAMSIZ - 1 of linux/if.h."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Hosts of an inventory file, in order. known_hosts: files with their host keys."""

    path: Path
    hosts: tuple[Host, ...]
    known_hosts: tuple[Path, ...]

    def first(self, count: int) -> tuple[Host, ...]:
        """Return the hosts of `count` nodes. Raises UsageError if there are fewer."""
        if len(self.hosts) < count:
            raise UsageError(
                f"{shown_path(self.path)}: has {counted(len(self.hosts), 'host')}, the scenario "
                f"needs {count}; "
                f"add {count - len(self.hosts)}, or take nodes out of the scenario"
            )
        return self.hosts[:count]


def load_inventory(path: Path) -> Inventory:
    """Read an inventory file, without connecting or looking up names.

    Raises ScenarioError with file, line and key, what was found and what was expected.
    """
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


Address = Annotated[
    str, _word(r"[^\s@/-][^\s@/]*", "an address; write a name, an IPv4 or an IPv6 address")
]
User = Annotated[str, _word(r"[^\s@:/-][^\s@:/]*", 'a user; write e.g. "ubuntu"')]
IpAddress = Annotated[str, AfterValidator(_ip)]
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


Keys = tuple[str | int, ...]
JumpChoice = str | JumpForm | None


class _Reader:
    def __init__(self, source: SourceFile, form: InventoryForm) -> None:
        self._source = source
        self._form = form
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
        given = self._file(("ssh", "known_hosts"), self._form.ssh.known_hosts)
        usual = [path.expanduser() for path in KNOWN_HOSTS]
        files = [given] if given else [*usual, *self._asked_known_hosts]
        return Inventory(
            path=self._source.path, hosts=tuple(hosts), known_hosts=tuple(dict.fromkeys(files))
        )

    def _host(self, keys: Keys, form: HostForm) -> Host:
        """Convert an entry. Defaults come from `ssh:`, or from OpenSSH."""
        defaults = self._form.ssh
        jump = form.jump or defaults.jump
        if form.alias is not None and form.address is not None:
            raise self._source.error(keys, "has both address and alias; keep one of the two")
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
            python=form.python or defaults.python,
            agent_path=form.agent_path or defaults.agent_path,
            data_addresses=(addresses,) if isinstance(addresses, str) else tuple(addresses),
            interface=form.interface or "",
            known_as=form.known_as or login.known_as,
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
