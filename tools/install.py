"""Run `pip install` and show its progress: `python tools/install.py --editable '.[dev]'`.

Pip is either silent or floods the screen, and compiling the kernels takes minutes. So its verbose output goes
to build/install.log, and a summary is shown: one changing line on a terminal, several lines elsewhere. If
there is a C++ compiler, the kernels must compile. Needs nothing but Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

LOG = Path("build/install.log")
_TAIL_LINES = 40

#: Kernels for other processors would double the compile time, and this installation runs only here.
_ONLY_THIS_MACHINE = ("--config-settings", "cmake.define.PUNA_LEVELS=native")

#: Patterns of lines by pip, scikit-build-core, CMake and Ninja, with the steps they belong to.
_STEPS = (
    (re.compile(r"\s*Installing build dependencies: started"), "fetching the build's own tools"),
    (re.compile(r"\s*\*\*\* Configuring CMake"), "configuring the build of the C++ kernels"),
    (re.compile(r"\s*\[(?P<done>\d+)/(?P<total>\d+)\] (Building|Linking)"), "compiling the C++ kernels"),
    (re.compile(r"\s*\[ *(?P<percent>\d+)%\] (Building|Linking)"), "compiling the C++ kernels"),
    (re.compile(r"\s*Collecting (?P<what>[\w.\[\]-]+)"), "fetching packages"),
    (re.compile(r"\s*Downloading (?P<what>\S+\.whl(?: \([^)]*\))?)"), "fetching packages"),
    (re.compile(r"\s*Installing collected packages: "), "installing packages"),
)


def steps(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the steps in the output, each with its progress or subject."""
    for line in lines:
        for pattern, step in _STEPS:
            if found := pattern.match(line):
                yield step, _detail(found.groupdict())
                break


def _detail(found: dict[str, str]) -> str:
    if "total" in found:
        return f"{found['done']} of {found['total']}"
    if "percent" in found:
        return f"{found['percent']} %"
    return found.get("what", "")


class Display:
    """Display of the current step and its duration, as `lines` if nothing can be overwritten."""

    def __init__(self, lines: bool) -> None:
        self._lines = lines
        self._step = ""
        self._began = self._shown = time.monotonic()

    def show(self, step: str, detail: str) -> None:
        now = time.monotonic()
        if step != self._step:
            self.end()
            self._step, self._began, self._shown = step, now, now
        elif self._lines and now - self._shown < 10:
            return
        self._shown = now
        text = f"{step} {detail}".rstrip()
        if self._lines:
            print(f"  {text}", flush=True)
        else:
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[2K  {text[: columns - 10]} ({now - self._began:.0f} s)", end="", flush=True)

    def end(self) -> None:
        """End the current step."""
        if self._step and not self._lines:
            print(f"\r\x1b[2K  {self._step}: {time.monotonic() - self._began:.0f} s", flush=True)
        self._step = ""


def main(arguments: list[str]) -> int:
    environ = dict(os.environ)
    if shutil.which(os.environ.get("CXX") or "c++"):
        # Only machines without a compiler install Puna without kernels; here that would hide a mistake.
        environ["PUNA_BUILD_KERNELS"] = "1"
        print("Installing Puna. Compiling its C++ kernels takes a minute or two the first time.", flush=True)
    else:
        print(
            "Installing Puna. There is no C++ compiler, so it will compute with plain numpy, which is many\n"
            "times slower (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++).",
            flush=True,
        )
    began = time.monotonic()
    LOG.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--verbose", *_ONLY_THIS_MACHINE, *arguments]
    display = Display(lines=not sys.stdout.isatty())
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as pip,
    ):
        assert pip.stdout is not None
        for step, detail in steps(_logged(pip.stdout, log)):
            display.show(step, detail)
    display.end()
    if pip.returncode:
        lines = LOG.read_text(errors="replace").splitlines()
        print("\n".join(lines[-_TAIL_LINES:]))
        print(f"Installing Puna failed. The full output is in {LOG}; its first error is the cause.")
        return pip.returncode
    print(f"Installed in {time.monotonic() - began:.0f} s.", flush=True)
    return 0


def _logged(lines: Iterable[str], log: object) -> Iterator[str]:
    for line in lines:
        print(line, end="", file=log, flush=True)  # type: ignore[call-overload]
        yield line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
