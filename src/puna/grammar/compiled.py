"""Compilation of formats to grammars over a model's tokens, with the `llguidance` library."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Tags
from puna.errors import RequestError
from puna.grammar.calls import calls_grammar, check_tools, spelled
from puna.grammar.constraint import Constraint, Thinking, words
from puna.grammar.diagnosis import LIMITS, check_parts, check_patterns, schema_grammar, short
from puna.grammar.format import Format, checked
from puna.grammar.schema import checked_schema
from puna.tokenizer import Tokenizer

#: Nesting of brackets in a grammar, for which its parser recurses.
_MAX_DEPTH: Final = 100
#: Characters of a forced text that are tokenised: only its first tokens are of use.
_MAX_TEXT = 256
#: Tokens at the end of a cut text that might differ if it went on.
_UNCERTAIN = 8


class Grammars:
    """Compiler of formats for one model, without limits of time and memory (see `compiler` for those)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def vocabulary(self) -> LLTokenizer:
        """The model's tokens in the library's form, which takes a while to build."""
        tokens = TokenizerWrapper(_TokenBytes(self._tokenizer))
        return LLTokenizer(tokens, eos_token=sorted(self._tokenizer.eos_ids) or None)

    def constraint_of(self, format: Format | None, reading: Reading | None) -> Constraint | None:
        """Return the constraint of an answer that is read as `reading`. Raises `RequestError`."""
        if reading is not None and reading.forces_calls:
            return self._of_calls(reading)
        if format is None:
            return None
        if reading is None:
            return self.constraint(format)
        return self.constraint(format, reading.thinking, begun=reading.begun)

    def _of_calls(self, reading: Reading) -> Constraint:
        text = calls_grammar(reading, self._spelled)
        own = reading.family.thinking_before_calls
        begun = own is None and reading.begun
        try:
            return self.constraint(checked(Format("calls", text)), own or reading.thinking, begun=begun)
        except RequestError:
            check_tools(reading)
            raise

    def _spelled(self, text: str) -> str:
        return spelled(text, self._tokenizer)

    def constraint(self, format: Format, thinking: Tags | None = None, *, begun: bool = False) -> Constraint:
        """Return the constraint of an answer, which may come after thinking between tags.

        With `begun` the answer starts inside the thinking. Raises `RequestError` for an unusable format.
        """
        told_apart = None
        if thinking is not None:
            opening = None if begun else self.matcher(self._opening(thinking.opening))
            size = words(self.vocabulary.vocab_size)
            told_apart = Thinking(opening, thinking.closing, self._tokenizer, size)
        return Constraint(self.matcher(format), self.vocabulary, self._tokenizer, told_apart)

    def _opening(self, tag: str) -> Format:
        """Return the format of the tag that opens thinking: as text, or as the control tokens it spells."""
        spelled = self._spelled(tag)
        return Format("lark", f"start: {json.dumps(tag)}" + (f" | {spelled}" if "<[" in spelled else ""))

    def matcher(self, format: Format) -> LLMatcher:
        """Return a matcher at the beginning of an answer. Raises `RequestError` for an unusable format."""
        match format.kind:
            case "json_schema":
                return self._schema(format.text)
            case "regex":
                return self._made(LLMatcher.grammar_from_regex(format.text), "the regular expression")
            case "choice":
                pattern = "|".join(map(_literal, json.loads(format.text)))
                return self._made(LLMatcher.grammar_from_regex(pattern), "the choice")
            case "lark":
                _check_depth(format.text)
                return self._made(LLMatcher.grammar_from_lark(format.text), "the grammar")
            case "calls":
                return self._made(LLMatcher.grammar_from_lark(format.text), "the tools' parameters")
            case "gbnf":
                _check_depth(format.text)
                return self._made(LLMatcher.grammar_from_lark(_lark(format.text)), "the grammar")

    def _schema(self, text: str) -> LLMatcher:
        schema = json.loads(text)
        if schema is False:
            raise RequestError("format: no value satisfies the schema, which is false")
        checked = checked_schema({} if schema is True else schema)
        try:
            return self._made(schema_grammar(checked.schema), "the schema")
        except RequestError:
            check_patterns(checked.patterns)
            check_parts(checked.parts())
            raise

    def _made(self, grammar: str, what: str) -> LLMatcher:
        matcher = LLMatcher(self.vocabulary, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some mistakes only show here, and the result is cached
        if matcher.is_error():
            raise RequestError(f"format: {what} cannot be used: {short(matcher.get_error())}")
        return matcher


def _lark(gbnf: str) -> str:
    try:
        return str(any_to_lark(gbnf))
    except Exception as error:  # the library raises plain ones
        raise RequestError(f"format: the grammar cannot be read: {short(str(error))}") from None


def _literal(text: str) -> str:
    """Return a regular expression that matches exactly `text`."""
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~-]", r"\\\g<0>", text)


def _check_depth(text: str) -> None:
    """Refuse nesting that could crash the parser. Quoted brackets count, too."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(depth - 1, 0)
    if deepest > _MAX_DEPTH:
        raise RequestError(
            f"format: brackets are nested {deepest} levels deep, and at most {_MAX_DEPTH} are read"
        )


class _TokenBytes:
    """A model's tokens in the form that the library's `TokenizerWrapper` takes.

    Special tokens stand for no text. A model without an end token gets an extra one, which is never drawn.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        ends = tokenizer.eos_ids
        special = {id for id in ids if tokenizer.is_control(id)} | ends
        if tokenizer.unknown_id is not None:
            special.add(tokenizer.unknown_id)
        self.tokens = [tokenizer.piece(id) for id in ids]
        if not ends:
            special.add(len(self.tokens))
            self.tokens.append(b"<end>")
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(ends, default=tokenizer.vocab_size)
        self.bos_token_id = tokenizer.bos_id
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Return the first tokens of a text that follows another one."""
        ids = self._tokenizer.encode(text[:_MAX_TEXT], add_special=False, parse_special=False, first=False)
        return ids if len(text) <= _MAX_TEXT else ids[: max(len(ids) - _UNCERTAIN, 1)]
