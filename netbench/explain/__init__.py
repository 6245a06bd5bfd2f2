"""Explain a simulated iteration: where its time goes, and what would shorten it.

- `breakdown` attributes the seconds of every rank and follows the critical path.
- `causes` walks back through waits to what caused them.
- `losses` ranks what makes an iteration longer than its compute, a sentence each; `remedies`
  simulates what would shorten it.
- `usage` reports how busy links, NICs and connections are.
- `activity` gives the stretches of time in which ranks work or wait, for pictures.
- `timeline` unrolls an iteration as a rank would record it; `perfetto` writes it as a trace.
- `threshold` searches the poorest network that keeps a given fraction of the throughput.
"""
