"""Where nodes are, and what starts ranks there.

- Which: `host` looks what this machine has, `doctor` says what that allows, `choose` takes one
  for a run; `packages` are Debian's.
- The guest kernel: `kernel` finds it or has `kernel_build` make it, `boot_check` tries it,
  `guest` boots it.
- A run: `local` is the controller; it has `launch` start sessions, each with a `job`. A `session`
  makes nodes (`namespaces`, `sshd`), gives them a network (`shaping`), and drives its `ranks`:
  plans, iterations, `traces`. `peers` may go and come. `activity` and `failures` say who is to
  blame when it ends; `progress` how far it is. `shim` is a preload library for the ranks.
- Scripts: `command` runs one on every rank, `reports` reads what it prints. `calibration` starts
  what measures a device.
- Reaching nodes: `transport` is what a session needs, `ssh` reaches machines over paramiko;
  `inventory` names them, `openssh` and `known_hosts` are what OpenSSH knows of them.
- A network held open: `hold` from outside (the process that holds it is a `holder`),
  `hold_session` within. `shells` and `terminal` are the ends of a command in it, `frames` what
  travels between them. `counters_held` and `replay_held` use it through a `held_channel`;
  `replay_session` plays a trace inside.
"""
