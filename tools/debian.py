"""Install Debian packages that tests need, if possible; otherwise report the tests to be skipped.

python tools/debian.py docker-registry chromium
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

COMMAND = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends")


def main(packages: list[str]) -> None:
    missing = [package for package in packages if shutil.which(package) is None]
    if not missing:
        return
    names = " ".join(missing)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {names} from Debian.", flush=True)
        environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run([*COMMAND, *missing], env=environ, capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            return
        print(*done.stderr.splitlines()[-3:], sep="\n", flush=True)
    print(f"Tests that need {names} will be skipped (apt install {names}).", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
