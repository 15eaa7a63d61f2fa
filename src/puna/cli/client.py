"""The command line's client of the HTTP API: JSON in, JSON or a stream of JSON lines out."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from puna.config import env
from puna.errors import ConnectionFailedError, PunaError, ServerError
from puna.hosts import Host, host_from_env
from puna.unknown import did_you_mean

#: Connecting is quick or fails; an answer may take as long as loading a model.
_TIMEOUT = httpx.Timeout(None, connect=5.0)
_PROBE_TIMEOUT = httpx.Timeout(2.0)
#: For hosts without TLS: reading the trusted certificates takes longer than most requests.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_MAX_SHOWN = 200
#: The server's error for a model it does not have.
_NO_MODEL = re.compile(r"""model (['"])(.+)\1 not found(, try pulling it first)?""")
#: Replies of a server that requires a key or another host name, which the request's error explains.
REFUSALS = (401, 403)
_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


class Client:
    """A connection to one server, for one request at a time.

    Requests raise `ConnectionFailedError` or `ServerError`. `interrupt` ends the current one and is safe to
    call from a signal handler.
    """

    def __init__(self, host: Host | None = None) -> None:
        self.host = host or host_from_env()
        # Programs on one machine must not talk through a proxy configured for the web.
        self._http = httpx.Client(
            base_url=self.host.client_url,
            timeout=_TIMEOUT,
            trust_env=not self.host.is_loopback,
            headers={"Authorization": f"Bearer {key}"} if (key := env("API_KEY")) else None,
            verify=httpx.create_ssl_context() if self.host.scheme == "https" else _NO_CERTIFICATES,
            event_hooks={"request": [self._watch]},
        )
        self._socket: socket.socket | None = None  # of the newest connection
        self._busy = False
        self._interrupted = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def interrupt(self) -> None:
        """Make the current request, if any, raise KeyboardInterrupt.

        A signal handler may call this at any moment: it only shuts down the socket, so the request fails at
        once, however long it would have waited.
        """
        if self._busy:
            self._interrupted = True
            self._cut()

    def is_up(self) -> bool:
        """Whether a server answers. Raises ConnectionFailedError if it is neither Puna nor Ollama."""
        try:
            response = self._http.head("/", timeout=_PROBE_TIMEOUT)
        except (httpx.HTTPError, OSError):
            return False
        if not response.is_success and response.status_code not in REFUSALS:
            raise not_ours(self.host, response)
        return True

    def has_page(self) -> bool:
        """Whether the server shows browsers a page."""
        with self._request():
            response = self._http.get("/", headers={"Accept": "text/html"})
        return response.is_success and response.headers.get("content-type", "").startswith("text/html")

    def get(self, path: str) -> dict[str, Any]:
        return self._json("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._json("POST", path, body)

    def delete(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._json("DELETE", path, body)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the objects of a stream as they arrive. Closing the iterator stops the server's work."""
        yield from self._items(path, json=body)

    def upload(self, path: str, fields: Mapping[str, str], file: Path) -> Iterator[dict[str, Any]]:
        """Send a form with a file, and yield the events of the stream that answers it, as `stream` does."""
        with file.open("rb") as opened:
            yield from self._items(path, data=fields, files={"file": (file.name, opened)})

    def _items(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """Yield the objects of a stream of JSON lines or server-sent events."""
        with (
            self._request("in the middle of the answer"),
            self._http.stream("POST", path, **body) as response,
        ):
            self._check(response)
            for line in response.iter_lines():
                if self._interrupted:
                    return  # do not show lines that arrived before the interruption
                line = line.removeprefix("data: ")
                if not line.strip() or line.startswith(":"):  # a sign of life
                    continue
                item = self._parse(line, response)
                if "error" in item:
                    raise ServerError(_message(item["error"]), response.status_code)
                yield item

    def model_names(self) -> list[str]:
        """Return the names of the server's models, for completion; none if it does not answer."""
        try:
            models = self.get("/api/tags").get("models") or []
        except PunaError:
            return []
        return [str(model["name"]).removesuffix(":latest") for model in models]

    def has_blob(self, digest: str) -> bool:
        with self._request():
            return self._http.head(f"/api/blobs/{digest}").is_success

    def put_blob(self, digest: str, size_bytes: int, chunks: Iterable[bytes]) -> None:
        """Upload a file under its digest (`sha256:` and 64 hex digits)."""
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        with self._request("during the upload"):
            self._check(self._http.post(f"/api/blobs/{digest}", content=chunks, headers=headers))

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with self._request():
            response = self._http.request(method, path, json=body)
        self._check(response)
        return self._parse(response.text, response) if response.content else {}

    def _check(self, response: httpx.Response) -> None:
        """Raise ServerError unless `response` is a success: with the text of `error`, else the whole body.

        Raises ConnectionFailedError for a web page, which neither Puna nor Ollama would send.
        """
        if response.is_success:
            return
        text = response.read().decode("utf-8", "replace").strip()
        try:
            message = _message(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            if _is_page(response, text):
                raise not_ours(self.host, response) from None
            message = _status(response) + (f": {text[:_MAX_SHOWN]}" if text else "")
        if response.status_code == 404 and (missing := _NO_MODEL.fullmatch(message)):
            message += did_you_mean(missing[2], self.model_names())
        raise ServerError(message, response.status_code)

    def _parse(self, text: str, response: httpx.Response) -> dict[str, Any]:
        try:
            item = json.loads(text)
        except ValueError:
            if _is_page(response, text):
                raise not_ours(self.host, response) from None
            item = None
        if not isinstance(item, dict):
            raise ServerError(f"{response.url} did not answer with a JSON object: {text[:80]!r}")
        return item

    @contextmanager
    def _request(self, moment: str = "before answering") -> Iterator[None]:
        """Make a request interruptible and translate its errors."""
        self._interrupted = False
        self._busy = True
        try:
            with self._translated_errors(moment):
                yield
        except PunaError:
            if not self._interrupted:
                raise
        finally:
            self._busy = False
        if self._interrupted:
            raise KeyboardInterrupt

    def _watch(self, request: httpx.Request) -> None:
        request.extensions["trace"] = self._keep_socket

    def _keep_socket(self, event: str, info: dict[str, Any]) -> None:
        if event in _CONNECTED:
            self._socket = info["return_value"].get_extra_info("socket")
            if self._interrupted:  # while connecting
                self._cut()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # may be closed already
                # Not SSLSocket.shutdown, which also drops the TLS state.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @contextmanager
    def _translated_errors(self, moment: str) -> Iterator[None]:
        """Turn the HTTP library's errors into ours."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise unreachable(self.host, str(error)) from error
        except httpx.HTTPError as error:
            raise ConnectionFailedError(
                f"the server at {self.host.client_url} closed the connection {moment} ({error})"
            ) from error


def unreachable(host: Host, reason: str = "") -> ConnectionFailedError:
    """Return the error for a server that does not answer, with a hint on what to do."""
    hint = "run 'puna serve' to start it" if host.is_local else "check PUNA_HOST"
    detail = f" ({reason})" if reason and not host.is_local else ""
    return ConnectionFailedError(f"could not connect to the server at {host.client_url}{detail}, {hint}")


def not_ours(host: Host, response: httpx.Response) -> ConnectionFailedError:
    """Return the error for a server of another kind."""
    return ConnectionFailedError(
        f"the server at {host.client_url} is neither Puna nor Ollama ({_status(response)}); "
        "set PUNA_HOST to the address of a Puna server, or to a free address to start one there"
    )


def _message(error: Any) -> str:
    """Return the text of an error, in Ollama's or in OpenAI's form."""
    return error if isinstance(error, str) else str(error["message"])


def _is_page(response: httpx.Response, text: str) -> bool:
    return "html" in response.headers.get("content-type", "") or text.lstrip().startswith("<")


def _status(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}"
