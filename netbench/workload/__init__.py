"""Models as FLOPs, bytes and, on a device profile (`profiles/*.yaml`), seconds.

`costs` covers GPTs that are divided into layers, `models` the models that scenarios name, `whole`
models that every rank has whole. `memory` estimates device memory, `tokens` checks training data,
and `calibration` makes a device profile of measured passes.
"""
