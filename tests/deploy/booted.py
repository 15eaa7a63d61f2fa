"""A real systemd in namespaces of its own, with this machine's files under a layer that is thrown away."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = Path("/lib/systemd/systemd")

#: Units that would change the kernel that all share, or wait for devices.
_MASKED = (
    "systemd-sysctl", "systemd-modules-load", "systemd-udevd", "systemd-udev-trigger", "systemd-random-seed",
    "systemd-binfmt", "modprobe@", "systemd-hwdb-update", "systemd-firstboot",
)  # fmt: skip

_BOOT = r"""set -e
mount --make-rprivate /
mount -t tmpfs layer {folder}
mkdir {folder}/groups {folder}/upper {folder}/work {folder}/root
mount -t cgroup2 groups {folder}/groups
mkdir -p {folder}/groups/{group}
echo 0 > {folder}/groups/{group}/cgroup.procs
umount {folder}/groups
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mkdir -p opt/python opt/puna/bin opt/puna/source opt/puna/packages opt/puna/lib/puna opt/puna/native
mount --rbind {python} opt/python
mount --bind {source} opt/puna/source
mount --bind {packages} opt/puna/packages
mount --bind {native} opt/puna/native
for name in $(ls opt/puna/source); do ln -s /opt/puna/source/$name opt/puna/lib/puna/$name; done
(cd opt/puna/lib/puna && for file in ../../native/_native*.so; do ln -sf $file; done)
cat > opt/puna/bin/puna << END
#!/bin/sh
export PYTHONPATH=/opt/puna/lib:/opt/puna/packages PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=/opt/python/lib  # of a Python whose library is where the user puna may not look
exec {program} -m puna "\$@"
END
chmod 755 opt/puna/bin/puna
mkdir -p usr/local/lib/systemd/system usr/local/lib/sysusers.d
cp {share}/systemd/system/*.service usr/local/lib/systemd/system/
cp {share}/sysusers.d/*.conf usr/local/lib/sysusers.d/
cp {settings} etc/puna.env
for name in {masked}; do ln -sf /dev/null etc/systemd/system/$name.service; done
exec unshare --cgroup --pid --fork --kill-child --ipc --uts bash {script}
"""

_INIT = """set -e
cd {folder}/root
mount -t proc proc proc
mount -o bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 groups sys/fs/cgroup
for name in run tmp; do mount -t tmpfs tmpfs $name; done
mkdir -p {folder}/devices
for name in null zero full random urandom tty; do
    touch {folder}/devices/$name
    mount --bind /dev/$name {folder}/devices/$name
done
mkdir -p {folder}/devices/shm {folder}/devices/pts
mount -t devpts -o newinstance,ptmxmode=0666 terminals {folder}/devices/pts
ln -s pts/ptmx {folder}/devices/ptmx
mount --rbind {folder}/devices dev
mkdir .before
pivot_root . .before
umount --lazy /.before
exec env -i container=oci PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
    {systemd} --system --show-status=no --log-target=journal --unit=basic.target
"""


@dataclass
class Booted:
    """A running systemd, whose process is `pid`."""

    pid: int

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--cgroup", "--ipc", "--uts", *words]

    def run(self, *words: str, check: bool = True) -> str:
        """Return a command's output and errors. Raises AssertionError if it fails, with the service's log."""
        done = subprocess.run(
            self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        if check and done.returncode:
            log = self.run("journalctl", "--no-pager", "--lines=60", "--unit=puna", check=False)
            raise AssertionError(f"{shlex.join(words)}: {done.stdout}\n{log}")
        return done.stdout


@contextmanager
def booted(folder: Path, settings: dict[str, str]) -> Iterator[Booted]:
    """Boot a systemd that has the units of share/ and Puna in /opt/puna, with `settings` in /etc/puna.env.

    Skips the test where this takes rights or programs that are missing.
    """
    for program in ("unshare", "nsenter", str(SYSTEMD), "systemctl"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("only root can start a systemd in namespaces of its own")
    native = find_spec("puna._native")
    site = find_spec("numpy")
    if native is None or native.origin is None or site is None or site.origin is None:
        pytest.skip("the kernels are not built")
    python = Path(sys.base_prefix).resolve()
    program = "/opt/python" / Path(os.path.realpath(sys.executable)).relative_to(python)
    (folder / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    scratch = folder / "system"
    scratch.mkdir()
    (folder / "init.sh").write_text(_INIT.format(folder=scratch, systemd=SYSTEMD))
    group = f"puna-tests-{os.getpid()}"
    boot = _BOOT.format(
        folder=scratch, group=group, python=python, source=ROOT / "src" / "puna", program=program,
        packages=Path(site.origin).parents[1], native=Path(native.origin).parent, share=ROOT / "share",
        settings=folder / "settings", masked=" ".join(_MASKED), script=folder / "init.sh",
    )  # fmt: skip
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", boot],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
        )  # fmt: skip
    try:
        yield Booted(_first_process(process, folder / "console"))
    finally:
        process.kill()  # the first process of the namespace ends with it, and all others with that
        process.wait(timeout=60)
        _remove_group(folder, group)


def _first_process(process: subprocess.Popen[bytes], console: Path) -> int:
    """Return the process that became systemd, once it answers. Skips the test if this system refuses it."""
    found: list[int] = []

    def answers() -> bool:
        if process.poll() is not None:
            return True
        # Until it becomes systemd, there are the commands of a script, which end at any time.
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                if child.name() == "systemd":
                    state = Booted(child.pid).run("systemctl", "is-system-running", check=False).strip()
                    if state in ("running", "degraded"):
                        found.append(child.pid)
        return bool(found)

    wait_until(answers, "systemd to be running")
    if not found:
        pytest.skip(f"this system lets no systemd start in namespaces: {console.read_text()[-300:]}")
    return found[0]


def _remove_group(folder: Path, group: str) -> None:
    place = folder / "groups"
    place.mkdir()
    remove = f"mount -t cgroup2 groups {place} && find {place}/{group} -depth -type d -exec rmdir {{}} +"
    wait_until(
        lambda: (
            subprocess.run(["unshare", "--mount", "sh", "-c", remove], capture_output=True).returncode == 0
        ),
        "the processes of the test's control group to end",
    )
