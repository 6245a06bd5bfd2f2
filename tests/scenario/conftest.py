"""A small scenario file to bend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TEXT = """\
regions: [A, B]
nodes:
  - {region: A, count: 2, device: V100}
  - {region: B, count: 2, device: V100}
network:
  inside: {one_way_delay: 1ms, bandwidth: 5Gbit}
  links:
    - {between: [A, B], one_way_delay: 11ms, bandwidth: 1Gbit}
workload: {layers: 8, hidden: 512, heads: 8, sequence: 512, batch: 16}
"""

Bend = Callable[..., str]


@pytest.fixture
def bend(tmp_path: Path) -> Bend:
    """Path of the small scenario after replacing `old` by `new`, with `more` lines at the end."""

    def bend(old: str = "", new: str = "", more: str = "") -> str:
        assert TEXT.count(old) >= 1
        path = tmp_path / "mine.yaml"
        path.write_text((TEXT.replace(old, new, 1) if old else TEXT) + more, encoding="utf-8")
        return str(path)

    return bend
