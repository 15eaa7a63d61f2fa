"""Build wheels and try them out: `python tools/wheel.py build`, `test` or `reproduce`.

`build` puts a wheel for Python 3.11 and one for 3.12 and later into dist/, for any Linux with glibc 2.28; a
Python that the machine lacks is left out. `test` installs the wheels into empty environments without a
compiler, for every Python that is there, holds their size against a limit, and asks the bundled model.
`reproduce` builds a wheel twice, in different folders, and compares the bytes. Pythons are looked for on PATH
and in pyenv; PYTHONS names others. Needs nothing but Python, a C++ compiler and packages of PyPI.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
WORK: Final = ROOT / "build" / "wheels"

#: Pythons that a wheel is built with, and all that Puna supports.
BUILT_WITH: Final = ("3.11", "3.12")
SUPPORTED: Final = ("3.11", "3.12", "3.13", "3.14")
MOST_BYTES: Final = 12_000_000
MOST_INSTALLED_BYTES: Final = 300_000_000  # with pip and all that Puna needs
PATIENCE_S: Final = 60  # from a wheel to an answer
#: A wheel without one of these is not whole.
NEEDED: Final = (
    "puna/server/page/dist/index.html",
    "puna/demo/demo.gguf",
    "dist-info/licenses/LICENSE",
    "dist-info/licenses/NOTICE",
    "dist-info/licenses/third-party/page.txt",
    "dist-info/licenses/third-party/nanobind-LICENSE.txt",
    "dist-info/licenses/third-party/robin-map.txt",
    "dist-info/sboms/puna.cdx.json",
    "data/share/man/man1/puna.1",
    "data/share/bash-completion/completions/puna",
    "data/share/systemd/system/puna.service",
    "data/share/puna/nginx.conf",
)


class WheelError(Exception):
    """A wheel cannot be built, or is not as it should be."""


def pythons() -> dict[str, str]:
    """Return the Pythons of this machine that Puna supports, by version."""
    candidates = [found for each in SUPPORTED if (found := shutil.which(f"python{each}"))]
    candidates += [sys.executable, *os.environ.get("PYTHONS", "").split()]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False).stdout.strip()
        candidates += [str(path) for path in sorted(Path(root).glob("versions/*/bin/python"))]
    found: dict[str, str] = {}
    for candidate in candidates:
        ask = [candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(ask, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.strip() in SUPPORTED:
            found.setdefault(said.stdout.strip(), candidate)
    return dict(sorted(found.items()))


def run(command: Sequence[str | Path], environ: Mapping[str, str], folder: Path = ROOT) -> str:
    """Run a command and return its output. Raises WheelError with the end of it."""
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-30:])
        raise WheelError(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{end}")
    return done.stdout


def tools_of(version: str, python: str) -> Path:
    """Return the Python of an environment with the tools that build wheels, made if it is not there."""
    folder = WORK / f"tools-{version}"
    wanted = ROOT / "tools" / "wheel-requirements.txt"
    stamp = folder / "installed"
    made = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_bytes() != wanted.read_bytes():
        run([python, "-m", "venv", "--clear", folder], os.environ)
        run([made, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", wanted], os.environ)
        stamp.write_bytes(wanted.read_bytes())
    return made


def environ_of(python: Path) -> dict[str, str]:
    """Return an environment in which the tools are found and results depend on the sources only."""
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or commit.stdout.strip() or "315532800"
    return os.environ | {"PATH": path, "SOURCE_DATE_EPOCH": epoch, "PUNA_BUILD_KERNELS": "1"}


def build_wheel(python: Path, source: Path, out: Path) -> Path:
    """Build the wheel of `source` with the tools of `python`, and return its place in `out`."""
    environ = environ_of(python)
    with tempfile.TemporaryDirectory(prefix="puna-wheel-") as scratch:
        raw = Path(scratch)
        command = [
            python, "-m", "build", "--wheel", "--no-isolation", "--outdir", raw,
            "-Ccmake.define.PUNA_OLD_SYSTEMS=ON", "-Cinstall.strip=true",
        ]  # fmt: skip
        if shutil.which("ccache", path=environ["PATH"]):
            command.append("-Ccmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache")
        run(command, environ, source)
        (built,) = raw.glob("*.whl")
        repaired = raw / "repaired"
        repair = [python, "-m", "auditwheel", "repair", "--plat", f"manylinux_2_28_{platform.machine()}"]
        run([*repair, "--zip-compression-level", "9", "--wheel-dir", repaired, built], environ)
        (wheel,) = repaired.glob("*.whl")
        check(wheel)
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, out / wheel.name))


def check(wheel: Path) -> None:
    """Raise WheelError unless a wheel is whole and small enough."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [each for each in NEEDED if not any(name.endswith(each) for name in names)]
    if not any(re.fullmatch(r"puna/_native\..*so", name) for name in names):
        missing.append("puna/_native")
    if missing:
        raise WheelError(f"{wheel.name} lacks {', '.join(missing)}")
    if (size := wheel.stat().st_size) > MOST_BYTES:
        raise WheelError(f"{wheel.name} has {size:,} bytes, more than {MOST_BYTES:,}")


def build() -> None:
    """Build a source distribution and, from it, the wheels for all Pythons that need one of their own."""
    found = {version: path for version, path in pythons().items() if version in BUILT_WITH}
    if not found:
        raise WheelError(f"there is none of the Pythons {', '.join(BUILT_WITH)}")
    shutil.rmtree(DIST, ignore_errors=True)
    for version, python in found.items():
        began = time.monotonic()
        tools = tools_of(version, python)
        if not any(DIST.glob("*.tar.gz")):
            run([tools, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST], environ_of(tools))
        source = WORK / "source"  # always the same one, so that ccache knows what it has compiled
        shutil.rmtree(source, ignore_errors=True)
        (sdist,) = DIST.glob("*.tar.gz")
        shutil.unpack_archive(sdist, source, filter="data")
        (unpacked,) = source.iterdir()
        wheel = build_wheel(tools, unpacked, DIST)
        size = wheel.stat().st_size
        print(f"{wheel.name}: {size / 1e6:.1f} MB, {time.monotonic() - began:.0f} s", flush=True)


def reproduce() -> None:
    """Build a wheel twice, from sources in different folders. Raises WheelError if bytes differ."""
    version, python = next((each, path) for each, path in pythons().items() if each in BUILT_WITH)
    tools = tools_of(version, python)
    digests = []
    with tempfile.TemporaryDirectory(prefix="puna-reproduce-") as scratch:
        for name in ("first", "and-second"):
            source = Path(scratch) / name
            run([tools, "-m", "build", "--sdist", "--no-isolation", "--outdir", source], environ_of(tools))
            (sdist,) = source.glob("*.tar.gz")
            shutil.unpack_archive(sdist, source, filter="data")
            (unpacked,) = (path for path in source.iterdir() if path.is_dir())
            wheel = build_wheel(tools, unpacked, source / "wheel")
            digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in (sdist, wheel)])
    if digests[0] != digests[1]:
        raise WheelError(f"two builds differ: source distributions and wheels are {digests}")
    print(f"Two builds are equal: {digests[0][1]}")


def test() -> None:
    """Install the wheels in dist/ for every Python, without a compiler, and ask the bundled model."""
    for version, python in pythons().items():
        tag = "cp311-cp311" if version == "3.11" else "cp312-abi3"
        wheel = next(DIST.glob(f"*-{tag}-*.whl"), None)
        if wheel is None:
            raise WheelError(f"there is no wheel {tag} in dist/; build it with: make wheel")
        with tempfile.TemporaryDirectory(prefix="puna-try-") as scratch:
            print(f"Python {version}: {try_out(wheel, python, Path(scratch))}", flush=True)
    if left_out := [version for version in SUPPORTED if version not in pythons()]:
        print(f"Not tried, since this machine lacks them: Python {', '.join(left_out)}")


def try_out(wheel: Path, python: str, folder: Path) -> str:
    """Return the size of the installation and how long it took from the wheel to an answer. Raises WheelError
    without an answer, and above the limits of both.
    """
    home = folder / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE") if name in os.environ}
    environ = kept | {
        "HOME": str(home),
        "PATH": str(folder / "venv" / "bin"),  # so no compiler is found
        "LANG": "C.UTF-8",
        "PUNA_HOST": f"127.0.0.1:{free_port()}",
        "PUNA_MODELS": str(home / "models"),
    }
    began = time.monotonic()
    run([python, "-m", "venv", folder / "venv"], environ, folder)
    bin = folder / "venv" / "bin"
    run([bin / "pip", "install", "--quiet", "--only-binary", ":all:", wheel], environ, folder)
    installed = time.monotonic()
    size = sum(path.lstat().st_size for path in (folder / "venv").rglob("*") if not path.is_dir())
    if size > MOST_INSTALLED_BYTES:
        raise WheelError(f"{wheel.name} installs {size:,} bytes, more than {MOST_INSTALLED_BYTES:,}")
    run([bin / "python", "-c", "import puna._native"], environ, folder)
    try:
        question = [bin / "puna", "run", "demo", "Tell me a story.", "--num-predict", "20", "--seed", "1"]
        asked = [folder / "ask", *map(str, question)]
        asked[0].write_text('#!/bin/sh\nexec "$@" 2> /dev/null\n')  # only the answer counts, no remarks
        asked[0].chmod(0o755)
        answer = run(asked, environ, folder).strip()
    finally:
        subprocess.run([bin / "puna", "serve", "--stop"], env=environ, capture_output=True, check=False)
    took = time.monotonic() - began
    if len(answer.split()) < 5:
        raise WheelError(f"{wheel.name} on {python}: the demo answered only {answer!r}")
    if took > PATIENCE_S:
        raise WheelError(f"{wheel.name} on {python}: {took:.0f} s to an answer, more than {PATIENCE_S}")
    report = f"{size / 1e6:.0f} MB installed in {installed - began:.0f} s, answered after {took:.0f} s"
    return f"{report}: {answer[:60]}..."


def free_port() -> int:
    """Return a port of this machine that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/wheel.py", description="Build and try out wheels.")
    tasks = {"build": build, "test": test, "reproduce": reproduce}
    parser.add_argument("task", choices=tasks)
    try:
        tasks[parser.parse_args().task]()
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
