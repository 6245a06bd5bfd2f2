"""Find a place to run a plan, start its ranks, and decide whether the result can be trusted.

- `interface` is the `Testbed` that a run needs. `local` implements it in namespaces of this machine
  (`namespaces`, `shaping`), `ssh/` through an sshd per node.
- `machine/` finds out what this machine can do and chooses a testbed.
- `guest/` builds, checks and boots the guest kernel.
- `runs/` is a run: the controller, and its sessions.
- `ranks/` starts ranks, drives them in step, and detects failures and hangs.
- `persistent/` keeps a network open for other commands: daemon, client, shells, replay.
"""
