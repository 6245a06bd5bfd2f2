"""Communication libraries: one profile each, with every constant and its source.

`profile` reads `profiles/*.yaml` into a `TransportProfile`.
"""
