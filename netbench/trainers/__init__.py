"""What runs on the nodes: rank processes that carry out a plan. Only this package
imports torch.

`python -m netbench.trainers` is one rank; with `--fork-server SOCKET` it imports torch once and
forks a rank per connection. Nobody imports this package: a controller starts it and speaks JSON
lines with it (`protocol`).

    protocol      the messages, and the channel they travel on
    fork_server   one parent, many ranks, each in its own network namespace
    rank          the main loop of one rank
    command       one rank that is a script of somebody's own
    world         the ranks as one gloo process group
    links         what the plan's network allows between two processes (pure)
    communicator  point-to-point transfers with the semantics of one NCCL communicator
    collectives   chains and rings, sliced, as NCCL moves them
    calibrate     the loop of a process that measures a device instead
    events        what a rank did and when, recorded where a trace is asked for
    virtual       devices and stages that compute by sleeping
    tensor        layers that several ranks share, computed (DTensor) or virtual
    named         models by name, computed: built by transformers
    pipeline      carries a schedule (`plan.schedules`) out on model chunks and a communicator
    units         what ZeRO-3 gathers together: layers, virtual or real
    sharding      torch's `fully_shard` with rings for its collectives, and streams for overlap
    tree          all-reduce over two trees, as NCCL does on many nodes
    ddp           the whole model on every rank: buckets beside the backward pass, servers after it
    diloco        local steps, then an outer step together
    peers         connections between peers that may go, over TCP
    hivemind      peers that average compressed gradients, an iteration late
    systems       the training systems by name: `ddp`, `dtfm`, `megatron`, `zero3`, ...
"""
