"""`puna open`: the browser is a program that notes what it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.cli import main
from tests.cli.shell import Shell
from tests.e2e.page.built import made_up_page
from tests.e2e.servers import running
from tests.ports import free_port


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    program.chmod(0o755)
    return program


def test_print_only_prints_the_address_whether_or_not_a_server_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for host, address in (
        ("127.0.0.1:9", "http://127.0.0.1:9"),
        ("0.0.0.0:9", "http://127.0.0.1:9"),
        ("https://example.com/puna/", "https://example.com:443/puna"),
    ):
        monkeypatch.setenv("PUNA_HOST", host)
        assert main(["open", "--print"]) == 0
        assert capsys.readouterr() == (address + "\n", "")


@pytest.mark.e2e
def test_page_is_opened_in_the_browser(tmp_path: Path, browser: Path) -> None:
    page = made_up_page(tmp_path / "dist")
    with running(tmp_path / "models", PUNA_PAGE=str(page)) as server:
        shell = Shell(tmp_path, int(server.url.rpartition(":")[2]))
        done = shell.run("open", BROWSER=str(browser))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"Opened {server.url} in the browser.\n"
    assert (tmp_path / "opened").read_text() == server.url + "/\n"


@pytest.mark.e2e
def test_server_without_a_page_is_said_to_have_none(tmp_path: Path, browser: Path) -> None:
    with running(tmp_path / "models", PUNA_PAGE="off") as server:
        done = Shell(tmp_path, int(server.url.rpartition(":")[2])).run("open", BROWSER=str(browser))
    assert done.returncode == 1
    assert "has no page: a checkout builds it with 'make page'" in done.stderr
    assert not (tmp_path / "opened").exists()


def test_no_server_is_started_and_how_to_start_one_is_said(tmp_path: Path, browser: Path) -> None:
    done = Shell(tmp_path, free_port()).run("open", BROWSER=str(browser))
    assert done.returncode == 1
    assert done.stderr.endswith("run 'puna serve' to start it\n")
    assert not (tmp_path / "logs").exists()
    assert not (tmp_path / "opened").exists()
