"""A model's tokens in the form that `llguidance` takes them."""

from __future__ import annotations

from puna.tokenizer import Tokenizer

#: Characters of a text that are tokenised: forced texts may be long, and only their first tokens are of use.
_MOST = 256
#: Tokens at the end of a text cut there that might be others if it went on.
_UNCERTAIN = 8


class TokenBytes:
    """What the library's `TokenizerWrapper` wants to know, and calls.

    Special tokens stand for no text. A model without an end token gets one after its others, never drawn.
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
        """The first tokens of a text that follows another one."""
        ids = self._tokenizer.encode(text[:_MOST], add_special=False, parse_special=False, first=False)
        return ids if len(text) <= _MOST else ids[: max(len(ids) - _UNCERTAIN, 1)]
