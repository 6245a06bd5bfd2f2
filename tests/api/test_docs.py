"""Every example of docs/api.md, and the notebook beside it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).parents[2] / "docs"

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_page_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks share their names, as in one session."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((DOCS / "api.md").read_text(encoding="utf-8"))
    text = "\n".join(block for block in blocks if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(text, {}, "docs/api.md", None, 0)
    assert len(test.examples) > 20
    said: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE
    failed = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
    assert failed.failed == 0, "".join(said)
    assert (tmp_path / "placement.json").is_file()


def test_examples_that_are_not_run_use_names_that_exist() -> None:
    """An emulation takes minutes: its example is only compiled."""
    import netbench as nb

    blocks = BLOCK.findall((DOCS / "api.md").read_text(encoding="utf-8"))
    others = [block for block in blocks if ">>>" not in block]
    assert len(others) == 1
    for block in others:
        compile(block, "docs/api.md", "exec")
        assert set(re.findall(r"\bnb\.(\w+)", block)) <= set(nb.__all__)


def test_the_page_lists_every_function() -> None:
    """A function that the page leaves out is not found by readers."""
    import netbench as nb

    text = (DOCS / "api.md").read_text(encoding="utf-8")
    functions = {name for name in nb.__all__ if name[0].islower()}
    assert functions == {name for name in functions if f"nb.{name}(" in text}


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """It is executed as Jupyter would, and shows its tables and pictures."""
    notebook = nbformat.read(  # type: ignore[no-untyped-call]
        DOCS / "examples" / "two-labs.ipynb", as_version=4
    )
    assert not any(cell.get("outputs") for cell in notebook.cells)  # they would go out of date
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = [
        set(output.data)
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    assert sum("image/png" in kinds for kinds in shown) == 3
    assert sum("text/html" in kinds for kinds in shown) == 6
    assert list(tmp_path.iterdir()) == []  # nothing was recorded
