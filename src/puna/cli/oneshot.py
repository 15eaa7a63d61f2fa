"""Answers to one prompt, and embeddings of one text, without a chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from puna.cli import terminal
from puna.cli.answer import AnswerPrinter, Waiting, losses, timings
from puna.cli.attachments import take_files
from puna.cli.client import Client
from puna.cli.interrupt import ctrl_c_ends_requests
from puna.cli.settings import RunSettings
from puna.errors import RequestError


def embeds(shown: Mapping[str, Any]) -> bool:
    """Whether `shown`, a reply of `/api/show`, describes an embedding model."""
    return "embedding" in (shown.get("capabilities") or ())


def no_text(model: str) -> RequestError:
    """Return the error for a missing text to embed."""
    return RequestError(f'embedding models require input text. Usage: puna run {model} "your text here"')


def print_embedding(client: Client, settings: RunSettings, text: str) -> None:
    """Print the embedding of `text` as a JSON array. Ctrl-C prints nothing and is not an error."""
    if not text:
        raise no_text(settings.model)
    body = settings.request() | {"input": text, "truncate": settings.truncate}
    if settings.dimensions is not None:
        body["dimensions"] = settings.dimensions
    try:
        with ctrl_c_ends_requests(client), Waiting(client.host, settings.model):
            reply = client.post("/api/embed", body)
    except KeyboardInterrupt:
        return
    print(json.dumps(reply["embeddings"][0]))
    if truncated := reply.get("truncated"):
        terminal.warn(
            f"the text did not fit the context: its last {truncated} token(s) were dropped "
            "(increase num_ctx to keep more)"
        )


def read_prompt(words: Sequence[str]) -> str:
    """Return the prompt: standard input unless it is a terminal, then the arguments, joined by spaces."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else terminal.read_stdin()
    return " ".join(part for part in (piped, *map(terminal.typed, words)) if part)


def show_model(client: Client, model: str) -> dict[str, Any]:
    """Return the reply of `/api/show`. Raises ServerError."""
    return client.post("/api/show", {"model": model})


def apply_model(settings: RunSettings, shown: Mapping[str, Any]) -> None:
    """Apply settings that depend on the model: models that can think do so unless told otherwise.

    Raises RequestError for a model that transcribes.
    """
    if "transcription" in (shown.get("capabilities") or ()):
        raise RequestError(
            f"model '{settings.model}' transcribes audio files. "
            f"Usage: puna transcribe --model {settings.model} FILE"
        )
    if settings.think is None and "thinking" in (shown.get("capabilities") or ()):
        settings.think = True


def run_once(client: Client, settings: RunSettings, prompt: str) -> None:
    """Answer `prompt`; an empty one only loads the model. Ctrl-C ends the answer and is not an error."""
    shown = show_model(client, settings.model)
    if embeds(shown):
        print_embedding(client, settings, prompt)
        return
    apply_model(settings, shown)
    body = settings.request() | {"prompt": prompt}
    text, files = take_files(prompt, settings.model, shown)
    if files:
        body |= {"prompt": text, "images": files}
    if settings.system is not None:
        body["system"] = settings.system
    printer = AnswerPrinter(word_wrap=settings.word_wrap, hide_thinking=settings.hide_thinking)
    items = client.stream("/api/generate", body | progress_fields())
    with ctrl_c_ends_requests(client):
        final = print_stream(client, settings, items, printer, ending="\n\n" if prompt else "")
    if final is not None and prompt:
        report(final, settings.verbose)


def progress_fields() -> dict[str, Any]:
    """Return the request fields that ask for progress, if there is a terminal to show it on."""
    return {"return_progress": True} if terminal.stderr_is_terminal() else {}


def print_stream(
    client: Client,
    settings: RunSettings,
    items: Iterator[dict[str, Any]],
    printer: AnswerPrinter,
    ending: str = "\n\n",
) -> dict[str, Any] | None:
    """Print a stream to its end. Return the last message, or None after Ctrl-C."""
    final: dict[str, Any] = {}
    with Waiting(client.host, settings.model) as waiting, terminal.silent_keys():
        try:
            for item in items:
                if "load_progress" in item or "prompt_progress" in item:
                    waiting.show_progress(item)
                    continue
                waiting.stop()
                printer.feed(item)
                final = item
        except KeyboardInterrupt:
            waiting.stop()
            printer.close(ending)
            return None
        except BaseException:
            waiting.stop()
            if printer.content or printer.thinking:
                printer.close("\n")
            raise
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()  # closes the connection, which stops the server's work
    printer.close(ending)
    return final


def report(final: Mapping[str, Any], verbose: bool) -> None:
    """Print the notes after an answer on standard error: dropped tokens, the server's warnings, timings."""
    for warning in [*losses(final), *(final.get("warnings") or ())]:
        terminal.warn(warning)
    if verbose:
        terminal.note(timings(final).removesuffix("\n"))
