"""Turn records into tables, pictures and the pages of `results/`.

- `tables/` prints a run, a collective, a sweep, a search; `tables.grid` is the table itself.
- `pictures/` draws runs, maps, timelines and searches.
- `page/` writes the pages: published, simulated and recorded times side by side.
"""
