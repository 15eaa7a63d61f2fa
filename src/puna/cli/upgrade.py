"""`puna upgrade`: how this installation is upgraded and, if asked, whether there is a newer version.

Nothing else in Puna looks for versions, and nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from html import unescape
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from puna import __version__
from puna.errors import UnreachableError

PYPI: Final = "https://pypi.org/simple"

#: Formats of an index's list of files (https://packaging.python.org/specifications/simple-repository-api).
_ACCEPTED: Final = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
)
_MAX_BYTES: Final = 8 << 20
_PATIENCE_S: Final = 20.0
_LINK: Final = re.compile(r"<a\b([^>]*)>([^<]*)</a>", re.IGNORECASE)
#: Wheels and source distributions of releases. Previews have letters in their version.
_FILE: Final = re.compile(r"puna-(\d{1,9}(?:\.\d{1,9}){0,5})(?:-.+\.whl|\.tar\.gz)")

Version = tuple[int, ...]


def upgrade(*, check: bool, index: str, as_json: bool) -> None:
    """Print how to upgrade and, with `check`, the newest version in a package index.

    `index` is its address; by default that of pip's or uv's settings. Raises `UnreachableError`.
    """
    command = upgrade_command(Path(sys.prefix))
    found = newest(index or index_address()) if check else None
    if as_json:
        print(json.dumps({"puna": __version__, "newest": found, "upgrade": command}))
        return
    if found is not None and version_of(found) <= version_of(__version__):
        print(f"Puna {__version__} is the newest version.")
        return
    if found is not None:
        print(f"Puna {found} is there; this is {__version__}.")
    print(f"Upgrade with: {command}")
    print("Then restart the server, which goes on as it was: puna serve --stop")


def upgrade_command(prefix: Path) -> str:
    """Return the command that upgrades the installation in `prefix`."""
    if prefix == Path("/opt/puna") and any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))):
        return "pull or build the image of the new version, and start the container again"
    if (prefix / "pipx_metadata.json").exists():
        return "pipx upgrade puna"
    if (prefix / "uv-receipt.toml").exists():
        return "uv tool upgrade puna"
    if "Cellar" in prefix.parts:
        return "brew upgrade puna"
    try:
        installed = metadata.distribution("puna")
    except metadata.PackageNotFoundError:  # running from a source folder
        return "git pull"
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return "git pull && make run"
    python = shlex.quote(sys.executable)
    if (installed.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {python} --upgrade puna"
    return f"{python} -m pip install --upgrade puna"


def index_address() -> str:
    """Return the address of the package index in the settings of pip or uv, or else PyPI's."""
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if address := os.environ.get(name, "").strip():
            return address
    if util.find_spec("pip") is None:
        return PYPI
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
    )  # fmt: skip
    set_to = re.findall(r"^(?:global|install)\.index-url='(.+)'$", listed.stdout, re.MULTILINE)
    return set_to[-1] if set_to else PYPI


def newest(index: str) -> str:
    """Return the newest release of Puna in a package index. Raises `UnreachableError`."""
    address = f"{index.rstrip('/')}/puna/"
    place = urlsplit(address)
    shown = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"  # without a password
    if place.scheme not in ("http", "https") or not place.hostname:
        raise UnreachableError(f"the package index must be an address as {PYPI}, not {shown}")
    try:
        content, kind = _fetched(address)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = f"status {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else error
        raise UnreachableError(
            f"cannot look for a newer version at {shown}: {why or type(error).__name__}; "
            "name another index with --index"
        ) from error
    try:
        names = _names_in_json(content) if "json" in kind else _names_in_html(content.decode())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreachableError(f"{shown} is no list of files of a package index: {error}") from error
    versions = [match[1] for name in names if (match := _FILE.fullmatch(name))]
    if not versions:
        raise UnreachableError(f"{shown} has no release of Puna")
    return max(versions, key=version_of)


def version_of(text: str) -> Version:
    """Return a version's numbers, as far as they are numbers, without zeros at the end."""
    numbers = [int(each) for each in re.findall(r"\d+", re.split(r"[^\d.]", text, maxsplit=1)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _fetched(address: str) -> tuple[bytes, str]:
    """Return the body of a page, and its type."""
    with (
        httpx.Client(timeout=_PATIENCE_S, follow_redirects=True, max_redirects=5) as client,
        client.stream("GET", address, headers={"Accept": _ACCEPTED}) as reply,
    ):
        reply.raise_for_status()
        body = b""
        for piece in reply.iter_bytes():
            body += piece
            if len(body) > _MAX_BYTES:
                raise httpx.TransportError(f"its answer is longer than {_MAX_BYTES >> 20} MiB")
        return body, reply.headers.get("content-type", "")


def _names_in_json(content: bytes) -> list[str]:
    page: dict[str, Any] = json.loads(content)
    return [str(file["filename"]) for file in page["files"] if not file.get("yanked")]


def _names_in_html(text: str) -> list[str]:
    return [unescape(name).strip() for marks, name in _LINK.findall(text) if "data-yanked" not in marks]
