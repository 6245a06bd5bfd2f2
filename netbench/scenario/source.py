"""Read YAML files with the line of every key, for error messages."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from netbench.errors import ScenarioError
from netbench.files import read_text

MAX_VALUES = 1_000_000
"""Values in a file."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

NO_FILE = Path()
"""Path of a scenario that was made in code."""

KeyPath = Sequence[str | int]
"""Keys and indices from the top of the file to a value, e.g. ("network", "links", 2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A YAML or JSON file: its path, its data, and the position of each value in the text.

    path: `NO_FILE` for data that was made in code. Errors then name the key only.
    """

    path: Path
    data: Any
    root: Node | None

    def error(self, keys: KeyPath, message: str) -> ScenarioError:
        """Return the error `file:line: key message` for the value at `keys`."""
        where = f"{shown_path(self.path)}:{self.line(keys)}: " if self.path != NO_FILE else ""
        return ScenarioError(f"{where}{written_keys(keys)} {message}" if keys else where + message)

    def line(self, keys: KeyPath) -> int:
        """Return the line, from 1, of the value at `keys`, or of the innermost key that exists."""
        line, node = 1, self.root
        for key in keys:
            line, node = _step(node, key, line)
        return line


def _step(node: Node | None, key: str | int, line: int) -> tuple[int, Node | None]:
    """Return line and node of `node[key]`; the given line and None if there is no such key."""
    if isinstance(node, MappingNode):
        for name, value in node.value:
            if name.value == str(key):
                return name.start_mark.line + 1, value
    if isinstance(node, SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key].start_mark.line + 1, node.value[key]
    return line, None


def written_keys(keys: KeyPath) -> str:
    """Return a path of keys as text, e.g. network.links[2].bandwidth."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def shown_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_source(path: Path) -> SourceFile:
    """Read and parse a file.

    Raises ScenarioError if it cannot be read, is not UTF-8, is not YAML or repeats a key.
    """
    text = _read_text(path)
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        if _num_values(root, {}) > MAX_VALUES:
            raise ScenarioError(
                f"{shown_path(path)}: more than {MAX_VALUES} values, aliases counted as often as "
                "they are used; write fewer"
            )
        data = yaml.constructor.construct_document(root) if root else None
    except DuplicateKeyError as error:
        key = str(error.problem).split('"')[1]
        raise _yaml_error(path, error, f'"{key}" is given twice; keep one of the two') from None
    except (YAMLError, ValueError) as error:
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        # JSON is a subset of YAML, so JSON files are read here too.
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise _yaml_error(path, error, f"not {kind}: {problem}") from None
    except RecursionError:
        raise ScenarioError(f"{shown_path(path)}: nested too deeply to be a scenario") from None
    return SourceFile(path=path, data=data, root=root)


def _num_values(node: Any, known: dict[int, float]) -> float:
    """Return the number of values in a node, inf if it contains itself. known: by id of a node."""
    if id(node) not in known:
        known[id(node)] = math.inf
        children = node.value if isinstance(node, SequenceNode) else ()
        if isinstance(node, MappingNode):
            children = itertools.chain.from_iterable(node.value)
        known[id(node)] = 1 + sum(_num_values(child, known) for child in children)
    return known[id(node)]


def _read_text(path: Path) -> str:
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise ScenarioError(
            f"{shown_path(path)}: no such file; give a scenario's name (`netbench scenario list`) "
            "or the path of a YAML file"
        ) from None
    except OSError as error:
        raise ScenarioError(f"{shown_path(path)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ScenarioError(
            f"{shown_path(path)}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
            "save the file with UTF-8 encoding"
        ) from None
    if found := _SURROGATE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ScenarioError(
            f"{shown_path(path)}:{line}: {found[0]} is half of a character; write the character"
        )
    return text


def _yaml_error(path: Path, error: Exception, message: str) -> ScenarioError:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    return ScenarioError(f"{shown_path(path)}{line}: {message}")
