"""A machine that is a guest kernel of its own: its wire, its address and its sshd.

`python -m tests.testbed.kernel_machine NUMBER SEED KEYS` runs in a guest as root, in real time, and
prints "up" when it takes SSH. `tests.testbed.kernels` has the other end of the wire, a serial line:
OUTPUT and INPUT frames are Ethernet frames from and to the machine, TAKEN says how many bytes were
read off the line. KEYS is a folder with host_key, client_key and client_key.pub. SEED makes its
random numbers differ from those of other machines, as every guest boots with the same ones.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tty
from pathlib import Path

from netbench.network.remote.deployer import FOLDERS
from netbench.testbed.guest.boot import LINE_DEVICE
from netbench.testbed.machine.packages import find_command
from netbench.testbed.persistent.frames import COUNT, INPUT, OUTPUT, TAKEN, FrameReader, frame
from netbench.testbed.ssh.local_sshd import PASSWD, SHADOW, SSHD_CONFIG

OWN = Path("/run/machine")
"""Files of the machine. /run is in memory."""

UP = OWN / "up"
"""Is there once the machine has its address."""

INTERFACE = "eth0"

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000  # linux/if_tun.h
RNDADDENTROPY = 0x40085203  # linux/random.h

SETUP = """\
set -e
ip link set lo up
ip link set {interface} address 02:00:00:00:00:{number:02x} up
ip addr add {address}/24 dev {interface}
for folder in {folders}; do mount -t tmpfs -o size=16m tmpfs $folder; done
mkdir -m 755 -p /run/sshd
mount --bind {own}/passwd /etc/passwd
mount --bind {own}/shadow /etc/shadow
"""


def address(number: int) -> str:
    """Return the address of a machine."""
    return f"10.78.0.{number + 1}"


def main(number: int, seed: str, keys: str) -> None:
    """Be the machine until it has no power."""
    with Path("/dev/urandom").open("wb") as pool:
        data = bytes.fromhex(seed)
        fcntl.ioctl(pool, RNDADDENTROPY, struct.pack("ii", 8 * len(data), len(data)) + data)
    socket.sethostname(f"machine{number}")
    shutil.copytree(keys, OWN)
    (OWN / "passwd").write_text(PASSWD.format(scratch=OWN))
    (OWN / "shadow").write_text(SHADOW)
    (OWN / "sshd_config").write_text(SSHD_CONFIG.format(scratch=OWN))
    for key in ("host_key", "client_key"):
        (OWN / key).chmod(0o600)
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), IFF_TAP | IFF_NO_PI))
    setup = SETUP.format(
        interface=INTERFACE,
        number=number,
        address=address(number),
        folders=" ".join(FOLDERS),
        own=OWN,
    )
    subprocess.run(["sh", "-c", setup], check=True)
    subprocess.Popen([str(find_command("sshd")), "-D", "-e", "-f", str(OWN / "sshd_config")])
    UP.touch()
    print("up", flush=True)
    carry(tap, os.open(LINE_DEVICE.format(number=1), os.O_RDWR | os.O_NOCTTY))


def carry(tap: int, line: int) -> None:
    """Carry frames between the interface and the line."""
    tty.setraw(line)
    reader = FrameReader()
    while True:
        ready, _, _ = select.select([tap, line], [], [])
        if line in ready:
            data = os.read(line, 4096)
            for kind, payload in reader.feed(data):
                assert kind == INPUT
                os.write(tap, payload)
            send(line, frame(TAKEN, COUNT.pack(len(data))))
        if tap in ready:
            send(line, frame(OUTPUT, os.read(tap, 2048)))


def send(line: int, data: bytes) -> None:
    while data:
        data = data[os.write(line, data) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
