"""Machines reached over SSH.

- `inventory` reads files of hosts (`host`); `machines` connects to them with paramiko.
- `openssh` asks OpenSSH for its configuration; `known_hosts` reads the keys it trusts.
- `slurm` names the hosts of a job; `this_machine` is a host that needs no SSH.
- `local_sshd` runs an sshd in every node of this machine.
"""
