"""Models that ranks train: layers that compute, or virtual layers that sleep.

- `stage` is the interface; `virtual` and `real` implement it; `gpt` and `named` are the models.
- `tensor` shares layers among ranks; `units` and `sharding` shard them with `fully_shard`.
- `data` supplies tokens; `memory` recognises errors that mean memory ran out.
"""
