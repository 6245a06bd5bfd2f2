"""OpenSSH's known_hosts files: which key a host must show. Read only, never written.

Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT. Certificate authorities (`@cert-authority`) are passed
over: a host that only they vouch for is unknown.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SSH_PORT = 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line of a file. patterns: names it is for, as written. key: the public key's bytes."""

    path: Path
    line: int
    marker: str
    patterns: str
    kind: str
    key: bytes

    def is_for(self, name: str) -> bool:
        """Whether `name` matches: a hashed name, or patterns of which none with `!` matches."""
        if self.patterns.startswith("|1|"):
            salt, _, digest = self.patterns[3:].partition("|")
            return hmac.compare_digest(_hashed(name, salt), digest)
        patterns = self.patterns.lower().split(",")
        # Brackets are part of the name `[host]:port`, not a set of characters.
        matching = [p for p in patterns if fnmatch.fnmatchcase(name, _literal(p.lstrip("!")))]
        return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


class KnownHosts:
    """The entries of several files; those that do not exist have none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._entries = [entry for path in self.paths for entry in _read(path)]

    def of(self, name: str) -> list[Entry]:
        """What is known of a host, by the name `host_name` gives."""
        return [e for e in self._entries if not e.marker and e.is_for(name.lower())]

    def is_revoked(self, key: bytes) -> bool:
        """Whether a key is marked `@revoked`, for whichever host."""
        return any(e.marker == "@revoked" and e.key == key for e in self._entries)


def host_name(address: str, port: int) -> str:
    """How known_hosts calls a host: `[address]:port`, or the address where the port is SSH's."""
    return address if port == SSH_PORT else f"[{address}]:{port}"


def fingerprint(key: bytes) -> str:
    """`SHA256:...`, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _read(path: Path) -> list[Entry]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    entries = (_entry(path, number, line) for number, line in enumerate(text.splitlines(), 1))
    return [entry for entry in entries if entry]


def _entry(path: Path, number: int, line: str) -> Entry | None:
    """None for what is no entry: OpenSSH passes over such lines too."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or marker == "@cert-authority":
        return None
    try:
        key = base64.b64decode(words[2], validate=True)
    except binascii.Error:
        return None
    return Entry(path=path, line=number, marker=marker, patterns=words[0], kind=words[1], key=key)


def _literal(pattern: str) -> str:
    return pattern.replace("[", "[[]")


def _hashed(name: str, salt: str) -> str:
    try:
        key = base64.b64decode(salt, validate=True)
    except binascii.Error:
        return ""
    return base64.b64encode(hmac.new(key, name.encode(), hashlib.sha1).digest()).decode()
