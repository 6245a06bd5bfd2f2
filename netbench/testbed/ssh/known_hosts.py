"""Host keys that OpenSSH's known_hosts files expect. The files are never written.

Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT. Host certificates are not supported: a host that only
an authority (`@cert-authority`) vouches for is unknown, and the error names the authority's line.
"""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from netbench.errors import TestbedError
from netbench.files import read_input
from netbench.testbed.ssh.host import SSH_PORT, Host

USER_FILE = Path("~/.ssh/known_hosts")
"""Default file to which OpenSSH adds keys."""

AUTHORITY = "@cert-authority"
"""Marks the line of a certificate authority's key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line of a file. patterns: of host names, as written. key: the public key's bytes."""

    path: Path
    line: int
    marker: str
    patterns: str
    kind: str
    key: bytes

    def is_for(self, name: str) -> bool:
        """Return whether `name` matches the hashed name, or the patterns and none with `!`."""
        if self.patterns.startswith("|1|"):
            salt, _, digest = self.patterns[3:].partition("|")
            return hmac.compare_digest(_hashed(name, salt), digest)
        patterns = self.patterns.lower().split(",")
        # Brackets are part of the name `[host]:port`, not a set of characters.
        matching = [
            p for p in patterns if fnmatch.fnmatchcase(name, p.lstrip("!").replace("[", "[[]"))
        ]
        return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


class KnownHosts:
    """The entries of several files. Missing files have none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._entries = [entry for path in self.paths for entry in _read(path)]

    def of(self, name: str) -> list[Entry]:
        """Return the keys known of a host, by the name that `known_as` returns."""
        return [e for e in self._entries if not e.marker and e.is_for(name.lower())]

    def authorities_of(self, name: str) -> list[Entry]:
        """Return the authorities that vouch for a host, by the same name."""
        return [e for e in self._entries if e.marker == AUTHORITY and e.is_for(name.lower())]

    def kinds(self, host: Host) -> list[str]:
        """Return the kinds of keys known of a host, e.g. ssh-ed25519, to ask it for."""
        return [entry.kind for entry in self.of(known_as(host))]

    def check(self, host: Host, kind: str, key: bytes) -> None:
        """Raise TestbedError unless `key`, which the host presents, is known for it."""
        if any(e.marker == "@revoked" and e.key == key for e in self._entries):
            raise TestbedError(
                f"ITS HOST KEY IS REVOKED: known_hosts says so of {kind} {fingerprint(key)}; the "
                "connection is refused"
            )
        known = self.of(known_as(host))
        if not known:
            authorities = self.authorities_of(known_as(host))
            raise TestbedError(_unknown(host, kind, key, self.paths, authorities))
        if all(entry.key != key for entry in known):
            raise TestbedError(_changed(host, kind, key, known))


def known_as(host: Host) -> str:
    """Return the name of a host in known_hosts: `[address]:port`, or the address for port 22."""
    if host.known_as or host.port == SSH_PORT:
        return host.known_as or host.address
    return f"[{host.address}]:{host.port}"


def fingerprint(key: bytes) -> str:
    """Return the fingerprint as `ssh-keygen -l` prints it: `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _read(path: Path) -> list[Entry]:
    try:
        text = read_input(path).decode(errors="replace")
    except OSError:
        return []
    entries = (_entry(path, number, line) for number, line in enumerate(text.splitlines(), 1))
    return [entry for entry in entries if entry]


def _entry(path: Path, number: int, line: str) -> Entry | None:
    """Parse a line. Return None for lines without an entry, which OpenSSH ignores too."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#"):
        return None
    try:
        key = base64.b64decode(words[2], validate=True)
    except binascii.Error:
        return None
    return Entry(path=path, line=number, marker=marker, patterns=words[0], kind=words[1], key=key)


def _hashed(name: str, salt: str) -> str:
    try:
        key = base64.b64decode(salt, validate=True)
    except binascii.Error:
        return ""
    return base64.b64encode(hmac.new(key, name.encode(), hashlib.sha1).digest()).decode()


def _unknown(
    host: Host, kind: str, key: bytes, files: Sequence[Path], authorities: Sequence[Entry]
) -> str:
    where = ", ".join(map(str, files)) or "any file"
    lines = ", ".join(f"{entry.path}:{entry.line}" for entry in authorities)
    vouched = f" but the certificate authority of {lines}, and certificates are not read here"
    return (
        f"its host key is not known: {kind} {fingerprint(key)}, and {where} has "
        f"none for {known_as(host)}{vouched if authorities else ''}. If the host itself shows the "
        f"same (there: `ssh-keygen -lf /etc/ssh/ssh_host_{_file_kind(kind)}_key.pub`), add it: "
        f"{_ssh_command(host, files, without_certificates=bool(authorities))}"
    )


def _changed(host: Host, kind: str, key: bytes, known: Sequence[Entry]) -> str:
    lines = "; ".join(f"{e.path}:{e.line} has {e.kind} {fingerprint(e.key)}" for e in known)
    return (
        f"ITS HOST KEY HAS CHANGED: it shows {kind} {fingerprint(key)}, but "
        f"{lines}. Someone may stand between you and the host; the connection is refused. If you "
        f"know why it changed: ssh-keygen -R {shlex.quote(known_as(host))} "
        f"-f {shlex.quote(str(known[0].path))}"
    )


def _file_kind(kind: str) -> str:
    """Return the kind of key as in the names of sshd's key files."""
    return "ecdsa" if kind.startswith("ecdsa") else kind.removeprefix("ssh-")


def _ssh_command(host: Host, files: Sequence[Path], *, without_certificates: bool) -> str:
    """Return the ssh command that asks whether to add the host's key to the first of `files`.

    without_certificates: refuse the host's certificate, for ssh would accept it and not ask.
    """
    words = ["ssh", *(["-o", "HostKeyAlgorithms=-*-cert-*"] if without_certificates else [])]
    if files and files[0] != USER_FILE.expanduser():
        words += ["-o", f'UserKnownHostsFile="{files[0]}"']  # in quotes, as the option is a list
    if host.known_as:
        words += ["-o", f"HostKeyAlias={host.known_as}"]
    if host.jump is not None:
        words += ["-J", ",".join(jump.login for jump in _chain(host.jump))]
    return shlex.join([*words, "-p", str(host.port), f"{host.user}@{host.address}", "true"])


def _chain(host: Host) -> list[Host]:
    """Return the jump hosts up to and including this one, nearest first."""
    return [*(_chain(host.jump) if host.jump else ()), host]
