"""A persistent network: a local network that stays open while other commands use it.

- `client` starts one and reaches into it. `daemon` serves its socket. `session` runs inside: it
  builds and shapes the network and serves commands.
- `shells` and `terminal` are the two ends of a command. `frames` is the protocol between them.
- `channel` carries lines to a command inside. `scenario` reads counters through it, and `replay`
  plays a trace.
"""
