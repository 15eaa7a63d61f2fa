"""Events of an answer: from logits to tokens, text, log-probabilities and the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from puna.chat.answers.parts import Said, Thought
from puna.engine.sequence import Generation, Sequence
from puna.engine.text import Released, TokenText
from puna.errors import GenerationError, OutOfMemoryError, PunaError
from puna.grammar.compiler.client import RemoteConstraint, wait
from puna.machine import is_out_of_memory
from puna.protocol import CallDelta, Chunk, Done, Evaluated, Failed, Scored, TokenLogprob, TopLogprob
from puna.sample import log_probabilities, sample_all

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Items

    from puna.chat.answers.parts import Part
    from puna.engine.executor import Rows
    from puna.ops import Array, Backend
    from puna.tokenizer import Tokenizer


#: The next token of a sequence, or an error; None while its format has not computed the allowed tokens.
Drawn = int | Exception | None


class Answers:
    """Turns logits into tokens and events, for sequences of up to `context` inputs."""

    def __init__(self, tokenizer: Tokenizer, context: int, ops: Backend) -> None:
        self._ops = ops
        self._tokenizer = tokenizer
        self._context = context

    def evaluated(self, sequence: Generation, begin: int, logits: Rows) -> None:
        """Send progress and scores of a prompt after a pass that began at input `begin`.

        `logits` [rows, vocab] are the pass's logits if the prompt is scored. Raises `GenerationError`.
        """
        _tell_progress(sequence)
        if sequence.scoring:
            self._score(sequence, begin, logits)

    def _score(self, sequence: Generation, begin: int, logits: Rows) -> None:
        """Send the log-probabilities of the prompt's tokens from `begin + 1` on.

        `logits` [rows, vocab] follow the inputs from `begin` on. Raises `GenerationError`.
        """
        end = min(begin + len(logits) + 1, sequence.prompt_length)
        first = max(begin + 1, sequence.scored)  # rows may be evaluated again
        tokens = [item.token for item in sequence.inputs[first:end]]
        rows = [(logits[first + i - begin - 1], token) for i, token in enumerate(tokens)]
        found: list[TokenLogprob | None] = [*self._logprobs(sequence, rows)]
        if not sequence.scored:
            tokens, found = [sequence.inputs[0].token, *tokens], [None, *found]
        sequence.scored = max(sequence.scored, end)
        if tokens:
            sequence.sink(Scored(id=sequence.id, tokens=tokens, logprobs=found, sample=sequence.sample))

    def decode(self, sequence: Generation, logits: Array, token: int) -> int | None:
        """Append the `token` drawn from `logits` [vocab] to the text, and send the text that is final.

        Returns the token if the sequence continues, and None if it has ended and `Done` was sent. Raises
        `GenerationError`.
        """
        logprob = None
        if sequence.request.logprobs and sequence.request.sampled_logprobs and sequence.forced is None:
            top = sequence.request.top_logprobs
            logprob = self._spelled(token, *sequence.sampler.distribution.log_probabilities(token, top))
        elif sequence.request.logprobs:
            [logprob] = self._logprobs(sequence, [(logits, token)])
        sequence.sampler.accept(token, generated=True)
        sequence.sampled()
        constraint = sequence.constraint
        if token in self._tokenizer.eos_ids and (constraint is not None or not sequence.request.ignore_eos):
            self._finish(sequence, "stop", ending=[logprob], complete=True)
            return None
        released = sequence.text.feed(TokenText(token, self._tokenizer.piece(token), logprob))
        sequence.thinking.follow(token)
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

    def finish_empty(self, sequence: Generation) -> None:
        """End an answer without tokens."""
        self._finish(sequence, "length")

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
                heard=sequence.prompt_heard,
                truncated=sequence.truncated,
                shifted=sequence.shifted,
                stop=stop,
                ending=[logprob for logprob in ending if logprob is not None],
                drafted=drafting.drafted if drafting is not None else 0,
                accepted=drafting.accepted if drafting is not None else 0,
                drafted_by=drafting.mode if drafting is not None and drafting.drafted else "",
                thought=sequence.thinking.tokens,
                sample=sequence.sample,
                resumed=sequence.repeated,
                diverged=sequence.diverged,
            )
        )

    def _logprobs(self, sequence: Generation, rows: Items[tuple[Array, int]]) -> list[TokenLogprob]:
        """Return the log-probabilities of tokens, each after the logits [vocab] it is given with."""
        found = log_probabilities(rows, sequence.request.top_logprobs, self._ops)
        return [self._spelled(token, *values) for (_, token), values in zip(rows, found, strict=True)]

    def _spelled(self, token: int, chosen: float, best: list[tuple[int, float]]) -> TokenLogprob:
        tops = []
        for other, value in best:
            data = self._tokenizer.piece(other)
            tops.append(TopLogprob(data.decode(errors="replace"), value, list(data), other))
        data = self._tokenizer.piece(token)
        return TokenLogprob(data.decode(errors="replace"), chosen, list(data), tops, token)


def draw(wanted: Items[tuple[Generation, Array]], patience_s: float) -> list[Drawn]:
    """Draw the next token of each sequence from its logits [vocab], all in one call.

    Tokens that close a thought are not drawn but given, and known tokens take the place of drawn ones.
    The result is None for a sequence whose format has not computed the allowed tokens, or accepted the token,
    within `patience_s`. Call again later with the same logits to continue.
    """
    if not wanted:
        return []
    found: list[Drawn] = [None] * len(wanted)
    constraints = {
        place: sequence.constraint
        for place, (sequence, _) in enumerate(wanted)
        if sequence.constraint is not None
    }
    deadline = time.monotonic() + patience_s
    wait(constraints.values(), patience_s)
    places, rows, given = [], [], dict[int, int]()
    for place, (sequence, logits) in enumerate(wanted):
        allowed = None
        if (constraint := constraints.get(place)) is not None:
            if not constraint.ready or constraint.offered is not None:
                continue
            try:
                allowed = constraint.allowed()
            except PunaError as error:
                found[place] = error
                continue
            if constraint.answering:
                sequence.thinking.give_up()
        if (forced := sequence.forced) is not None:
            given[place] = forced
            continue
        places.append(place)
        rows.append((sequence.sampler, logits, allowed))
    for place, token in [*given.items(), *zip(places, sample_all(rows), strict=True)]:
        found[place] = token
        if place in constraints and isinstance(token, int):
            constraints[place].offer(token, wanted[place][0].known)
    wait(constraints.values(), max(deadline - time.monotonic(), 0))
    for place, constraint in constraints.items():
        if constraint.offered is not None:
            found[place] = _settled(constraint)
    for place, (sequence, _) in enumerate(wanted):
        if sequence.resumed and isinstance(drawn := found[place], int):
            found[place] = sequence.settle(drawn)
    return found


def _settled(constraint: RemoteConstraint) -> Drawn:
    """Return the offered token if it is accepted; None if that is not known yet, or it was rejected."""
    token = constraint.offered
    try:
        return token if constraint.ready and token is not None and constraint.accept(token) else None
    except PunaError as error:
        return error


def _tell_progress(sequence: Generation) -> None:
    """Send how much of the prompt is evaluated, if the request wants progress; once for all samples."""
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
    """Send `Failed` with `error` for a sequence."""
    kind, message = GenerationError.__name__, f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        error = OutOfMemoryError()
    if isinstance(error, PunaError):
        kind, message = error.kind, str(error)
    sequence.sink(Failed(id=sequence.id, kind=kind, message=message, sample=sequence.sample))


def _show(sequence: Generation, released: Released) -> None:
    """Send released output in order: each chunk has thinking, then text, then calls."""
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
    """Return (thinking, text, calls) of as few chunks as the order of `parts` allows."""
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
