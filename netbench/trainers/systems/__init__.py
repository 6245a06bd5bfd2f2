"""Training systems as the ranks of a plan execute them; `registry` builds the trainer of a plan.

- `dtfm`, `megatron`, `ddp`, `hivemind`, `diloco`: one module per system; zero3 and fsdp run
  in `segments`, with real layers in `sharded`. `System.trainer` and `real_trainer` name the class.
- `pipeline` executes a schedule (`plan.schedules`) on model chunks and a communicator.
- `benchmark` runs a single collective; `script` one rank of a user's script.
"""
