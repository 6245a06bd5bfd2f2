"""What runs on the nodes: rank processes that carry out a plan. Only this package imports torch.

`python -m netbench.trainers` is one rank; with `--fork-server SOCKET` it imports torch once and
forks a rank per connection. Nobody imports this package: a controller starts it and speaks JSON
lines with it (`protocol`).

    protocol      the messages, and the channel they travel on
    fork_server   one parent, many ranks, each in its own network namespace
    rank          the main loop of one rank
    command       one rank that is a script of somebody's own
    calibrate     the loop of a process that measures a device instead
    world         the ranks as one gloo process group
    events        what a rank did and when, recorded where a trace is asked for

    links         what the plan's network allows between two processes (pure)
    communicator  point-to-point transfers with the semantics of one NCCL communicator
    collectives   chains and rings, sliced, as NCCL moves them
    tree          all-reduce over two trees, as NCCL does on many nodes
    peers         connections between peers that may go, over TCP
    epoll_shim.c  a preload that spares gloo's event loop most of its polling

    stage         what a rank trains: layers, virtual or real
    virtual       devices and layers that compute by sleeping
    real          layers that compute, with gradients and an optimizer
    layers        a GPT in plain PyTorch
    named         models by name that compute: built by transformers
    memory        which errors say that memory ran out
    data          what is trained on: tokens, the same for whoever asks
    tensor        layers that several ranks share, computed (DTensor) or virtual
    units         what ZeRO-3 gathers together: layers, virtual or real
    sharding      torch's `fully_shard` with rings for its collectives, and threads for overlap

    systems       the training systems by name
    pipeline      carries a schedule (`plan.schedules`) out on model chunks and a communicator
    dtfm          GPipe or 1F1B, then data parallelism through servers or an all-reduce
    megatron      synchronous pipelines, then an all-reduce per model chunk
    zero3         `fully_shard` in micro-steps
    ddp           the whole model on every rank: buckets beside the backward pass, servers after it
    hivemind      peers that average compressed gradients, an iteration late
    diloco        local steps, then an outer step together
    benchmark     collectives and transfers alone, as gloo's users call them
"""
