"""Resolve a host with `ssh -G`, as OpenSSH would reach it.

The OpenSSH config is not parsed here: Include, Match, tokens and precedence differ between
versions.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from netbench.errors import TestbedError
from netbench.testbed.machine.packages import find_command
from netbench.testbed.ssh.host import Host

TIMEOUT_S = 20.0
"""Deadline of `ssh -G`, seconds. It takes 10 ms, unless the config has `Match exec` or canonical
names."""


class Destination(NamedTuple):
    """Resolved argument of `ssh`.

    host: without jump hosts; its keys exist. jump: in the syntax of ProxyJump. known_hosts: files
    with host keys.
    """

    host: Host
    jump: str
    known_hosts: tuple[Path, ...]


def look_up(
    destination: str, options: Sequence[str] = (), config: Path | None = None
) -> Destination:
    """Resolve `ssh [-F config] options destination`, without connecting.

    Raises TestbedError with the error of ssh, or if the config needs a feature netbench lacks.
    """
    command = ["ssh", "-G", "-T", *(["-F", str(config)] if config else []), *options]
    said = _run([*command, "--", destination])
    settings: dict[str, list[str]] = {}
    for line in said.splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)

    def setting(key: str) -> str:
        value = settings.get(key, [""])[0]
        return "" if value == "none" else value

    if setting("proxycommand"):
        raise TestbedError(
            f"has a ProxyCommand ({setting('proxycommand')}), which netbench does not run; "
            "write it as ProxyJump"
        )
    tokens = {"%h": setting("hostname"), "%r": setting("user"), "%d": str(Path.home()), "%%": "%"}
    agent = setting("identityagent")
    if agent.startswith("$"):
        agent = os.environ.get(agent.strip("${}"), "")
    elif agent == "SSH_AUTH_SOCK":
        agent = ""
    files = [_expand(name, tokens) for name in settings.get("identityfile", [])]
    known = setting("userknownhostsfile").split() + setting("globalknownhostsfile").split()
    host = Host(
        name=destination,
        address=setting("hostname"),
        port=int(setting("port")),
        user=setting("user"),
        keys=tuple(path for path in files if path.is_file()),
        use_agent=settings.get("identityagent", [""])[0] != "none",
        agent_socket=_expand(agent, tokens) if agent else None,
        only_named=setting("identitiesonly") == "yes",
        known_as=setting("hostkeyalias"),
    )
    return Destination(host, setting("proxyjump"), tuple(_expand(name, tokens) for name in known))


def _run(command: Sequence[str]) -> str:
    if find_command("ssh") is None:
        raise TestbedError(
            "needs OpenSSH's client to be understood; install the Debian package openssh-client, "
            "or write the host out: {address: ..., user: ..., key: ...}"
        )
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(f"is not understood by `ssh -G` within {TIMEOUT_S:g} s") from None
    if done.returncode:
        words = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise TestbedError(f"is refused by `ssh -G`: {words}")
    return done.stdout


def _expand(name: str, tokens: dict[str, str]) -> Path:
    """Return the path with its tokens replaced. Unknown tokens stay, so no such file exists."""
    for token, value in tokens.items():
        name = name.replace(token, value)
    return Path(name).expanduser()
