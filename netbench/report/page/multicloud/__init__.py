"""The page on training in several clouds, `results/multicloud.md`.

`data` reads the published experiments and predicts them, `emulated` reads the recorded runs, and
`page` writes the page.
"""
