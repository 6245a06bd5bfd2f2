"""Run plans on machines of an inventory, reached over SSH.

- `testbed` is the `Testbed`: node servers, the fleet's shaping with its lease, clocks.
- `players` are the machines of the nodes: hosts, or several namespaces of each.
- `server` speaks with the node server of a host (`netbench.trainers.node_server`), which gets its
  code from `code`.
- `check` compares the hosts before anything starts; `certificate` says afterwards what is left.
- `bench` measures a device of a host.
- `session` runs a session in a thread of the controller.
"""
