"""The error types by which OpenAI's and Anthropic's clients distinguish errors."""

from __future__ import annotations

import pytest

from puna.errors import (
    AuthenticationError,
    GenerationError,
    ModelNotFoundError,
    PunaError,
    RateLimitError,
    RequestError,
    ScopeError,
    ServerBusyError,
)
from puna.server.http.replies import error_writer

INTERNAL = "internal error; the server's log says more"


@pytest.mark.parametrize(
    ("error", "openais", "anthropics"),
    [
        (RequestError("x"), "invalid_request_error", "invalid_request_error"),
        (AuthenticationError("x"), "authentication_error", "authentication_error"),
        (ScopeError("x"), "permission_error", "permission_error"),
        (ModelNotFoundError("x"), "not_found_error", "not_found_error"),
        (RateLimitError("x"), "rate_limit_error", "rate_limit_error"),
        (ServerBusyError("x"), "api_error", "overloaded_error"),
        (GenerationError("x"), "api_error", "api_error"),
    ],
)
def test_each_error_has_its_type_in_every_api(error: PunaError, openais: str, anthropics: str) -> None:
    assert error_writer("/api/chat")(error) == {"error": "x"}
    described = {"message": "x", "type": openais, "param": None, "code": None}
    assert error_writer("/v1/chat/completions")(error) == {"error": described}
    found = error_writer("/v1/messages")(error)
    assert (found["type"], found["error"]) == ("error", {"type": anthropics, "message": "x"})


@pytest.mark.parametrize("path", ["/api/chat", "/v1/responses", "/v1/messages/count_tokens"])
def test_message_of_an_internal_error_stays_in_the_log(path: str) -> None:
    error = error_writer(path)(KeyError("a secret"))["error"]
    assert (error if path == "/api/chat" else error["message"]) == INTERNAL
