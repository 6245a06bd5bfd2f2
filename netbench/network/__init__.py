"""Make a real network behave like a scenario's, and prove that it does.

`program` compiles a network into one `tc` program per node: `queues` says who shares one and at
what rate, `tc` has the line of each class, netem and filter. `update` makes what turns a program
into another, `readback` compares with what the kernel holds, `limits` says what netem will not
deliver. All of that is pure.

Nodes on this machine: `apply` loads, reads back and takes away; `netlink` reads without `tc`.
Machines of others: `fleet` gives all of them their programs or none; `courier` sends each the
`agent`, which keeps what was there before and puts it back; `preflight` says what speaks against
it, `usage` what links carry, by the `counters` of their queues.

`samples` says which links to measure, `measure` runs `probe` on the nodes, `verify` judges;
`trains` has the statistics of jitter and loss. `fidelity`: how far a testbed may be trusted.

`trace`: links that change; `patterns` makes such, `replay` plays them. `command` reaches many
nodes at once.
"""
