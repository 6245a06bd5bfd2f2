"""Sentences of the project follow the rules of plain English, as far as a pattern can tell.

A docstring or help text starts with a noun phrase or an imperative, and words of a private dialect
are avoided. The patterns find the worst only; a reader finds the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FIRST_WORD = re.compile(
    r"(What|Of|Whether|Where|When|As|How|Who|Whose|Whom|Why|Also|Likewise|So|Such|That|Those|There)\b"
)
DIALECT = re.compile(
    r"held network|network held|\bholders?\b|\bbefall|\bcouriers?\b|\bwardens?\b|\bcomplaints?\b"
    r"|\bdistrust|one of (its|their|his) own\b|\bof its own each\b|\bof (its|their) own(?= each)"
    r"|\bis looked\b|\bwhat speaks against\b|\bmade anew\b|\bnow and then\b|\bsomebody's own\b"
    r"|\btold apart\b|\bwhat is to be said\b|\bso many\b|\bas many\b(?!( \w+){0,5} as\b)"
    r"|(?<![Tt]here )\b(is|are) no (?!(longer|more|less|lower|higher|better|worse|such|different"
    r"|one|faster|slower|larger|smaller)\b)"
)


def folders() -> list[str]:
    """Folders two levels deep, with the documents at the top as one more."""
    found = {path.parent for top in ("netbench", "tests", "benchmarks") for path in modules(top)}
    names = {"/".join(path.relative_to(ROOT).parts[:2]) for path in found}
    return sorted(names)


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield docstrings, and strings that stand beneath a constant or a field."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and is_text(statement.value):
                assert isinstance(statement.value, ast.Constant)
                yield statement.value


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sentences(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text, and whether the text is a docstring or a help text."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    starts = {id(node) for node in docstrings(tree)}
    starts |= {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in ("help", "short_help")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, " ".join(node.value.split()), id(node) in starts
    for number, line in enumerate(source.splitlines(), 1):
        if comment := re.search(r"(?:^|\s)#\s(.*)", line):
            yield number, comment[1], False


def broken_rules(text: str, *, starts: bool) -> Iterator[str]:
    """Yield what is wrong with a text; `starts`: its first word counts."""
    if starts and (first := FIRST_WORD.match(text)):
        yield f'starts with "{first[0]}"; start with an imperative or a noun phrase'
    if word := DIALECT.search(text):
        yield f'says "{word[0]}"; use the standard term'


def findings(folder: str) -> Iterator[str]:
    for path in modules(folder):
        # The patterns themselves are no sentences.
        if path == Path(__file__):
            continue
        if len(path.relative_to(ROOT).parts) > 2 and folder.count("/") == 0:
            continue  # a folder below has a test of its own
        for line, text, starts in sentences(path):
            for rule in broken_rules(text, starts=starts):
                yield f"{path.relative_to(ROOT)}:{line}: {rule}: {text[:80]}"


@pytest.mark.parametrize("folder", folders())
def test_sentences_in_code_are_plain_english(folder: str) -> None:
    """Docstrings, comments, help texts and messages of every module."""
    assert [*findings(folder)] == []


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]), ids=lambda page: page.name
)
def test_pages_use_the_standard_terms(page: Path) -> None:
    """README and documentation."""
    lines = page.read_text(encoding="utf-8").splitlines()
    # A sentence may go on in the next line.
    wrong = [
        f"{page.relative_to(ROOT)}:{number}: {rule}"
        for number, (line, after) in enumerate(pairwise([*lines, ""]), 1)
        for rule in broken_rules(f"{line} {after}", starts=False)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("What has it is ours.", True),
        ("Of pipelines: a scheduler.", True),
        ("Warden processes clean up.", False),
        ("The warden cleans up.", True),
        ("It is no longer limited.", False),
        ("It is no trainer.", True),
        ("Wherever there is no trainer.", False),
        ("Use as many ranks as there are nodes.", False),
        ("Return the observed delay.", False),
    ],
)
def test_the_patterns_find_what_they_are_for(text: str, *, is_wrong: bool) -> None:
    """The guard itself can fail."""
    assert bool([*broken_rules(text, starts=True)]) is is_wrong
