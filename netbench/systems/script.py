"""A user's script on every rank (`netbench run --command`). Nothing is known of what it does."""

import re

from netbench.systems.base import System, Variant

SCRIPT = "command"
"""The system's name in records."""


class Script(System):
    """Its bytes, its memory and its iterations are its own; it is not simulated."""

    name = SCRIPT
    grammar = "command[-random]"
    pattern = re.compile(r"command(?P<random>-random)?")
    examples = ("command", "command-random")
    trainer = "netbench.trainers.systems.script"
    runs_script = True

    def variant(self, found: re.Match[str]) -> Variant:
        return Variant(
            system=self.name,
            scheduler="random" if found["random"] else "identity",
            data_parallel="none",
            pipeline=1,
        )
