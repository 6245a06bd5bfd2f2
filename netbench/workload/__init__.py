"""Models as FLOPs, bytes and, on a device profile (`profiles/*.yaml`), seconds.

`costs` has a GPT cut into layers, `models` those that a scenario names, `whole` what comes when
in a pass over a model that every rank holds. `memory` says what a rank keeps, `tokens` what one
that computes reads. `calibration` makes a profile of measured passes.
"""
