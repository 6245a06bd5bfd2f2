"""One self-contained HTML page of recorded runs, which opens from disk without a network.

- `page` assembles it from the modules of `sections`; `summary` is its head.
- `study` reads a run and simulates its plans again, once for all sections.
- `charts` compiles Vega-Lite charts and bundles the library that draws them.
- `templates` has the markup, the style and the script. Text of runs is escaped.
"""
