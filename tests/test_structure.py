"""Limits on the shape of the package: names, folders, parameters."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "netbench"

MAX_MODULES = 15
MAX_PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions(*kinds: type[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield `file:line` and the node of every definition of these kinds."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_a_class_name_is_used_once_unless_its_docstring_names_the_other() -> None:
    """A second class of the same name says which one it is not, as in "not `netbench.x.Y`"."""
    classes: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for place, node in definitions(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        if not node.name.startswith("_"):
            classes[node.name].append((place, ast.get_docstring(node) or ""))
    wrong = {
        name: [place for place, _ in found]
        for name, found in classes.items()
        if sum(f".{name}`" not in text for _, text in found) > 1
    }
    assert wrong == {}


def test_folders_are_small() -> None:
    """A reader sees all modules of a folder at once."""
    sizes = Counter(str(path.parent.relative_to(ROOT)) for path in PACKAGE.rglob("*.py"))
    assert {folder: count for folder, count in sizes.items() if count - 1 > MAX_MODULES} == {}


def test_functions_take_few_parameters() -> None:
    """Commands excepted: click passes each option as a parameter."""
    wrong = []
    for place, node in definitions(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, Function)
        decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
        if "command" in decorators or "option" in decorators:
            continue
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > MAX_PARAMETERS:
            wrong.append(f"{place}: {node.name} has {count} parameters")
    assert wrong == []


def test_tests_import_helpers_from_their_own_folder_or_one_above() -> None:
    """Helpers that several folders share are in `tests`; doubles are `netbench.testing`."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
                helper = ROOT.joinpath(*str(node.module).split(".")).with_suffix(".py")
                if helper.parent not in path.parents or helper.name.startswith("test_"):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}")
    assert wrong == []
