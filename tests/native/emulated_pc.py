"""Run a program that needs AVX-512 on a machine without it: in Bochs, as the first process of Linux.

Needs Bochs 3 or later, configured with `--enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex
--enable-amx --with-nogui`, Debian's `isolinux`, `syslinux-common` and `xorriso`, and a Linux kernel,
`PUNA_TEST_KERNEL` or the newest in `/boot`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.builds import need, succeed

_ISOLINUX = (Path("/usr/lib/ISOLINUX/isolinux.bin"), Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"))
#: Bochs 3.0 announces `fsrm` without the fast strings it needs, and AMX without XFD: Linux fails with either.
#: It would also trust the announced 4.4 GHz, and wait 44 times too long.
_BOOT = "console=ttyS0 mitigations=off clearcpuid=fsrm,amx_tile tsc=reliable tsc_early_khz=100000 quiet"
_MACHINE = """
display_library: nogui
romimage: file=$BXSHARE/BIOS-bochs-latest
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest.bin
cpu: model=sapphire_rapids, count=1, ips=100000000
memory: guest=1024, host=1024
ata0: enabled=1
ata0-master: type=cdrom, path="{disc}", status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev="{console}"
log: "{log}"
panic: action=fatal
"""


@dataclass(frozen=True)
class EmulatedPC:
    """A PC in Bochs; the fields are paths of the programs and the Linux kernel that it needs."""

    bochs: str
    xorriso: str
    kernel: Path

    def run(self, program: Path, *arguments: str, folder: Path, seconds: float) -> str:
        """Return what `program`, linked statically, prints; it must succeed within `seconds`.

        `folder` gets the disc and the logs.
        """
        disc, console, machine = folder / "disc.iso", folder / "console", folder / "machine"
        self._write_disc(disc, program, arguments)
        machine.write_text(_MACHINE.format(disc=disc, console=console, log=folder / "log"))
        command = [self.bochs, "-q", "-f", machine]
        with (
            open(folder / "output", "wb") as output,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
        ):
            try:
                return _wait(console, process, time.monotonic() + seconds)
            finally:
                process.kill()

    def _write_disc(self, disc: Path, program: Path, arguments: tuple[str, ...]) -> None:
        """Write a disc that boots Linux, with the program as its first process."""
        files = disc.with_suffix(".files")
        files.mkdir()
        for path in _ISOLINUX:
            shutil.copy(path, files)
        shutil.copy(self.kernel, files / "linux")
        (files / "initrd").write_bytes(_archived("init", program.read_bytes()) + _archived("TRAILER!!!", b""))
        (files / "isolinux.cfg").write_text(
            f"DEFAULT run\nLABEL run\nKERNEL /linux\nAPPEND initrd=/initrd {_BOOT} -- {' '.join(arguments)}\n"
        )
        succeed(
            self.xorriso, "-as", "mkisofs", "-quiet", "-o", disc, "-b", "isolinux.bin", "-c", "boot.cat",
            "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", files,
        )  # fmt: skip


def emulated_pc() -> EmulatedPC:
    """Return the emulated PC; skip the test if something it needs is not installed."""
    bochs = shutil.which("bochs")
    if bochs is None or _version(bochs) < 3:  # Linux finds older ones' CPUID wrong and uses no AVX
        pytest.skip("Bochs 3 or later is not installed")
    if not all(path.exists() for path in _ISOLINUX):
        pytest.skip("isolinux is not installed (apt install isolinux syslinux-common)")
    kernels = sorted(Path("/boot").glob("vmlinuz-*"), key=os.path.getmtime)
    if given := os.environ.get("PUNA_TEST_KERNEL"):
        kernels = [Path(given)]
    if not kernels:
        pytest.skip("there is no Linux kernel in /boot, and PUNA_TEST_KERNEL names none")
    return EmulatedPC(bochs, need("xorriso"), kernels[-1])


def _version(bochs: str) -> int:
    """Return the first number of Bochs' version, or 0 if it does not tell."""
    said = subprocess.run(
        [bochs, "-q", "-n"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    found = re.search(r"Bochs x86 Emulator (\d+)", said.stdout + said.stderr)
    return int(found[1]) if found else 0


def _wait(console: Path, process: subprocess.Popen[bytes], end: float) -> str:
    """Return what was said before Linux panics, as it does when the program, its first process, has ended."""
    text = ""
    while time.monotonic() < end and process.poll() is None:
        time.sleep(1)
        text = console.read_text(errors="replace") if console.exists() else ""
        if panic := re.search(r"Kernel panic - not syncing: (.*)\n", text):
            said = text[: panic.start()]
            assert "exitcode=0x00000000" in panic[1], f"{said[-4000:]}{panic[1]}"
            return said
    raise AssertionError(f"the program did not end (see {console.parent}): {text[-4000:]}")


def _archived(name: str, content: bytes) -> bytes:
    """Return an executable file as stored in what Linux unpacks at its start, a cpio archive (newc)."""
    fields = [1, 0o100755, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    header = ("070701" + "".join(f"{field:08x}" for field in fields) + name + "\0").encode()
    return _aligned(header) + _aligned(content)


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
