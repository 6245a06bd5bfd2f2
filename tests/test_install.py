"""Installing netbench: the wheel, the container files, CI's workflow, completion, imports."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HEAVY = {"matplotlib", "numba", "numpy", "pandas", "pydantic", "rich", "scipy", "torch"}

IMPORT_S = 0.3
"""Longest time of `import netbench`, seconds of CPU, on a busy machine too."""


def output_of(*args: str | Path, **options: object) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(
        list(map(str, args)),
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{args}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the commands of a fresh environment that has the wheel.

    Its dependencies are those of this environment, which `make setup` installed with the same
    constraints; netbench itself comes from the wheel only.
    """
    folder = tmp_path_factory.mktemp("wheel")
    output_of(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    output_of(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    python = folder / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    output_of(*pip, "install", "--no-deps", "--no-index", "-c", ROOT / "constraints.txt", wheel)
    # A path in a .pth file is added without reading .pth files there: no editable netbench.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env" / "bin"


def test_the_wheel_works_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """List scenarios, simulate case 5, print its table beside the published figures."""
    home = {"HOME": str(tmp_path), "PATH": os.defpath}
    code = "import netbench; print(netbench.__file__)"
    where = output_of(installed / "python", "-c", code, cwd=tmp_path, env=home)
    assert Path(where).is_relative_to(installed.parent)
    netbench = installed / "netbench"
    listed = output_of(netbench, "scenario", "list", cwd=tmp_path, env=home)
    assert "case5" in listed
    ran = output_of(netbench, "run", "case5", "--testbed", "sim", cwd=tmp_path, env=home)
    printed = output_of(netbench, "table", "case5", cwd=tmp_path, env=home)
    for text in (ran, printed):
        row = next(line for line in text.splitlines() if "dtfm-scheduled" in line)
        assert "44.01" in row  # published
        assert "41.89" in row  # simulated
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == ["results"]


def test_importing_netbench_is_cheap() -> None:
    """It imports no library: names are imported when they are first used."""
    code = (
        "import sys, time; old = set(sys.modules); start = time.process_time(); import netbench; "
        "print(time.process_time() - start, *(set(sys.modules) - old))"
    )
    seconds, *modules = output_of(sys.executable, "-c", code).split()
    assert float(seconds) <= IMPORT_S
    assert {name.partition(".")[0] for name in modules}.isdisjoint(HEAVY)
    assert [name for name in modules if name.startswith("netbench.")] == []


def test_every_name_of_netbench_can_be_imported() -> None:
    """And `dir` lists it, for completion in a notebook."""
    import netbench

    for name in netbench.__all__:
        assert getattr(netbench, name) is not None
    assert set(netbench.__all__) <= set(dir(netbench))
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        netbench.simulat  # noqa: B018


def test_the_workflow_of_ci_is_valid() -> None:
    """By the schema that GitHub publishes, which check-jsonschema contains."""
    found = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert found
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
    assert "ok" in output_of(*check, "vendor.github-workflows", *found)


def test_ci_runs_every_python_that_is_declared() -> None:
    """From the oldest that pyproject.toml allows on."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    for version in ("3.11", "3.12", "3.13"):
        assert f'"{version}"' in workflow


@pytest.mark.parametrize("file", ["Dockerfile", ".devcontainer/Dockerfile"])
def test_container_files_pass_their_linter(file: str) -> None:
    """Neither can be built here."""
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: it has no wheel for this machine")
    output_of(hadolint, ROOT / file)


def test_the_shell_completes_commands_and_options() -> None:
    """docs/install.md has the line for bash."""
    words = {"COMP_WORDS": "netbench run case3 --sys", "COMP_CWORD": "3"}
    environment = os.environ | words | {"_NETBENCH_COMPLETE": "bash_complete"}
    found = output_of(sys.executable, "-m", "netbench", env=environment)
    assert "plain,--systems" in found.splitlines()
