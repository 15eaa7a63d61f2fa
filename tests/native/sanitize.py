"""Run the tests of the C++ extension on a build with AddressSanitizer and UndefinedBehaviorSanitizer.

    make test-sanitize                                   # needs gcc or clang, nothing else
    python tests/native/sanitize.py tests/ops -k linear  # some of them

The extension is installed with the package into build/sanitize/site, and the sanitizers' runtimes are loaded
before the interpreter, which is not built with them. Leak detection is off: the interpreter and torch keep
thousands of allocations until the process ends, which would hide one of ours. Kernels hold their memory in
containers whose destructors free it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "sanitize"
SITE = BUILD / "site"
#: Test folders that run the extension's code, without those that start processes of their own.
TESTS = ["tests/ops", "tests/nn", "tests/kvcache", "tests/sample", "tests/model", "tests/engine"]


def install() -> None:
    """Build the package with sanitizers; incremental, because CMake's folder is kept."""
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", SITE, ROOT,
        "--config-settings", f"build-dir={BUILD / 'cmake'}",
        "--config-settings", "cmake.build-type=None",
        "--config-settings", "cmake.define.CMAKE_CXX_FLAGS=-O1",  # more takes minutes longer
        "--config-settings", "cmake.define.PUNA_LEVELS=native",
        "--config-settings", "cmake.define.PUNA_SANITIZE=address,undefined",
    ]  # fmt: skip
    if importlib.util.find_spec("scikit_build_core") and importlib.util.find_spec("nanobind"):
        command.append("--no-build-isolation")
    subprocess.run(command, check=True)
    if not list((SITE / "puna").glob("_native*.so")):
        sys.exit("the extension could not be built with sanitizers; run pip install --verbose . to see why")


def runtimes() -> str:
    """Return the libraries to load before everything else; libstdc++ too, whose `throw` is wrapped."""
    compiler = os.environ.get("CXX", "c++")
    found = []
    for library in ("libasan.so", "libubsan.so", "libstdc++.so"):
        path = subprocess.run(
            [compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if os.path.isabs(path):
            found.append(str(Path(path).resolve()))
    return " ".join(found)


def environment() -> dict[str, str]:
    # The base interpreter runs no .pth files from these folders, so the finder of an editable installation,
    # which would take precedence over every folder, stays out.
    folders = [SITE, ROOT, *(path for path in sys.path if path)]
    return {
        **os.environ,
        "LD_PRELOAD": runtimes(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:detect_stack_use_after_return=1:strict_init_order=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders),
        "PYTHONMALLOC": "malloc",  # so that overruns of Python's own buffers are found
    }


def main() -> int:
    install()
    variables = environment()
    interpreter = os.path.join(
        sys.base_exec_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    where = subprocess.run(
        [interpreter, "-c", "from puna import _native; print(_native.__file__)"],
        env=variables, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not where.stdout.startswith(str(SITE)):
        sys.exit(f"the sanitized extension is not the one imported: {where.stdout}{where.stderr}")
    given = sys.argv[1:]
    if given[:1] == ["-m"]:
        return subprocess.run([interpreter, *given], env=variables, cwd=ROOT, check=False).returncode
    tests = given if any((ROOT / test.split("::")[0]).exists() for test in given) else [*given, *TESTS]
    options = ["-p", "no:cacheprovider", "-m", "not process_memory"]
    options.append("--capture=sys")  # a report goes to standard error and ends the process
    return subprocess.run(
        [interpreter, "-m", "pytest", *options, *tests],
        env=variables, cwd=ROOT, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
