"""An emulated PC with AVX-512, for programs that the processor here cannot run: Bochs, Linux, the program.

Needs Bochs 3 or later, configured with `--enable-avx --enable-evex`, Debian's `isolinux`, `syslinux-common`
and `xorriso`, and a Linux kernel, `PUNA_TEST_KERNEL` or the newest in `/boot`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.native.builds import need, succeed

_ISOLINUX = (Path("/usr/lib/ISOLINUX/isolinux.bin"), Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"))
#: Without what Bochs 3.0 announces but does not have whole: `fsrm`, and AMX without the control that Linux
#: needs. Without `tsc_early_khz`, Linux trusts the announced 4.4 GHz, and waits 44 times too long.
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


def kernel() -> Path:
    """Return the Linux kernel to boot: `PUNA_TEST_KERNEL` or this system's newest; skip if there is none."""
    if given := os.environ.get("PUNA_TEST_KERNEL"):
        return Path(given)
    found = sorted(Path("/boot").glob("vmlinuz-*"), key=os.path.getmtime)
    if not found:
        pytest.skip("there is no Linux kernel in /boot, and PUNA_TEST_KERNEL names none")
    return found[-1]


def emulator() -> str:
    """Return the path of Bochs 3 or later, or skip: Linux uses no AVX on older ones, whose CPUID is wrong."""
    bochs = need("bochs")
    version = subprocess.run(
        [bochs, "-q", "-n"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    said = re.search(r"Bochs x86 Emulator (\d+)", version.stdout + version.stderr)
    if said is None or int(said[1]) < 3:
        pytest.skip("Bochs 3 or later is needed, built with --enable-avx --enable-evex")
    return bochs


def run_in_emulated_pc(program: Path, *arguments: str, folder: Path, seconds: float) -> str:
    """Return what `program`, linked statically, prints; it must succeed within `seconds`.

    `folder` gets the disc and the logs.
    """
    disc, console, machine = folder / "disc.iso", folder / "console", folder / "machine"
    bochs = emulator()
    _write_disc(disc, program, arguments)
    console.unlink(missing_ok=True)
    machine.write_text(_MACHINE.format(disc=disc, console=console, log=folder / "log"))
    with (
        open(folder / "output", "wb") as output,
        subprocess.Popen(
            [bochs, "-q", "-f", machine], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process,
    ):
        try:
            return _wait(console, process, time.monotonic() + seconds)
        finally:
            process.kill()


def _wait(console: Path, process: subprocess.Popen[bytes], end: float) -> str:
    """Wait until the program, the system's first process, has ended, which Linux takes for an accident."""
    text = ""
    while time.monotonic() < end and process.poll() is None:
        time.sleep(1)
        text = console.read_text(errors="replace") if console.exists() else ""
        if ended := re.search(r"Attempted to kill init! exitcode=0x(\w+)", text):
            said = text[: ended.start()]
            assert int(ended[1], 16) == 0, said[-4000:]
            return said
    raise AssertionError(f"the program did not end (see {console.parent}): {text[-4000:]}")


def _write_disc(disc: Path, program: Path, arguments: tuple[str, ...]) -> None:
    """Write a disc that boots Linux, with the program as its first process."""
    xorriso = need("xorriso")
    if not all(path.exists() for path in _ISOLINUX):
        pytest.skip("isolinux is not installed (apt install isolinux syslinux-common)")
    files = disc.with_suffix(".files")
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    for path in _ISOLINUX:
        shutil.copy(path, files)
    shutil.copy(kernel(), files / "linux")
    (files / "initrd").write_bytes(_archived("init", program.read_bytes()) + _archived("TRAILER!!!", b""))
    (files / "isolinux.cfg").write_text(
        f"DEFAULT run\nLABEL run\nKERNEL /linux\nAPPEND initrd=/initrd {_BOOT} -- {' '.join(arguments)}\n"
    )
    succeed(
        xorriso, "-as", "mkisofs", "-quiet", "-o", disc, "-b", "isolinux.bin", "-c", "boot.cat",
        "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", files,
    )  # fmt: skip


def _archived(name: str, content: bytes) -> bytes:
    """Return an executable file as stored in what Linux unpacks at its start, a cpio archive (newc)."""
    fields = [1, 0o100755, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    header = ("070701" + "".join(f"{field:08x}" for field in fields) + name + "\0").encode()
    return _aligned(header) + _aligned(content)


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
