"""Installing Puna installs everything it needs: it uses no undeclared package."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.shell import Shell
from tests.ports import free_port
from tools import install

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "puna"

#: The modules that need an extra, which they name in an error where it is missing.
OF_EXTRAS = {
    "cluster": ("cluster",),
    "gpu": ("ops/gpu",),
    "mcp": ("mcp", "cli/mcp_serving.py"),
    "pdf": ("server/jobs/pdf/process.py",),
}
#: Packages that a dependency imports, without declaring them: Starlette for forms.
BY_OTHERS = {"python-multipart"}


def declared(extra: str = "") -> list[Requirement]:
    """Return the dependencies that pyproject.toml declares for everybody, or those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(line) for line in lines]


def extra_of(path: Path) -> str:
    """Return the extra that a module needs; empty for most."""
    name = path.relative_to(SOURCES).as_posix()
    return next(
        (
            extra
            for extra, parts in OF_EXTRAS.items()
            if any(name == part or name.startswith(f"{part}/") for part in parts)
        ),
        "",
    )


def imports() -> Iterator[tuple[str, Path]]:
    """Yield each imported package, including imports inside functions, with the file that imports it."""
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name.partition(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module.partition(".")[0], path


@pytest.mark.slow
def test_imported_packages_are_exactly_the_declared_ones() -> None:
    distributions = metadata.packages_distributions()
    used: dict[str, set[str]] = {extra: set() for extra in ("", *OF_EXTRAS)}
    for package, path in imports():
        if package not in sys.stdlib_module_names and package != "puna":
            assert package in distributions, f"{path} imports {package}, which is not even installed"
            used[extra_of(path)].add(canonicalize_name(distributions[package][0]))
    names = {canonicalize_name(requirement.name) for requirement in declared()}
    assert used.pop("") | BY_OTHERS == names
    for extra, names in used.items():
        assert names <= set(closure([*declared(), *declared(extra)])), extra


def closure(requirements: list[Requirement]) -> dict[str, metadata.Distribution]:
    """Return the distributions that `requirements` install, including dependencies of dependencies."""
    found: dict[str, metadata.Distribution] = {}
    pending = [(requirement, "") for requirement in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        distribution = metadata.distribution(name)
        nested = [Requirement(line) for line in distribution.requires or ()]
        pending += [(inner, extra) for extra in requirement.extras for inner in nested]
        if name not in found:
            found[name] = distribution
            pending += [(inner, "") for inner in nested]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with only Puna and its declared dependencies, linked rather than
    installed.
    """
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in closure(declared()).values():
        for top in {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    package = site / "puna"
    package.mkdir()
    for part in SOURCES.iterdir():
        (package / part.name).symlink_to(part)
    native = util.find_spec("puna._native")
    if native is not None and native.origin and not (package / Path(native.origin).name).exists():
        (package / Path(native.origin).name).symlink_to(native.origin)
    return folder / "bin" / "python"


def run_bare(python: Path, *arguments: str, shell: Shell) -> str:
    env = {name: value for name, value in shell.env.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [python, *arguments], env=env, cwd=shell.home, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORT_ALL = """
import importlib, importlib.util, pkgutil, puna
for module in pkgutil.walk_packages(puna.__path__, "puna."):
    if module.name.endswith("__main__"):
        continue
    if module.name in ("puna.mcp.transports", "puna.cli.mcp_serving", "puna.server.jobs.pdf.process"):
        continue  # they need an extra
    if module.name.startswith("puna.ops.gpu."):
        continue
    if module.name.startswith("puna.ops.cpu") and importlib.util.find_spec("puna._native") is None:
        continue
    importlib.import_module(module.name)
for strange in ("torch", "pytest", "gguf", "transformers"):
    assert importlib.util.find_spec(strange) is None, strange
print("all")
"""


@pytest.mark.slow
@pytest.mark.e2e
def test_puna_runs_with_only_its_declared_dependencies(bare: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, free_port())
    assert run_bare(bare, "-c", IMPORT_ALL, shell=shell) == "all\n"
    try:
        answer = run_bare(bare, "-m", "puna", "run", "demo", "Hello!", "--num-predict", "4", shell=shell)
        assert answer.strip()
        assert "demo" in run_bare(bare, "-m", "puna", "ps", shell=shell)
    finally:
        run_bare(bare, "-m", "puna", "serve", "--stop", shell=shell)


#: Lines printed by `pip install --verbose`.
OUTPUT = """\
Obtaining file:///puna
  Installing build dependencies: started
  Running command installing build dependencies for puna
  Collecting scikit-build-core>=0.11
    Downloading scikit_build_core-1.1.2-py3-none-any.whl (295 kB)
  Installing collected packages: scikit-build-core, numpy, nanobind
  *** scikit-build-core 1.1.2 using CMake 3.25.1 (editable)
  *** Configuring CMake...
  -- The CXX compiler identification is GNU 12.2.0
  [0/2] Re-checking globbed directories...
  [1/56] Building CXX object CMakeFiles/_native.dir/csrc/core/cpu.cpp.o
  [56/56] Linking CXX shared module _native.so
  [ 12%] Building CXX object CMakeFiles/_native.dir/csrc/core/pool.cpp.o
"""


def test_pip_output_becomes_steps() -> None:
    assert list(install.steps(OUTPUT.splitlines())) == [
        ("fetching the build's own tools", ""),
        ("fetching packages", "scikit-build-core"),
        ("fetching packages", "scikit_build_core-1.1.2-py3-none-any.whl (295 kB)"),
        ("installing packages", ""),
        ("configuring the build of the C++ kernels", ""),
        ("compiling the C++ kernels", "1 of 56"),
        ("compiling the C++ kernels", "56 of 56"),
        ("compiling the C++ kernels", "12 %"),
    ]


@pytest.mark.slow
def test_failed_installation_shows_the_end_of_its_output(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[build-system]\nrequires = 5\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "install.py", "--no-index", "."], cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.startswith("Installing Puna. ")
    assert "requires" in done.stdout
    assert done.stdout.endswith("build/install.log; its first error is the cause.\n")
    assert "requires" in (tmp_path / "build" / "install.log").read_text()
