"""`puna upgrade`, and the package index that it asks."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from puna import __version__
from puna.cli import upgrade
from puna.cli.entry import run
from puna.errors import UnreachableError

JSON = "application/vnd.pypi.simple.v1+json"


@contextmanager
def index(content: bytes, kind: str = JSON, status: int = 200) -> Iterator[str]:
    """Serve a package index that has `content` as its list of Puna's files; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/simple/puna/" else 404)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


def listed(*names: str, yanked: str = "") -> bytes:
    files = [{"filename": name, "yanked": name == yanked and "broken"} for name in names]
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "puna", "files": files}).encode()


WHEEL = "puna-{}-cp312-abi3-manylinux_2_28_x86_64.whl"


@pytest.mark.parametrize(
    ("content", "kind", "newest"),
    [
        pytest.param(listed("puna-1.9.0.tar.gz", WHEEL.format("1.10.0")), JSON, "1.10.0", id="by number"),
        pytest.param(listed(WHEEL.format("1.0.0"), WHEEL.format("2.0.0rc1")), JSON, "1.0.0", id="no preview"),
        pytest.param(
            listed("puna-1.0.0.tar.gz", "puna-1.1.0.tar.gz", yanked="puna-1.1.0.tar.gz"), JSON, "1.0.0",
            id="not withdrawn",
        ),
        pytest.param(
            b'<a href="x#sha256=1">puna-1.2.0.tar.gz</a><a data-yanked="" href="y">puna-1.3.0.tar.gz</a>'
            b'<a href="z">punaise-9.0.0.tar.gz</a>',
            "text/html; charset=utf-8", "1.2.0", id="as HTML",
        ),
    ],
)  # fmt: skip
def test_newest_release_is_found(content: bytes, kind: str, newest: str) -> None:
    with index(content, kind) as address:
        assert upgrade.newest(address) == newest
        assert upgrade.newest(f"{address}/") == newest


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 404, "status 404"),
        (listed("puna-x.tar.gz"), 200, "no release of Puna"),
        (b"[]", 200, "no list of files"),
        (b"{", 200, "no list of files"),
        (b" " * (9 << 20), 200, "longer than 8 MiB"),
    ],
    ids=["no package", "no release", "no list", "no JSON", "too long"],
)
def test_index_without_an_answer_is_an_error_that_says_why(content: bytes, status: int, said: str) -> None:
    with index(content, status=status) as address, pytest.raises(UnreachableError, match=said):
        upgrade.newest(address)


def test_error_without_a_network_names_the_index_but_no_password() -> None:
    with pytest.raises(UnreachableError) as caught:
        upgrade.newest("http://me:secret@127.0.0.1:9/simple")
    assert "cannot look for a newer version at http://127.0.0.1:9/simple/puna/" in str(caught.value)
    assert "secret" not in str(caught.value)
    for wrong in ("file:///simple", "pypi.org/simple"):
        with pytest.raises(UnreachableError, match="must be an address"):
            upgrade.newest(wrong)


def test_command_says_whether_there_is_a_newer_version(capsys: pytest.CaptureFixture[str]) -> None:
    with index(listed(WHEEL.format("999.0.0"))) as address:
        assert run(["upgrade", "--check", "--index", address]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"Puna 999.0.0 is there; this is {__version__}.\nUpgrade with: ")
        assert run(["upgrade", "--index", address, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["puna"], found["newest"]) == (__version__, "999.0.0")
    with index(listed(WHEEL.format(__version__))) as address:
        assert run(["upgrade", "--check", "--index", address]) == 0
    assert capsys.readouterr().out == f"Puna {__version__} is the newest version.\n"


def test_no_index_is_asked_unless_the_user_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with index(listed(WHEEL.format("999.0.0"))) as address:
        monkeypatch.setenv("PIP_INDEX_URL", address)
        assert run(["upgrade"]) == 0
        assert "999" not in capsys.readouterr().out
        assert run(["upgrade", "--check"]) == 0
        assert "999" in capsys.readouterr().out


def test_index_is_that_of_pip_or_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pip")
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://mirror.example.com/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert upgrade.index_address() == "https://mirror.example.com/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example.com/simple")
    assert upgrade.index_address() == "https://uv.example.com/simple"


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
