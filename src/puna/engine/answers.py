"""From logits to what the client hears: sampling, text, log-probabilities, the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from puna.engine.events import CallDelta, Chunk, Done, Evaluated, Failed, Scored, TokenLogprob, TopLogprob
from puna.engine.sequence import Generation, Sequence
from puna.engine.text import Piece, Released
from puna.errors import GenerationError, OutOfMemoryError, PunaError
from puna.grammar.compiler.client import wait
from puna.machine import is_out_of_memory
from puna.markup.parts import Said, Thought
from puna.sample import log_probabilities, sample_all

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Items

    from numpy.typing import NDArray

    from puna.engine.batching import BatchSlice
    from puna.engine.executor import Rows
    from puna.markup.parts import Part
    from puna.model.tokenizer import Tokenizer
    from puna.ops import Backend


class Waiting:
    """The answer's format has not said yet what may come next."""


#: The next token of a sequence, or why there is none; None where it is not drawn yet, or not wanted.
Drawn = int | Exception | Waiting | None


class Answers:
    """Turns logits into tokens and events, for sequences of up to `context` inputs."""

    def __init__(self, tokenizer: Tokenizer, context: int, ops: Backend) -> None:
        self._ops = ops
        self._tokenizer = tokenizer
        self._context = context

    def evaluated(self, sequence: Generation, begin: int, logits: Rows) -> None:
        """Say of a prompt what the request asks for, now that it is evaluated from input `begin` on.

        `logits` [rows, vocab] are those of a prompt that is scored. Raises `GenerationError`.
        """
        _tell_progress(sequence)
        if sequence.scoring:
            self._score(sequence, begin, logits)

    def _score(self, sequence: Generation, begin: int, logits: Rows) -> None:
        """Say how likely the prompt's tokens were that come after inputs `begin`, ...

        `logits` [rows, vocab] are those after each of these inputs. Raises `GenerationError`.
        """
        end = min(begin + len(logits) + 1, sequence.prompt_length)
        first = max(begin + 1, sequence.scored)  # evaluated again, a row says nothing new
        tokens = [item.token for item in sequence.inputs[first:end]]
        found: list[TokenLogprob | None] = [
            self._logprob(sequence, logits[first + i - begin - 1], token) for i, token in enumerate(tokens)
        ]
        if not sequence.scored:
            tokens, found = [sequence.inputs[0].token, *tokens], [None, *found]
        sequence.scored = max(sequence.scored, end)
        if tokens:
            sequence.sink(Scored(id=sequence.id, tokens=tokens, logprobs=found, sample=sequence.sample))

    def decode(self, sequence: Generation, logits: NDArray[np.float32], drawn: Drawn = None) -> int | None:
        """Sample the next token from `logits` [vocab], unless it was `drawn` already, and show its text.

        Returns the token when the sequence goes on; else it has ended and the client knows. Raises
        `GenerationError`.
        """
        if sequence.limit == 0:
            self._finish(sequence, "length")
            return None
        token = _next_token(sequence, logits, drawn)
        logprob = None
        if sequence.request.logprobs and sequence.request.sampled_logprobs:
            top = sequence.request.top_logprobs
            logprob = self._spelled(token, *sequence.sampler.distribution.log_probabilities(token, top))
        elif sequence.request.logprobs:
            logprob = self._logprob(sequence, logits, token)
        sequence.sampler.accept(token, generated=True)
        sequence.sampled()
        constraint = sequence.constraint
        if token in self._tokenizer.eos_ids and (constraint is not None or not sequence.request.ignore_eos):
            self._finish(sequence, "stop", ending=[logprob], complete=True)
            return None
        released = sequence.text.feed(Piece(token, self._tokenizer.piece(token), logprob))
        _show(sequence, released)
        full = len(sequence.inputs) >= min(sequence.context, self._context) and not sequence.request.shift
        if released.stop is not None:
            self._finish(sequence, "stop", released.stop, [piece.logprob for piece in released.cut])
        elif sequence.text.enough or (constraint is not None and constraint.finished):
            self._finish(sequence, "stop", complete=True)
        elif full or sequence.generated >= sequence.limit:
            self._finish(sequence, "length")
        else:
            return token
        return None

    def _finish(
        self,
        sequence: Generation,
        reason: str,
        stop: str | None = None,
        ending: Iterable[TokenLogprob | None] = (),
        *,
        complete: bool = False,
    ) -> None:
        _show(sequence, sequence.text.flush(complete=complete))
        sequence.ended()
        drafting = sequence.drafting
        sequence.sink(
            Done(
                id=sequence.id,
                reason=reason,
                prompt_eval_count=sequence.prompt_tokens,
                prompt_eval_duration=max(1, sequence.first_ns - sequence.admitted_ns),
                eval_count=sequence.generated,
                eval_duration=max(1, sequence.last_ns - sequence.first_ns),
                cached=sequence.cached,
                truncated=sequence.truncated,
                shifted=sequence.shifted,
                stop=stop,
                ending=[logprob for logprob in ending if logprob is not None],
                drafted=drafting.drafted if drafting is not None else 0,
                accepted=drafting.accepted if drafting is not None else 0,
                drafted_by=drafting.mode if drafting is not None and drafting.drafted else "",
                sample=sequence.sample,
            )
        )

    def _logprob(self, sequence: Generation, logits: NDArray[np.float32], token: int) -> TokenLogprob:
        return self._spelled(
            token, *log_probabilities(logits, token, sequence.request.top_logprobs, self._ops)
        )

    def _spelled(self, token: int, chosen: float, best: list[tuple[int, float]]) -> TokenLogprob:
        tops = []
        for other, value in best:
            data = self._tokenizer.piece(other)
            tops.append(TopLogprob(data.decode(errors="replace"), value, list(data)))
        data = self._tokenizer.piece(token)
        return TokenLogprob(data.decode(errors="replace"), chosen, list(data), tops)


def draw(slices: Items[BatchSlice], results: Items[Rows], patience_s: float) -> list[Drawn]:
    """The next token of each slice's sequence, all in one call.

    The row of a slice that comes before its draft is what its token is drawn from. Formats that have not said
    after `patience_s` what may come next, or whether a token may, have their sequences wait.
    """
    found: list[Drawn] = [None] * len(slices)
    wanted = [
        (place, batch_slice.sequence, logits[len(logits) - 1 - len(batch_slice.draft.tokens)])
        for place, (batch_slice, logits) in enumerate(zip(slices, results, strict=True))
        if isinstance(batch_slice.sequence, Generation)
        and batch_slice.complete
        and batch_slice.sequence.limit
    ]
    deadline = time.monotonic() + patience_s
    wait((each.constraint for _, each, _ in wanted if each.constraint is not None), patience_s)
    places, rows = [], []
    for place, sequence, logits in wanted:
        constraint, allowed = sequence.constraint, None
        if constraint is not None:
            if not constraint.ready:
                found[place] = Waiting()
                continue
            if constraint.offered is not None:
                found[place] = constraint.offered
                continue
            try:
                allowed = constraint.allowed()
            except PunaError as error:
                found[place] = error
                continue
        places.append(place)
        rows.append((sequence.sampler, logits, allowed))
    drawn = dict(zip(places, sample_all(rows), strict=True))
    found = [drawn.get(place, other) for place, other in enumerate(found)]
    offered = []
    for place, sequence, _ in wanted:
        token = drawn.get(place)
        if sequence.constraint is not None and isinstance(token, int):
            sequence.constraint.offer(token)
            offered.append((place, sequence.constraint))
    wait((constraint for _, constraint in offered), max(deadline - time.monotonic(), 0))
    for place, constraint in offered:
        if not constraint.ready:
            found[place] = Waiting()
    return found


def _next_token(sequence: Generation, logits: NDArray[np.float32], drawn: Drawn) -> int:
    """A token that the answer's format, if it has one, can go on with; `drawn`, if that is one."""
    sampler, constraint = sequence.sampler, sequence.constraint
    assert not isinstance(drawn, Waiting)
    while True:
        if drawn is None:
            drawn = sampler.sample(logits, None if constraint is None else constraint.allowed())
        if isinstance(drawn, Exception):
            raise drawn
        if constraint is None or constraint.accept(drawn):
            return drawn
        drawn = None


def _tell_progress(sequence: Generation) -> None:
    """Say how much of the prompt is evaluated, if that was asked for; all samples of it share the one."""
    if not sequence.request.progress or sequence.sample or sequence.generated:
        return

    def tokens(inputs: int) -> int:
        return sum(item.tokens_read for item in sequence.inputs[:inputs])

    sequence.sink(
        Evaluated(
            id=sequence.id,
            done=tokens(sequence.evaluated),
            total=sequence.prompt_tokens,
            cached=tokens(sequence.cached),
            duration=time.monotonic_ns() - sequence.admitted_ns,
        )
    )


def fail(sequence: Sequence, error: Exception) -> None:
    """Tell the client that its request failed."""
    kind, message = GenerationError.__name__, f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        error = OutOfMemoryError()
    if isinstance(error, PunaError):
        kind, message = error.kind, str(error)
    sequence.sink(Failed(id=sequence.id, kind=kind, message=message, sample=sequence.sample))


def _show(sequence: Generation, released: Released) -> None:
    """Send what was released, in its order: a chunk has thinking, then text, then calls."""
    pieces = released.pieces
    for thinking, text, calls in _in_order(released.parts) or [("", "", [])] * bool(pieces):
        sequence.sink(
            Chunk(
                id=sequence.id,
                text=text,
                thinking=thinking,
                calls=calls,
                tokens=[piece.token for piece in pieces],
                logprobs=[piece.logprob for piece in pieces if piece.logprob is not None],
                sample=sequence.sample,
            )
        )
        pieces = []


def _in_order(parts: list[Part]) -> list[tuple[str, str, list[CallDelta]]]:
    """What goes into as few chunks as the order of `parts` allows."""
    found: list[tuple[str, str, list[CallDelta]]] = []
    for part in parts:
        thinking, text, calls = found.pop() if found else ("", "", [])
        match part:
            case Thought(more) if not text and not calls:
                found.append((thinking + more, text, calls))
            case Said(more) if not calls:
                found.append((thinking, text + more, calls))
            case CallDelta():
                found.append((thinking, text, [*calls, part]))
            case Thought(more):
                found += [(thinking, text, calls), (more, "", [])]
            case Said(more):
                found += [(thinking, text, calls), ("", more, [])]
    return found
