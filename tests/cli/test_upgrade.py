"""`puna upgrade`, and the package index that it asks by pip."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from puna import __version__
from puna.cli import upgrade
from puna.cli.entry import run
from puna.errors import UnavailableError, UnreachableError
from tests.answering import answering


@contextmanager
def index(*names: str, withdrawn: str = "") -> Iterator[str]:
    """Serve a package index that has files with these `names` for Puna; yield its address."""
    mark = 'data-yanked="broken" '
    links = [f'<a {mark * (name == withdrawn)}href="/files/{name}">{name}</a>' for name in names]
    page = "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if names and self.path == "/simple/puna/" else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/simple"


def wheel(version: str) -> str:
    return f"puna-{version}-py3-none-any.whl"


@pytest.mark.slow
def test_newest_release_is_neither_a_preview_nor_withdrawn() -> None:
    names = [wheel(version) for version in ("1.9.0", "1.10.0", "1.11.0", "2.0.0rc1")]
    with index(*names, withdrawn=wheel("1.11.0")) as address:
        assert upgrade.newest(address) == "1.10.0"


@pytest.mark.slow
def test_index_without_puna_and_no_index_are_errors_that_say_why() -> None:
    with index() as address, pytest.raises(UnreachableError, match=r"pip cannot tell .*No matching"):
        upgrade.newest(address)
    with pytest.raises(UnreachableError, match=r"Connection refused") as caught:
        upgrade.newest("http://me:secret@127.0.0.1:9/simple")
    assert "secret" not in str(caught.value)


def test_without_pip_the_command_that_upgrades_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="needs pip, which is not here; this upgrades: "):
        upgrade.newest()


@pytest.mark.slow
def test_command_says_whether_there_is_a_newer_version(capsys: pytest.CaptureFixture[str]) -> None:
    with index(wheel("999.0.0")) as address:
        assert run(["upgrade", "--check", "--index", address]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"Puna 999.0.0 is out; this is {__version__}.\nTo upgrade: ")
        assert run(["upgrade", "--index", address, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["puna"], found["newest"]) == (__version__, "999.0.0")
    with index(wheel(__version__)) as address:
        assert run(["upgrade", "--check", "--index", address]) == 0
    assert capsys.readouterr().out == f"Puna {__version__} is the newest version.\n"


@pytest.mark.slow
def test_no_index_is_asked_unless_the_user_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with index(wheel("999.0.0")) as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        assert run(["upgrade"]) == 0
        assert "999" not in capsys.readouterr().out
        assert run(["upgrade", "--check"]) == 0
        assert "999" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "command"),
    [("pipx_metadata.json", "pipx upgrade puna"), ("uv-receipt.toml", "uv tool upgrade puna")],
)
def test_installer_is_recognised_by_its_file(file: str, command: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("")
    assert upgrade.upgrade_command(tmp_path) == command


@pytest.mark.parametrize(
    ("installer", "origin", "command"),
    [
        ("pip\n", None, f"{sys.executable} -m pip install --upgrade puna"),
        ("uv\n", None, f"uv pip install --python {sys.executable} --upgrade puna"),
        ("pip\n", {"url": "file:///puna", "dir_info": {"editable": True}}, "git pull && make run"),
    ],
    ids=["pip", "uv", "sources"],
)
def test_installer_is_recognised_by_the_metadata(
    installer: str, origin: object, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "puna-1.0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: puna\nVersion: 1.0.0\n")
    (folder / "INSTALLER").write_text(installer)
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.Distribution.at(folder))
    assert upgrade.upgrade_command(tmp_path) == command


def test_versions_are_compared_by_their_numbers() -> None:
    assert upgrade.version_of("1.10") > upgrade.version_of("1.9.9")
    assert upgrade.version_of("1.0") == upgrade.version_of("1.0.0")
    assert upgrade.version_of("1.0.0.dev3") == upgrade.version_of("1.0.0")
