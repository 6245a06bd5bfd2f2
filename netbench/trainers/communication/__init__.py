"""Exchange of tensors between ranks.

- `world` is the gloo process group of all ranks, `nccl` the same for tensors of CUDA devices;
  `links` has the limits of paths (pure).
- `communicator` gives point-to-point transfers the semantics of an NCCL communicator; `leaving`
  tells when their bytes have left.
- `group` is the processes of a collective, and their barrier; `slices` are the parts in which NCCL
  moves a tensor.
- `rings` executes rings, and `collectives` all other stages of `plan.collectives`.
- `peers` connects to peers that may leave.
"""
