"""The pages of `results/`, generated from published, simulated and recorded times.

- `pages` assembles them and writes README.md. `case`, `predictions` and `anomalies` write the other
  pages.
- `published` reads the published figures, `published_tables` prints them.
- `simulated` reads the simulated tables, `accuracy` compares them with the published figures.
- `layouts` and `scaling` are sections of the pages. `multicloud`, `fluidstack` and `under_tc` write
  pages on other published experiments, `blind` and `ledger` the predictions made before comparing.
"""
