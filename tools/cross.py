"""Compile and link the extension for other systems: `python tools/cross.py aarch64-macos.11.0`.

Systems have Zig's names: its C++ compiler (Clang) and the systems' libraries come from PyPI. Warnings are
errors. The result is linked and not run, so this machine's Python headers do: integers have the same sizes on
all of these systems. Needs nothing but Python and packages of PyPI.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WORK: Final = ROOT / "build" / "cross"

#: Names of CMake for the systems, and the first bytes of their extensions with the processor's number.
SYSTEMS: Final = {"macos": "Darwin", "linux": "Linux"}
HEADS: Final = {
    ("aarch64", "macos"): (0, bytes.fromhex("cffaedfe 0c000001")),
    ("aarch64", "linux"): (18, bytes.fromhex("b700")),
    ("x86_64", "linux"): (18, bytes.fromhex("3e00")),
}

#: For macOS: Zig's linker cannot read nanobind's list of symbols that may be undefined, so all may be, and
#: crashes when it links bundles.
COMPILER: Final = """#!/bin/sh
for argument do
    shift
    case $argument in
        -Wl,@*) ;;
        -bundle) set -- "$@" -dynamiclib ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{python}" -m ziglang c++ -target {target} "$@"
"""
ARCHIVER: Final = """#!/bin/sh
exec "{python}" -m ziglang {name} "$@"
"""
TOOLS: Final = ("ziglang", "nanobind>=2.4", "numpy>=2.0", "cmake>=3.28", "ninja")


class CrossError(Exception):
    """The extension cannot be built for a system."""


def run(*command: str | Path) -> None:
    """Run a command. Raises CrossError with the end of its output."""
    plain = {name: value for name, value in os.environ.items() if not name.endswith("FLAGS")}
    done = subprocess.run(
        command, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-60:])
        raise CrossError(f"{' '.join(map(str, command))} failed ({done.returncode}):\n{end}")


def tools() -> Path:
    """Return the folder of programs of an environment with the tools, made if it is not there."""
    folder = WORK / "tools"
    stamp, wanted = folder / "installed", "\n".join(TOOLS)
    if not stamp.exists() or stamp.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOLS)
        stamp.write_text(wanted)
    return folder / "bin"


def build(target: str) -> Path:
    """Build the extension for a system and return its place. Raises CrossError."""
    machine, system, *_ = target.split(".")[0].split("-")
    if (machine, system) not in HEADS:
        raise CrossError(f"'{target}' is not supported; machine and system are one of {sorted(HEADS)}")
    programs, folder = tools(), WORK / target
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {"c++": COMPILER, "ar": ARCHIVER, "ranlib": ARCHIVER}
    for name, script in scripts.items():
        (folder / name).write_text(script.format(python=programs / "python", target=target, name=name))
        (folder / name).chmod(0o755)
    flags = "-Werror"
    if system == "macos":
        # This machine's NumPy has been told that there is such a header.
        (folder / "endian.h").write_text("#include <machine/endian.h>\n")
        flags += f" -isystem {folder}"
    run(
        programs / "cmake", "-S", ROOT, "-B", folder, "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}",
        f"-DCMAKE_SYSTEM_NAME={SYSTEMS[system]}", f"-DCMAKE_SYSTEM_PROCESSOR={machine}",
        f"-DCMAKE_CXX_COMPILER={folder / 'c++'}",
        f"-DCMAKE_AR={folder / 'ar'}", f"-DCMAKE_RANLIB={folder / 'ranlib'}", f"-DCMAKE_CXX_FLAGS={flags}",
        f"-DPython_EXECUTABLE={programs / 'python'}", f"-DPython_INCLUDE_DIR={sysconfig.get_path('include')}",
    )  # fmt: skip
    run(programs / "cmake", "--build", folder, "--parallel", str(os.cpu_count() or 1))
    (extension,) = folder.glob("_native*.so")
    check(extension, (machine, system))
    return extension


def check(extension: Path, target: tuple[str, str]) -> None:
    """Raise CrossError unless an extension is for this machine and system."""
    at, expected = HEADS[target]
    if extension.read_bytes()[at : at + len(expected)] != expected:
        raise CrossError(f"{extension} is not for {'-'.join(target)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/cross.py", description="Compile for other systems.")
    parser.add_argument("targets", nargs="+", help="of Zig: aarch64-macos.11.0, x86_64-linux-musl, ...")
    try:
        for target in parser.parse_args().targets:
            print(f"{target}: {build(target).stat().st_size:,} bytes, compiled without warnings", flush=True)
    except CrossError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
