"""Machines reached over SSH.

- `inventory` reads files of hosts (`host`); `machines` connects to them with paramiko.
- `openssh` asks OpenSSH for its configuration; `known_hosts` reads the keys it trusts.
- `local_sshd` runs an sshd in every node of this machine.
"""
