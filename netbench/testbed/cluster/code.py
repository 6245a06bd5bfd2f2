"""The code that hosts get: the import closure of `netbench.trainers`, as one zip."""

import ast
import functools
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from netbench.network.remote.bytecode import add_module

ROOT = Path(__file__).parents[3]
"""Parent folder of the package."""

TRAINERS = "netbench.trainers"
SERVER = "netbench.trainers.node_server"

RUN_VARIABLE = "NETBENCH_RUN"
"""Environment variable of every process of a run on a host: the token of the run."""

BOOTSTRAP = """\
import base64, fcntl, hashlib, os, shutil, sys
folder, token, size, checksum, interface = sys.argv[1:]
try:
    os.mkdir(folder + ".new", 0o700)
    fcntl.flock(os.open(folder + ".new", os.O_RDONLY), fcntl.LOCK_EX)  # until this process ends
    os.rename(folder + ".new", folder)
    text = b""
    while len(text) < int(size):
        read = os.read(0, int(size) - len(text))
        if not read:
            sys.exit("the code of the node server was cut off")
        text += read
    data = base64.b64decode(text)
    if hashlib.sha256(data).hexdigest() != checksum:
        sys.exit("the code of the node server has a wrong checksum")
    code = folder + "/code.zip"
    with open(code, "xb") as file:
        file.write(data)
except BaseException as error:
    for made in (folder + ".new", folder):
        shutil.rmtree(made, ignore_errors=True)
    if isinstance(error, OSError):
        sys.exit(f"cannot write its code to {folder}: {error.strerror}")
    raise
sys.path.insert(0, code)
path = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = code + (os.pathsep + path if path else "")
os.environ["NETBENCH_RUN"] = token
from pathlib import Path
from netbench.trainers.node_server import serve
sys.exit(serve(Path(folder), interface))
"""
"""Program for any Python: takes the code from its input, checks it, and becomes the server.

Its folder is locked as long as it lives (`certificate.CLEAN`).
"""


@functools.cache
def code_zip() -> bytes:
    """Return the modules that trainers import, for Python's path.

    torch and numpy are not in it: they are the host's.
    """
    data = io.BytesIO()
    trainers = [_name(path) for path in (ROOT / TRAINERS.replace(".", "/")).rglob("*.py")]
    at_once = _closure([SERVER])
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_closure(trainers)):
            name, source = str(path.relative_to(ROOT)), path.read_bytes()
            if path in at_once:
                add_module(archive, name, source)
            else:  # compiled, all would be three times as large
                archive.writestr(zipfile.ZipInfo(name), source, archive.compression)
    return data.getvalue()


def _closure(names: list[str]) -> set[Path]:
    """Return the files of some modules and of all that they import."""
    found: set[Path] = set()
    while names:
        name = names.pop()
        path = _source(name)
        if path is None or path in found:
            continue
        found.add(path)
        names.append(name.rpartition(".")[0])
        names += _imports(path)
    return found


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _source(name: str) -> Path | None:
    """Return the file of a module of netbench; None for other names."""
    if name.split(".")[0] != "netbench":
        return None
    path = ROOT / name.replace(".", "/")
    package, module = path / "__init__.py", path.with_suffix(".py")
    return package if package.exists() else module if module.exists() else None


def _imports(path: Path) -> Iterator[str]:
    """Yield the names that a module imports when it runs: not those for type checkers."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
