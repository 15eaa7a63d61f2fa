"""Install Debian packages that tests need, if possible; otherwise report the tests to be skipped.

python tools/debian.py docker-registry chromium systemd:systemd-analyze

A package whose command is there counts as installed. The command follows a colon unless its name is the same.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

COMMAND = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends")
#: Commands of services are not on every user's path.
_PATH = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"


def main(wanted: list[str]) -> None:
    commands = dict(each.split(":") if ":" in each else (each, each) for each in wanted)
    missing = [package for package, command in commands.items() if shutil.which(command, path=_PATH) is None]
    if not missing:
        return
    names = " ".join(missing)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {names} from Debian.", flush=True)
        # A new machine has no lists of packages, or old ones.
        if _did(*COMMAND, *missing) or (_did("apt-get", "update", "--quiet") and _did(*COMMAND, *missing)):
            return
    print(f"Tests that need {names} will be skipped (apt install {names}).", flush=True)


def _did(*command: str) -> bool:
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print(*done.stderr.splitlines()[-3:], sep="\n", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    main(sys.argv[1:])
