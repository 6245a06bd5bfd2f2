"""Hosts over SSH, against real sshds on this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from netbench.errors import TestbedError
from netbench.testbed import lines
from netbench.testbed.ssh import machines, nodes
from netbench.testbed.ssh.host import Host
from netbench.testbed.ssh.machines import CONNECT_TIMEOUT_S, Hosts
from tests.ports import free_port
from tests.sshd_here import Sshd, make_key, write_script

pytestmark = pytest.mark.ssh

PATIENCE_S = 120.0
"""Deadline for what takes under a second on a machine that does nothing else, seconds."""

STRANGER = Path(f"/tmp/netbench-was-here-{os.getpid()}")

NASTY = [
    "a b",
    "",
    "it's",
    '"quoted"',
    "$HOME",
    "`id`",
    "$(id)",
    f"; touch {STRANGER}",
    "a\nb",
    "\\",
    "*",
    "~",
    "#",
    "!!",
    "|&<>",
    "-n",
    "é ü 漢",
    "\t",
]
"""Arguments that a shell would do something with."""

SUDO = """\
#!/bin/sh
[ "$1 $2" = "-n --" ] || { echo "sudo: unexpected $*" >&2; exit 1; }
[ -e "$(dirname "$0")/refuse" ] && { echo "sudo: a password is required" >&2; exit 1; }
shift 2
NETBENCH_ROOT=yes exec "$@"
"""
"""Fake sudo that marks the environment instead of changing the user."""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd") / "here") as server:
        yield server


@pytest.fixture
def hosts(sshd: Sshd) -> Iterator[Hosts]:
    with Hosts([sshd.host()], [sshd.known_hosts]) as hosts:
        yield hosts


def connect(host: Host, *known_hosts: Path, timeout_s: float = PATIENCE_S) -> str:
    """Log in and ask who we are."""
    with Hosts([host], known_hosts, connect_timeout_s=timeout_s) as hosts:
        return hosts[0].run(["id", "-un"])[1].strip()


def fails(host: Host, *known_hosts: Path, timeout_s: float = PATIENCE_S) -> str:
    with pytest.raises(TestbedError) as error:
        connect(host, *known_hosts, timeout_s=timeout_s)
    return str(error.value)


def close_all(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def eventually(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def serving_pid(hosts: Hosts, node: int = 0) -> int:
    """The sshd process that serves the connection to a node, on this machine."""
    climb = "until grep -q ^sshd /proc/$p/comm; do read -r _ _ _ p _ </proc/$p/stat; done"
    return int(hosts[node].run(["sh", "-c", f"p=$$; {climb}; echo $p"])[1])


def is_ours(port: int) -> bool:
    """Return whether a TCP socket of this process has that local port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[1].partition(":")[2], 16) == port}
    links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return any(str(link) in sockets for link in links)


def listens(path: Path) -> bool:
    """Return whether a UNIX socket accepts connections: it has its name before that."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


@contextmanager
def agent(socket_path: Path, key: Path) -> Iterator[None]:
    """An ssh-agent that has `key`, for this process."""
    command = ["ssh-agent", "-D", "-a", str(socket_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: listens(socket_path))
            environment = {**os.environ, "SSH_AUTH_SOCK": str(socket_path)}
            subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SSH_AUTH_SOCK", str(socket_path))
                yield
        finally:
            process.kill()


@contextmanager
def relay(server: Sshd, num_bytes: int) -> Iterator[int]:
    """A port that passes on the first `num_bytes` the server says, then only listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client, socket.create_connection((server.address, server.port)) as upstream:
                upstream.sendall(client.recv(4096))
                while (left := num_bytes - sent[0]) > 0 and (chunk := upstream.recv(left)):
                    client.sendall(chunk)
                    sent[0] += len(chunk)
                while client.recv(4096):
                    pass

        sent = [0]
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()
        assert sent[0] == num_bytes


def keygen_fingerprint(public: Path) -> str:
    """The fingerprint that OpenSSH prints."""
    command = ["ssh-keygen", "-lf", str(public)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]


def test_a_command_runs_as_the_login_user(hosts: Hosts) -> None:
    """Exit status, stdout and stderr arrive apart; stdin is read to its end."""
    script = "cat; echo out; echo err >&2; exit 7"
    assert hosts[0].run(["sh", "-c", script], "in\n") == (7, "in\nout\n", "err\n")
    assert hosts[0].run(["id", "-u"])[1].strip() == str(os.geteuid())


def test_no_argument_is_read_by_the_remote_shell(hosts: Hosts) -> None:
    """printf prints the given arguments, each ended by NUL."""
    status, stdout, _ = hosts[0].run(["printf", "%s\\0", *NASTY])
    assert status == 0
    assert stdout.split("\0")[:-1] == NASTY
    assert not STRANGER.exists()


def test_large_streams_both_ways_at_once_do_not_block(hosts: Hosts) -> None:
    """8 MB in, out on stdout and on stderr: more than any SSH window (2 MB)."""
    text = "0123456789abcde\n" * (8 << 16)
    status, stdout, stderr = hosts[0].run(["tee", "/dev/stderr"], text, timeout_s=PATIENCE_S)
    assert status == 0
    assert stdout == text
    assert stderr == text


def test_output_without_an_end_is_an_error(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not collected for ever; of stderr the end is kept."""
    monkeypatch.setattr(nodes, "MAX_OUTPUT_BYTES", 4 << 20)
    with pytest.raises(TestbedError, match=r"here: more than 4MiB of output from: cat /dev/zero"):
        hosts[0].run(["cat", "/dev/zero"], timeout_s=PATIENCE_S)
    script = f"head -c {9 << 20} /dev/zero >&2; echo the end >&2"
    status, _, stderr = hosts[0].run(["sh", "-c", script], timeout_s=PATIENCE_S)
    assert (status, len(stderr)) == (0, 4 << 20)
    assert stderr.endswith("the end\n")


def test_a_command_need_not_read_its_stdin(hosts: Hosts) -> None:
    assert hosts[0].run(["true"], "x" * (8 << 20)) == (0, "", "")


def test_a_command_ended_by_a_signal_has_not_succeeded(hosts: Hosts) -> None:
    """The login shell says 128 + 9, or, if it left its place to the command, nothing."""
    assert hosts[0].run(["sh", "-c", "kill -9 $$"])[0] in (137, -1)


def test_threads_share_one_connection(sshd: Sshd) -> None:
    """Eight threads at once, on a host nobody has connected to: one login."""
    with Hosts([sshd.host()], [sshd.known_hosts]) as hosts:
        before = sshd.log.read_text().count("Accepted publickey")
        found: dict[int, str] = {}

        def ask(index: int) -> None:
            found[index] = hosts[0].run(["echo", str(index)])[1]

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {index: f"{index}\n" for index in range(8)}
    assert sshd.log.read_text().count("Accepted publickey") - before == 1


def test_a_late_command_is_named(hosts: Hosts) -> None:
    """Not before its deadline, and soon after it."""
    start_s = time.monotonic()
    with pytest.raises(TestbedError, match=r"here: no answer within 0.5 s from: sleep 60"):
        hosts[0].run(["sleep", "60"], timeout_s=0.5)
    assert 0.5 <= time.monotonic() - start_s < 60.0


class HalfOpen:
    """A link and its channel, without a host. `recv` gives `end`; stderr stays open for a while."""

    def __init__(self, end: Exception | None = None, stderr_s: float = 0.0) -> None:
        self._end, self._stderr_s, self._closed = end, stderr_s, threading.Event()

    def open_session(self, timeout: float) -> HalfOpen:
        return self

    def recv(self, size: int) -> bytes:
        if self._end is not None:
            raise self._end
        return b""

    def recv_stderr(self, size: int) -> bytes:
        self._closed.wait(self._stderr_s)
        return b""

    def recv_exit_status(self) -> int:
        return 0

    def close(self) -> None:
        self._closed.set()

    def ignore(self, *data: object) -> None:
        """Take what is sent."""

    exec_command = sendall = shutdown_write = ignore


def test_a_command_that_has_ended_is_not_late() -> None:
    """A process in the background keeps stderr open until after the deadline."""
    node = nodes.SshNode(Host(name="n", address="-", user="u"), lambda _: HalfOpen(None, 3.0), 9.0)
    assert node.run(["true"], timeout_s=2.0) == (0, "", "")


@pytest.mark.parametrize("error", [OSError("x"), EOFError(), paramiko.SSHException("x")])
def test_a_connection_that_breaks_under_a_command_is_named(error: Exception) -> None:
    node = nodes.SshNode(Host(name="n", address="-", user="u"), lambda _: HalfOpen(error), 9.0)
    with pytest.raises(TestbedError, match=r"^n: the SSH connection was lost during: true$"):
        node.run(["true"])


def test_a_lost_connection_is_named_and_made_again(hosts: Hosts, tmp_path: Path) -> None:
    """The sshd that serves the connection is killed; the next command finds a new one."""
    serving, running = serving_pid(hosts), tmp_path / "running"

    def kill() -> None:
        assert eventually(running.exists)
        os.kill(serving, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(TestbedError, match=r"here: the SSH connection was lost during: sh -c"):
        hosts[0].run(
            ["sh", "-c", f"touch {running}; while echo; do sleep 0.2; done"], timeout_s=PATIENCE_S
        )
    killer.join()
    assert hosts[0].run(["echo", "back"])[1] == "back\n"


def test_a_host_that_freezes_is_named_in_time(sshd: Sshd) -> None:
    """Its kernel still acknowledges what we send; sshd is stopped and answers nothing."""
    with Hosts([sshd.host()], [sshd.known_hosts]) as hosts:
        serving = serving_pid(hosts)
        os.kill(serving, signal.SIGSTOP)
        assert isinstance(hosts[0], nodes.SshNode)
        hosts[0]._connect_timeout_s = 1.0  # not for the login: a busy machine may take longer
        try:
            start_s = time.monotonic()
            with pytest.raises(TestbedError, match=r"here: its sshd did not start: true \(Time"):
                hosts[0].run(["true"])
            assert time.monotonic() - start_s < CONNECT_TIMEOUT_S
        finally:
            os.kill(serving, signal.SIGKILL)


def test_many_connections_close_at_once(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """No close waits for another: sixteen are in it together. Nothing can be asked after that."""
    names = [sshd.host(name=f"n{index}") for index in range(16)]
    together, close = threading.Barrier(16, timeout=20.0), paramiko.Transport.close

    def close_with_the_others(link: paramiko.Transport) -> None:
        together.wait()
        close(link)

    with Hosts(names, [sshd.known_hosts]) as hosts:
        for node in range(16):
            hosts[node].run(["true"])
        monkeypatch.setattr(machines, "CLOSE_TIMEOUT_S", 60.0)
        monkeypatch.setattr(paramiko.Transport, "close", close_with_the_others)
        links = [hosts._link(name) for name in names]
    assert not together.broken
    assert not any(link.is_active() for link in links)
    with pytest.raises(TestbedError, match=r"n3: the connections are closed"):
        hosts[3].run(["true"])


def test_the_nodes_own_address_is_what_it_is_reached_at(hosts: Hosts) -> None:
    assert hosts[0].own_address() == "127.0.0.1"


def test_ipv6(tmp_path: Path) -> None:
    with (
        Sshd(tmp_path / "six", address="::1") as server,
        Hosts([server.host()], [server.known_hosts]) as hosts,
    ):
        assert hosts[0].own_address() == "::1"


class TestSudo:
    """Root through sudo; the sudo is a script of ours."""

    @pytest.fixture
    def sudo(self, sshd: Sshd) -> Iterator[Path]:
        """The folder of the script; an empty file `refuse` there makes it ask for a password."""
        folder = sshd.folder / "bin"
        write_script(folder / "sudo", SUDO)
        yield folder
        for path in folder.iterdir():
            path.unlink()

    @pytest.fixture
    def hosts(self, sshd: Sshd) -> Iterator[Hosts]:
        with Hosts([sshd.host(user=sshd.worker)], [sshd.known_hosts]) as hosts:
            yield hosts

    @pytest.mark.usefixtures("sudo")
    def test_as_root_a_command_goes_through_sudo(self, hosts: Hosts) -> None:
        script = "cat; printenv NETBENCH_ROOT; exit 3"
        assert hosts[0].as_root.run(["sh", "-c", script], "in\n") == (3, "in\nyes\n", "")
        assert hosts[0].run(["sh", "-c", "echo $NETBENCH_ROOT"])[1] == "\n"

    @pytest.mark.usefixtures("sudo")
    def test_a_channel_as_root(self, hosts: Hosts) -> None:
        channel = hosts[0].as_root.open(["printenv", "NETBENCH_ROOT"])
        assert channel.receive(timeout_s=PATIENCE_S) == "yes"

    def test_a_sudo_that_wants_a_password(self, hosts: Hosts, sudo: Path, sshd: Sshd) -> None:
        (sudo / "refuse").touch()
        with pytest.raises(TestbedError) as error:
            hosts[0].as_root.run(["true"])
        assert f"here: {sshd.worker} cannot become root: sudo: a password is required" in str(
            error.value
        )
        assert "NOPASSWD" in str(error.value)

    @pytest.mark.usefixtures("sudo")
    def test_a_command_that_fails_and_speaks_of_sudo_is_a_command_that_failed(
        self, hosts: Hosts
    ) -> None:
        found = hosts[0].as_root.run(["sh", "-c", "echo sudo: a warning >&2; exit 5"])
        assert found == (5, "", "sudo: a warning\n")

    def test_a_machine_without_sudo(self, hosts: Hosts, sshd: Sshd) -> None:
        if shutil.which("sudo"):
            pytest.skip("this machine has a sudo of its own")
        with pytest.raises(TestbedError, match=f"{sshd.worker} cannot become root: .*not found"):
            hosts[0].as_root.run(["true"])

    def test_who_has_no_sudo_is_told_before_anything_is_run(self, sshd: Sshd) -> None:
        host = sshd.host(user="ubuntu", sudo=False)
        with (
            Hosts([host], [sshd.known_hosts]) as hosts,
            pytest.raises(TestbedError, match="needs root, logs in as ubuntu and has sudo: false"),
        ):
            hosts[0].as_root.run(["true"])


class TestChannel:
    """Commands that stay."""

    def test_lines_go_both_ways(self, hosts: Hosts) -> None:
        channel = hosts[0].open(["cat"])
        for line in ("one", "two words", "é" * 100_000):
            channel.send(line)
            assert channel.receive(timeout_s=PATIENCE_S) == line
        channel.close()

    def test_the_end_of_a_command_is_none_and_leaves_its_last_words(self, hosts: Hosts) -> None:
        channel = hosts[0].open(["sh", "-c", "echo a; echo 1 >&2; echo 2 >&2"])
        assert [channel.receive(PATIENCE_S), channel.receive(PATIENCE_S)] == ["a", None]
        assert channel.last_words() == "1 | 2"

    def test_a_line_without_an_end_is_an_error(
        self, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not collected for ever. A long line that ends is one line."""
        monkeypatch.setattr(lines, "MAX_LINE_BYTES", 8 << 20)
        long = hosts[0].open(["sh", "-c", f"head -c {4 << 20} /dev/zero | tr '\\0' x; echo"])
        assert long.receive(PATIENCE_S) == "x" * (4 << 20)
        endless = hosts[0].open(["cat", "/dev/zero"])
        with pytest.raises(TestbedError, match=r"here: a line is longer than 8MiB"):
            endless.receive(PATIENCE_S)
        endless.close()

    def test_silence_has_a_deadline_and_loses_nothing(self, hosts: Hosts) -> None:
        """Half a line came before the deadline, the other half comes after it."""
        script = "printf 'first half,'; read line; echo \" second half\""
        channel = hosts[0].open(["sh", "-c", script])
        with pytest.raises(TestbedError, match=r"here: silent for 1 s"):
            channel.receive(timeout_s=1.0)
        channel.send("go on")
        assert channel.receive(timeout_s=PATIENCE_S) == "first half, second half"

    def test_closing_ends_the_commands_stdin(self, hosts: Hosts, tmp_path: Path) -> None:
        done = tmp_path / "done"
        channel = hosts[0].open(["sh", "-c", f"echo ready; cat; touch {done}"])
        assert channel.receive(PATIENCE_S) == "ready"
        channel.close()
        assert eventually(done.exists)

    def test_a_host_that_goes_away_is_the_end(self, tmp_path: Path) -> None:
        with (
            Sshd(tmp_path / "gone") as server,
            Hosts([server.host()], [server.known_hosts]) as hosts,
        ):
            channel = hosts[0].open(["cat"])
            serving = serving_pid(hosts)
            server.stop()
            os.kill(serving, signal.SIGKILL)
            assert channel.receive(timeout_s=PATIENCE_S) is None
            with pytest.raises(TestbedError, match=r"here: "):
                channel.send("anyone?")
            with pytest.raises(TestbedError, match=r"here \(.*\): no connection: .*refused"):
                hosts[0].run(["true"])


class TestHostKeys:
    """None is taken unseen."""

    def test_an_unknown_one_is_refused_with_what_to_do(self, sshd: Sshd, tmp_path: Path) -> None:
        """The fingerprint is what ssh-keygen says; nothing is written."""
        empty = tmp_path / "known_hosts"
        empty.touch()
        message = fails(sshd.host(), empty)
        assert message.startswith(f"here ({getpass.getuser()}@127.0.0.1:{sshd.port}): ")
        assert keygen_fingerprint(sshd.folder / "host_key.pub") in message
        assert f"has none for [127.0.0.1]:{sshd.port}" in message
        assert f"ssh -o 'UserKnownHostsFile=\"{empty}\"' -p {sshd.port}" in message
        assert empty.read_text() == ""

    def test_the_command_that_is_proposed_makes_the_host_known(
        self, sshd: Sshd, tmp_path: Path
    ) -> None:
        """Run by OpenSSH, which is told to say yes; then the host is let in."""
        known = tmp_path / "known hosts"
        command = fails(sshd.host(), known).rpartition("add it: ")[2]
        yes = f"-o StrictHostKeyChecking=accept-new -i {sshd.folder}/client_key -F none"
        subprocess.run(["sh", "-c", command.replace("ssh ", f"ssh {yes} ", 1)], check=True)
        assert connect(sshd.host(), known)

    def test_a_changed_one_is_refused_loudly(self, sshd: Sshd, tmp_path: Path) -> None:
        """Both fingerprints, the line of the file, and how to remove it."""
        other, known = tmp_path / "other", tmp_path / "known_hosts"
        make_key(other)
        sshd.trust(known, tmp_path / "other.pub")
        message = fails(sshd.host(), known)
        assert "ITS HOST KEY HAS CHANGED" in message
        assert keygen_fingerprint(sshd.folder / "host_key.pub") in message
        before = keygen_fingerprint(tmp_path / "other.pub")
        assert f"{known}:1 has ssh-ed25519 {before}" in message
        command = "ssh-keygen -R" + message.rpartition("ssh-keygen -R")[2]
        subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        assert "is not known" in fails(sshd.host(), known)

    def test_a_revoked_one_is_refused_although_it_is_known(
        self, sshd: Sshd, tmp_path: Path
    ) -> None:
        revoked = tmp_path / "revoked"
        kind, key = (sshd.folder / "host_key.pub").read_text().split()[:2]
        revoked.write_text(f"@revoked * {kind} {key}\n")
        assert "ITS HOST KEY IS REVOKED" in fails(sshd.host(), sshd.known_hosts, revoked)

    def test_nothing_is_sent_to_a_host_that_is_not_known(self, sshd: Sshd) -> None:
        """Not even the name of the user: sshd has no login to log."""
        before = len(sshd.log.read_text())
        fails(sshd.host(user="secret-name"))
        assert "secret-name" not in sshd.log.read_text()[before:]

    def test_a_host_with_keys_of_several_kinds_is_asked_for_the_known_one(
        self, tmp_path: Path
    ) -> None:
        """Only its RSA key is known; by itself the client would ask for ed25519."""
        make_key(tmp_path / "rsa", "rsa")
        known = tmp_path / "known_hosts"
        with Sshd(tmp_path / "two", more=f"HostKey {tmp_path}/rsa\n") as server:
            server.trust(known, tmp_path / "rsa.pub")
            assert known.read_text().split()[1] == "ssh-rsa"
            assert connect(server.host(), known)

    def test_a_name_of_its_own_in_known_hosts(self, sshd: Sshd, tmp_path: Path) -> None:
        """OpenSSH's HostKeyAlias: no port is added to it."""
        known = tmp_path / "known_hosts"
        known.write_text(sshd.known_hosts.read_text().replace(f"[127.0.0.1]:{sshd.port}", "pod"))
        assert connect(sshd.host(known_as="pod"), known)
        assert "has none for other" in fails(sshd.host(known_as="other"), known)


class TestLogin:
    """Keys, and what is said when none is taken."""

    def test_a_key_that_is_not_accepted(self, sshd: Sshd, tmp_path: Path) -> None:
        make_key(tmp_path / "mine")
        message = fails(sshd.host(keys=(tmp_path / "mine",)), sshd.known_hosts)
        assert message.endswith(f"login refused: {tmp_path}/mine is not accepted")

    def test_every_key_is_tried(self, sshd: Sshd, tmp_path: Path) -> None:
        for kind in ("rsa", "ecdsa"):
            make_key(tmp_path / kind, kind)
        keys = (tmp_path / "rsa", tmp_path / "ecdsa", sshd.folder / "client_key")
        assert connect(sshd.host(keys=keys), sshd.known_hosts) == getpass.getuser()

    def test_a_key_with_a_passphrase_and_one_that_is_none(self, sshd: Sshd, tmp_path: Path) -> None:
        make_key(tmp_path / "locked", passphrase="open sesame")
        (tmp_path / "text").write_text("not a key")
        message = fails(sshd.host(keys=(tmp_path / "locked", tmp_path / "text")), sshd.known_hosts)
        assert f"{tmp_path}/locked has a passphrase (`ssh-add {tmp_path}/locked`" in message
        assert f"{tmp_path}/text cannot be read as a private key" in message

    def test_a_host_that_hangs_up_after_too_many_keys(self, sshd: Sshd, tmp_path: Path) -> None:
        """sshd_config(5): MaxAuthTries, 6. The right key would have been the ninth."""
        keys = [tmp_path / f"key{index}" for index in range(8)]
        for key in keys:
            make_key(key)
        message = fails(sshd.host(keys=(*keys, sshd.folder / "client_key")), sshd.known_hosts)
        assert "it hung up before every key was tried; name the right one" in message

    def test_the_agent_is_asked(self, sshd: Sshd, tmp_path: Path) -> None:
        """A real ssh-agent that has the key; without it the login fails."""
        unaccepted = tmp_path / "mine"
        make_key(unaccepted)
        host = sshd.host(keys=(unaccepted,), use_agent=True)
        with agent(tmp_path / "socket", sshd.folder / "client_key"):
            assert connect(host, sshd.known_hosts) == getpass.getuser()
            assert "login refused" in fails(replace(host, use_agent=False), sshd.known_hosts)

    def test_another_agent_and_only_named_keys_of_it(self, sshd: Sshd, tmp_path: Path) -> None:
        """IdentityAgent, IdentitiesOnly: the key is only in an agent that no variable names."""
        named = tmp_path / "named"
        make_key(named)
        socket_path = tmp_path / "socket"
        host = sshd.host(keys=(named,), use_agent=True, agent_socket=socket_path)
        assert "no SSH agent at" in fails(host, sshd.known_hosts)
        with agent(socket_path, sshd.folder / "client_key"), pytest.MonkeyPatch.context() as patch:
            patch.delenv("SSH_AUTH_SOCK", raising=False)
            assert connect(host, sshd.known_hosts) == getpass.getuser()
            only = replace(host, only_named=True)
            assert "none of the SSH agent's 0 named keys" in fails(only, sshd.known_hosts)
            public = (sshd.folder / "client_key.pub").read_bytes()
            Path(f"{named}.pub").write_bytes(public)
            assert connect(only, sshd.known_hosts) == getpass.getuser()

    def test_a_server_that_takes_only_passwords(self, tmp_path: Path) -> None:
        more = "PubkeyAuthentication no\nMatch all\nPasswordAuthentication yes\n"
        with Sshd(tmp_path / "passwords", more=more) as server:
            assert "takes no keys, only password" in fails(server.host(), server.known_hosts)


class TestUnreachable:
    """One deadline, and the host's name."""

    def test_a_host_that_accepts_and_says_nothing(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            host = Host(name="mute", address="127.0.0.1", port=silent.getsockname()[1], user="x")
            start_s = time.monotonic()
            message = fails(host, timeout_s=1.0)
        assert 1.0 <= time.monotonic() - start_s < CONNECT_TIMEOUT_S
        assert message.startswith("mute (x@127.0.0.1:")
        assert message.endswith("its sshd gave no answer within 1 s")

    def test_a_host_that_stops_in_the_middle(self, sshd: Sshd) -> None:
        """It sends its banner and the start of its key exchange, no more."""
        with relay(sshd, num_bytes=300) as port:
            message = fails(sshd.host(port=port), sshd.known_hosts, timeout_s=1.0)
        assert message.endswith("its sshd gave no answer within 1 s")

    def test_what_is_no_ssh_server(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer() -> None:
                connection, _ = server.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

            thread = threading.Thread(target=answer)
            thread.start()
            port = server.getsockname()[1]
            message = fails(Host(name="web", address="127.0.0.1", port=port, user="x"))
            thread.join()
        assert message.startswith(f"web (x@127.0.0.1:{port}): SSH failed: ")

    def test_an_sshd_with_too_many_logins_is_tried_again(self, tmp_path: Path) -> None:
        """Three others have not logged in yet, for a while; or for longer than anyone waits."""
        with Sshd(tmp_path / "busy", more="MaxStartups 3") as server, ExitStack() as stack:

            def occupy() -> list[socket.socket]:
                """Connect until sshd drops several in a row: one that looked whether it is there
                may still have a place."""
                made: list[socket.socket] = []
                num_dropped = 0
                while num_dropped < 5:
                    address = (server.address, server.port)
                    made.append(stack.enter_context(socket.create_connection(address)))
                    num_dropped = 0 if made[-1].recv(4) == b"SSH-" else num_dropped + 1
                    time.sleep(0.05)
                return made

            others = occupy()
            threading.Timer(1.5, close_all, [others]).start()
            start_s = time.monotonic()
            assert connect(server.host(), server.known_hosts) == getpass.getuser()
            assert time.monotonic() - start_s > 1.0
            occupy()
            message = fails(server.host(), server.known_hosts, timeout_s=1.0)
        assert "An sshd with too many logins under way does so (MaxStartups" in message

    def test_a_port_nobody_listens_on(self) -> None:
        port = free_port("127.0.0.1")
        message = fails(Host(name="off", address="127.0.0.1", port=port, user="x"))
        assert message == f"off (x@127.0.0.1:{port}): no connection: Connection refused"

    def test_a_name_that_is_no_host(self) -> None:
        message = fails(Host(name="off", address="no-such-host.invalid", user="x"))
        assert message.startswith("off (x@no-such-host.invalid:22): no such host: ")


class TestJump:
    """Through other hosts."""

    @pytest.fixture
    def bastion(self, tmp_path: Path) -> Iterator[Sshd]:
        with Sshd(tmp_path / "bastion") as server:
            yield server

    @pytest.fixture
    def known(self, sshd: Sshd, bastion: Sshd, tmp_path: Path) -> Path:
        """Has both."""
        path = tmp_path / "known_hosts"
        path.write_text(sshd.known_hosts.read_text() + bastion.known_hosts.read_text())
        return path

    def test_a_host_is_reached_through_a_chain(
        self, sshd: Sshd, bastion: Sshd, known: Path
    ) -> None:
        """here -> bastion -> the same sshd as inner -> sshd: what sshd sees is not our socket."""
        first = bastion.host(name="bastion")
        inner = sshd.host(name="inner", jump=first)
        with Hosts([sshd.host(jump=inner), first], [known]) as hosts:
            client = hosts[0].run(["printenv", "SSH_CONNECTION"])[1].split()
            assert not is_ours(int(client[1]))
            client = hosts[1].run(["printenv", "SSH_CONNECTION"])[1].split()
            assert is_ours(int(client[1]))

    def test_many_hosts_share_the_connection_to_the_jump_host(
        self, sshd: Sshd, bastion: Sshd, known: Path
    ) -> None:
        first = bastion.host(name="bastion")
        nodes = [sshd.host(name=f"n{i}", jump=first) for i in range(4)]
        with Hosts(nodes, [known]) as hosts:
            threads = [threading.Thread(target=hosts[i].run, args=(["true"],)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert bastion.log.read_text().count("Accepted publickey") == 1

    def test_the_jump_hosts_key_is_checked_too(self, sshd: Sshd, bastion: Sshd) -> None:
        host = sshd.host(jump=bastion.host(name="bastion"))
        message = fails(host, sshd.known_hosts)
        assert message.startswith(f"bastion ({getpass.getuser()}@127.0.0.1:{bastion.port}): ")
        assert "host key is not known" in message

    def test_behind_a_jump_host_the_hosts_key_is_checked(self, sshd: Sshd, bastion: Sshd) -> None:
        """The proposed command goes the same way."""
        host = sshd.host(jump=bastion.host(name="bastion"))
        message = fails(host, bastion.known_hosts)
        assert message.startswith("here (")
        assert f"-J {getpass.getuser()}@127.0.0.1:{bastion.port} -p {sshd.port}" in message

    def test_what_the_jump_host_cannot_reach(self, bastion: Sshd) -> None:
        port = free_port("127.0.0.1")
        jump = bastion.host(name="bastion")
        message = fails(
            Host(name="inner", address="127.0.0.1", port=port, user="x", jump=jump),
            bastion.known_hosts,
        )
        assert message.startswith(f"inner (x@127.0.0.1:{port}): not reached from the jump host ")

    def test_a_mute_host_behind_a_jump_host(self, bastion: Sshd) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            jump = bastion.host(name="bastion")
            host = Host(name="mute", address="127.0.0.1", port=port, user="x", jump=jump)
            message = fails(host, bastion.known_hosts, timeout_s=2.0)
        assert message.startswith("mute (")
        assert message.endswith("no answer within 2 s")

    def test_a_jump_host_that_goes_away(self, sshd: Sshd, bastion: Sshd, known: Path) -> None:
        jump = bastion.host(name="bastion")
        with Hosts([sshd.host(jump=jump), jump], [known]) as hosts:
            channel = hosts[0].open(["cat"])
            channel.send("still there?")
            assert channel.receive(PATIENCE_S) == "still there?"
            serving = serving_pid(hosts, 1)
            bastion.stop()
            os.kill(serving, signal.SIGKILL)
            assert channel.receive(PATIENCE_S) is None
