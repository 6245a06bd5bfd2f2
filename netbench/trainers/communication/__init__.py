"""Exchange of tensors between ranks.

- `world` is the gloo process group of all ranks, `nccl` the same for tensors of CUDA devices;
  `links` has the limits of paths (pure).
- `communicator` gives point-to-point transfers the semantics of an NCCL communicator.
- `collectives` executes the specifications of `plan.collectives`, `rings` those of rings: by the
  members of a `group`, in `slices` as NCCL's.
- `peers` connects to peers that may leave.
"""
