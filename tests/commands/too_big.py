"""A scenario in which GPipe exceeds the devices' memory and 1F1B does not."""

from __future__ import annotations

from pathlib import Path

from netbench.scenario import load_scenario

SYSTEMS = ("--systems", "dtfm-scheduled,dtfm-scheduled-1f1b")
"""The first keeps the activations of 64 sequences, the second those of 3 at most."""


def write(folder: Path) -> str:
    """Write gpt3-small without recomputation."""
    text = Path(load_scenario("gpt3-small").path).read_text()
    path = folder / "small.yaml"
    path.write_text(text.replace("recomputation: true", "recomputation: false"))
    return str(path)
