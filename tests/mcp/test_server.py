"""MCP servers as strangers: what they give, and what they may not do to us."""

from __future__ import annotations

import asyncio
import gc
import http.server
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from puna.errors import MCPServerError
from puna.mcp import MCPServer, ToolResult
from puna.mcp import server as server_module
from tests.answering import answering
from tests.mcp.pixels import PNG
from tests.mcp.servers import hostile, over_http, stranger
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[MCPServer]:
    with stranger() as started:
        yield started


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_tools_have_names_descriptions_and_schemas(server: MCPServer) -> None:
    tools = {tool.name: tool for tool in server.tools}
    assert {"add", "look_up", "picture", "hang"} <= tools.keys()
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].schema["required"] == ["a", "b"]
    assert server.refused == []


def test_a_call_returns_the_text_of_its_result(server: MCPServer) -> None:
    assert server.call("add", {"a": 2, "b": 40}) == ToolResult("42", [], False)


def test_images_are_kept_for_models_that_see_and_other_media_are_named(server: MCPServer) -> None:
    result = server.call("picture", {})
    assert result.images == [PNG]
    assert result.text == "a red square <<1>>\n[audio left out: audio/wav, 3 bytes]"
    assert result.read_by(sees=True) is result
    blind = result.read_by(sees=False)
    assert blind.text.endswith("\n[1 image(s) left out: the model cannot see]")
    assert not blind.images


def test_errors_of_tools_are_results_that_models_read(server: MCPServer) -> None:
    failed = server.call("fail", {})
    assert failed.failed
    assert "the disk is full" in failed.text
    assert "nosuch" in server.call("nosuch", {}).text
    assert server.call("add", {"a": "many"}).failed


def test_progress_is_reported(server: MCPServer) -> None:
    seen: list[tuple[float, float | None, str | None]] = []
    assert server.call("wait", {"seconds": 0.1}, on_progress=lambda *each: seen.append(each)).text == "done"
    assert seen[0] == (1, 3, "step 1")


def test_a_call_can_be_interrupted_and_the_next_one_works(server: MCPServer) -> None:
    began = time.monotonic()
    result = server.call("wait", {"seconds": 300}, interrupted=lambda: time.monotonic() > began + 0.5)
    assert result.text == "error: MCP server 'stranger', tool 'wait': the call was cancelled"
    assert server.call("add", {"a": 1, "b": 1}).text == "2"


def test_calls_from_asyncio_run_at_once_and_can_be_cancelled(server: MCPServer) -> None:
    async def several() -> None:
        sums = await asyncio.gather(*(server.acall("add", {"a": i, "b": i}) for i in range(5)))
        assert [each.text for each in sums] == ["0", "2", "4", "6", "8"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.acall("wait", {"seconds": 300}), 0.5)

    asyncio.run(several())
    assert server.call("add", {"a": 1, "b": 1}).text == "2"


def test_only_the_environment_it_is_given_reaches_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_API_KEY", "puna-secret")
    with stranger(env={"STRANGER_KEY": "hunter22"}) as started:
        assert started.call("environment", {"name": "PUNA_API_KEY"}).text == "(not set)"
        assert started.call("environment", {"name": "STRANGER_KEY"}).text == "hunter22"


def test_closing_ends_the_process_and_so_does_dropping_the_server() -> None:
    before = set(children())
    with stranger() as started:
        assert len(started.tools) > 5
        assert set(children()) - before
    wait_until(lambda: not set(children()) - before, "the server to end")
    assert not started.is_connected
    dropped = stranger()
    assert dropped.tools
    del dropped
    gc.collect()
    wait_until(lambda: not set(children()) - before, "the dropped server to end")


# --- hostile servers -------------------------------------------------------------------------------


def test_a_hanging_tool_times_out_and_closing_does_not_wait_for_it() -> None:
    with stranger(timeout=1) as started:
        result = started.call("hang", {})
        assert result.text == "error: MCP server 'stranger', tool 'hang': no answer within 1 seconds"


def test_a_dying_server_is_named_without_its_secrets_and_can_be_connected_again() -> None:
    with stranger(env={"STRANGER_KEY": "hunter22"}) as started:
        result = started.call("die", {})
        assert result.failed
        assert "'stranger', tool 'die': it ended the connection" in result.text
        assert "the key *** is wrong" in result.text
        assert started.call("add", {"a": 1, "b": 1}).failed
        started.connect()
        assert started.call("add", {"a": 1, "b": 1}).text == "2"


def test_a_long_result_is_cut_and_megabytes_end_the_connection() -> None:
    with stranger() as started:
        result = started.call("flood", {"megabytes": 1})
        assert len(result.text) < 101_000
        assert result.text.endswith("more characters left out]")
        assert "it sent more than 16 MB at once" in started.call("flood", {"megabytes": 20}).text


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("line", "it sent more than 16 MB at once"),
        pytest.param("notifications", "it sent more than 10000 messages at once", marks=pytest.mark.thorough),
        ("requests", "it sent more than 10000 messages at once"),
        ("shapes", "validation error"),
        ("controls", "owned"),
    ],
)
def test_a_server_that_breaks_a_limit_fails_only_its_call(way: str, said: str) -> None:
    with hostile(way) as bad:
        result = bad.call("good", {})
    assert result.failed
    assert result.text.startswith("error: MCP server 'bad', tool 'good': ")
    assert said in result.text
    assert result.text.isprintable()
    assert len(result.text) < 500


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("garbage", "still here"),
        ("base64", "[image left out: its data is not base64]"),
        ("regex", '{"x": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"}'),
    ],
)
def test_what_cannot_be_used_of_an_answer_is_left_out(way: str, text: str) -> None:
    with hostile(way) as bad:
        assert bad.call("good", {}) == ToolResult(text, [], False)


@pytest.mark.parametrize(
    ("way", "count", "words"),
    [
        ("names", 5, ["tool 'a b'", "letters, digits", "there are two of this name"]),
        ("schemas", 3, ["invalid at", "not that of an object", "larger than 32 KB"]),
        ("many", 1, ["only its first 128 tools"]),
    ],
)
def test_tools_with_wrong_names_and_schemas_are_left_out_by_name(
    way: str, count: int, words: list[str]
) -> None:
    with hostile(way) as bad:
        if way != "many":
            assert [tool.name for tool in bad.tools] == ["good"]
        assert len(bad.tools) <= 128
        said = "\n".join(bad.refused)
        assert len(bad.refused) == count, said
    assert all(word in said for word in words), said
    assert "\x1b" not in said


def test_a_list_of_tools_without_an_end_is_an_error() -> None:
    with (
        hostile("pages") as bad,
        pytest.raises(MCPServerError, match="'bad': its list of tools has more than"),
    ):
        _ = bad.tools


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: MCPServer("x", command="/no/such/program"), "'program' cannot be started or reached"),
        (lambda: MCPServer("x", command="false"), "it ended the connection"),
        (lambda: MCPServer("x", url="http://127.0.0.1:9/mcp?token=hunter22"), "connection attempts failed"),
    ],
)
def test_a_server_that_cannot_be_reached_is_named(build: Callable[[], MCPServer], said: str) -> None:
    with pytest.raises(MCPServerError, match=said) as raised:
        _ = build().tools
    assert "MCP server 'x'" in str(raised.value)
    assert "hunter22" not in str(raised.value)


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECT_S", 2.0)
    with pytest.raises(MCPServerError, match="no answer within 2 seconds"):
        _ = hostile("silent").tools


# --- streamable HTTP -------------------------------------------------------------------------------


def test_a_server_over_http_has_the_same_tools_and_limits() -> None:
    with over_http() as url, MCPServer("web", url=url, timeout=20) as web:
        assert web.call("add", {"a": 2, "b": 40}).text == "42"
        assert web.call("picture", {}).images == [PNG]
        assert "16 MB" in web.call("flood", {"megabytes": 20}).text
        assert web.call("add", {"a": 2, "b": 40}).text == "42"


def test_headers_are_sent_to_the_server_and_never_shown() -> None:
    seen: list[str] = []

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_error(401, "the token hunter22 is wrong")

        def log_message(self, *_: object) -> None: ...

    with answering(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)) as refusing:
        headers = {"Authorization": "Bearer hunter22"}
        web = MCPServer("web", url=f"http://127.0.0.1:{refusing.server_port}/mcp", headers=headers)
        with pytest.raises(MCPServerError) as raised:
            _ = web.tools
    assert seen[0] == "Bearer hunter22"
    assert "hunter22" not in f"{raised.value} {web!r} {web.config!r}"


def test_a_reply_over_http_without_an_end_is_cut_off() -> None:
    class Endless(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"[" * 65536)
            except OSError:
                pass

        def log_message(self, *_: object) -> None: ...

    with (
        answering(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)) as endless,
        pytest.raises(MCPServerError, match="16 MB"),
    ):
        _ = MCPServer("web", url=f"http://127.0.0.1:{endless.server_port}/mcp").tools
