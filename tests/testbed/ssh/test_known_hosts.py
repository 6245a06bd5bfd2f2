"""known_hosts files, held against what ssh-keygen says of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from netbench.errors import TestbedError
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.known_hosts import KnownHosts, fingerprint, known_as
from tests.sshd_here import make_key

NAMES = ("gpu-1", "gpu-2", "GPU-1", "a.example.org", "b.example.org", "10.0.0.5", "[gpu-1]:2222")


@pytest.fixture(scope="module")
def public_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kind and key, as known_hosts has them."""
    path = tmp_path_factory.mktemp("key") / "key"
    make_key(path)
    return " ".join(path.with_name("key.pub").read_text().split()[:2])


def keygen_finds(path: Path, name: str) -> bool:
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(path)], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.mark.parametrize(
    "patterns",
    [
        "gpu-1",
        "gpu-1,10.0.0.5",
        "gpu-*",
        "gpu-?,!gpu-2",
        "!gpu-1",
        "*.example.org,!b.example.org",
        "[gpu-1]:2222",
        "[gpu-?]:2222",
        "*",
        "Gpu-1",
        "10.0.0.[15]",
    ],
)
def test_a_name_matches_as_for_openssh(tmp_path: Path, public_key: str, patterns: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"{patterns} {public_key}\n")
    known = KnownHosts([path])
    found = {name: bool(known.of(name)) for name in NAMES}
    assert found == {name: keygen_finds(path, name) for name in NAMES}


def test_hashed_names_match(tmp_path: Path, public_key: str) -> None:
    """Hashed by ssh-keygen itself."""
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu-1 {public_key}\n[10.0.0.5]:2222 {public_key}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "gpu-1" not in path.read_text()
    known = KnownHosts([path])
    assert [bool(known.of(name)) for name in ("gpu-1", "[10.0.0.5]:2222")] == [True, True]
    assert not known.of("gpu-2")
    assert not known.of("10.0.0.5")


def test_a_fingerprint_is_as_ssh_keygen_prints_it(tmp_path: Path, public_key: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu-1 {public_key}\n")
    (entry,) = KnownHosts([path]).of("gpu-1")
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True
    )
    assert fingerprint(entry.key) == done.stdout.split()[1]


def test_what_is_no_entry_is_passed_over(tmp_path: Path, public_key: str) -> None:
    """Comments, other files, an authority's line; the line after them still counts."""
    path = tmp_path / "known_hosts"
    bad = ("# gpu-1 a b", "", "gpu-1", "gpu-1 ssh-rsa not/base64!", "|1|!|! ssh-rsa AAAA", "\0\xff")
    authority = f"@cert-authority gpu-1 {public_key}"
    path.write_bytes("\n".join([*bad, authority, f"gpu-2 {public_key}"]).encode("latin-1"))
    known = KnownHosts([tmp_path / "nowhere", path])
    assert not known.of("gpu-1")
    assert [entry.line for entry in known.of("gpu-2")] == [8]


def test_an_authority_that_vouches_for_a_host_is_named(tmp_path: Path, public_key: str) -> None:
    """Certificates are not read: what the file has is told, with the line, only for its hosts."""
    path = tmp_path / "known_hosts"
    path.write_text(f"# ours\n@cert-authority *.example.org {public_key}\n")
    known, key = KnownHosts([path]), b"some key"
    hosts = [Host(name="x", address=f"a.example.{end}", user="x") for end in ("org", "com")]
    with pytest.raises(TestbedError, match="host key is not known") as vouched:
        known.check(hosts[0], "ssh-ed25519", key)
    words = f"has none for a.example.org but the certificate authority of {path}:2, and"
    assert words in str(vouched.value)
    assert "add it: ssh -o 'HostKeyAlgorithms=-*-cert-*' -o" in str(vouched.value)
    with pytest.raises(TestbedError, match="host key is not known") as unknown:
        known.check(hosts[1], "ssh-ed25519", key)
    assert "certificate" not in str(unknown.value)
    assert known.kinds(hosts[0]) == []


def test_one_of_several_keys_is_enough(tmp_path: Path, public_key: str) -> None:
    """A host may have changed to a new key, with the old one still in the file."""
    make_key(tmp_path / "other")
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu-1 {other}\ngpu-1 {public_key}\n")
    known, host = KnownHosts([path]), Host(name="gpu-1", address="gpu-1", user="x")
    first, second = known.of("gpu-1")
    known.check(host, second.kind, second.key)
    known.check(host, first.kind, first.key)
    with pytest.raises(TestbedError, match="HAS CHANGED"):
        known.check(host, first.kind, first.key[:-1] + b"\0")


@pytest.mark.parametrize(
    ("address", "port", "alias", "name"),
    [
        ("10.0.0.5", 22, "", "10.0.0.5"),
        ("10.0.0.5", 2222, "", "[10.0.0.5]:2222"),
        ("fd00::5", 22, "", "fd00::5"),
        ("fd00::5", 2222, "", "[fd00::5]:2222"),
        ("10.0.0.5", 2222, "pod", "pod"),
    ],
)
def test_the_name_of_a_host(address: str, port: int, alias: str, name: str) -> None:
    """sshd(8): brackets where the port is not SSH's; HostKeyAlias as it is."""
    assert known_as(Host(name="x", address=address, port=port, user="x", known_as=alias)) == name
