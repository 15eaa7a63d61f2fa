"""Pre-tokenizers, which split text into words before byte-level BPE, by `tokenizer.ggml.pre` (spec B3).

A pre-tokenizer is a list of steps, each applied to the pieces of the previous step. Where llama.cpp
approximates a model's regular expression (its engine lacks some Unicode classes), the original is used
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import regex  # type: ignore[import-untyped]

#: Characters from which releasing Python's lock is worth the time.
LONG_TEXT = 1 << 14

Split = Callable[[str], list[str]]


@cache
def splitter(step: str | Digits) -> Split:
    """Return a function that splits text by `step`. The pieces, some possibly empty, add up to the text."""
    return _by_digits(step) if isinstance(step, Digits) else _by_pattern(step)


def _by_pattern(pattern: str) -> Split:
    # VERSION1 supports set operations, which one pattern needs.
    split = regex.compile(f"({pattern})", regex.VERSION1).split
    # In a long text, let other threads run between matches.
    return lambda text: split(text, concurrent=len(text) > LONG_TEXT)


def _by_digits(step: Digits) -> Split:
    run = regex.compile(step.run)

    def split(text: str) -> list[str]:
        cuts: list[int] = [0]
        for match in run.finditer(text):
            begin, end = match.span()
            cuts += range(end - (end - begin) // 3 * 3, end, 3)
            if step.isolate:
                cuts += (begin, end)
        cuts.append(len(text))
        cuts = sorted(set(cuts))
        return [text[begin:end] for begin, end in pairwise(cuts)]

    return split


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_KANA_HAN = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(numbers: str, contractions: str = _CONTRACTIONS + "|") -> str:
    """Return Llama 3's expression with the given rules for numbers and contractions."""
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(numbers: str, suffix: str, upper: str = _UPPER, lower: str = _LOWER, tail: str = "/") -> str:
    """Return `_words`, with words that also end where lower case turns to upper (Tekken, o200k)."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{tail}]*|{_SPACES}"
    )


LLAMA3 = _words(r"\p{N}{1,3}")
QWEN2 = _words(r"\p{N}")
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
TEKKEN = _cased_words(r"\p{N}", "")
O200K = _cased_words(r"\p{N}{1,3}", _CONTRACTIONS + "?")
KIMI_K2 = r"\p{Han}+|" + _cased_words(
    r"\p{N}{1,3}",
    _CONTRACTIONS + "?",
    upper=rf"[{_UPPER}&&[^\p{{Han}}]]",
    lower=rf"[{_LOWER}&&[^\p{{Han}}]]",
    tail="",
)
DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# Letters of the scripts with case, as listed by DeepSeek's first tokenizer.
_DEEPSEEK_LETTERS = (
    r"A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    r"\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    r"\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    r"\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    r"\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    r"\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    r"\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    r"\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    r"\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    r"\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_AFMOE_SCRIPTS = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    r"\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    rf"\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|{_KANA_HAN}"
)
_BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_JAIS2_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))


@dataclass(frozen=True)
class Digits:
    """A step that splits runs of digits into groups of three, from the right.

    `run` matches a whole run; with `isolate`, text is also split before and after it.
    """

    run: str
    isolate: bool


@dataclass(frozen=True)
class PreTokenizer:
    """The steps of a pre-tokenizer, and other properties that depend on `tokenizer.ggml.pre`."""

    steps: tuple[str | Digits, ...]
    ignore_merges: bool = False  # a word that is itself a token is encoded as that token, without merges
    add_bos: bool = False  # the default if the file does not say


DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_GPT2 = PreTokenizer((GPT2,))
_LLAMA3 = PreTokenizer((LLAMA3,))
_LLAMA3_PLUS = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((QWEN2,))
_TEKKEN = PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True)
_O200K = PreTokenizer((O200K,))
_DIGITS = PreTokenizer((r"\p{N}", GPT2))
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _KANA_HAN, DEEPSEEK3_WORDS))
_BAILING = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
# The expression was written for Oniguruma, where every number is a word character.
_AYA = PreTokenizer((Digits(r"(?<!\d)\d++(?![\w\p{N}])", isolate=True), O200K))
# SentencePiece-like BPE: text is not split into words, only at runs of newlines.
LINES = PreTokenizer((r"[^\n]+|\n+",))


def _named(names: str, pre: PreTokenizer) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), pre)


BY_NAME: dict[str, PreTokenizer] = {
    **_named("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3_PLUS),
    **_named("dbrx smaug-bpe glm4 chatglm-bpe", _LLAMA3),
    **_named(
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        _QWEN2,
    ),
    **_named("qwen35", PreTokenizer((QWEN35,))),
    **_named("tekken", _TEKKEN),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", _O200K),
    **_named("granite-embed-multi-97m", replace(_O200K, ignore_merges=True)),
    **_named("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3),
    **_named("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", _DIGITS),
    **_named(
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe modern-bert "
        "gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4",
        _GPT2,
    ),
    **_named("bailingmoe bailingmoe2 llada-moe", _BAILING),
    **_named("poro-chat bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
    **_named("gemma4 granite-embed-multi-311m sarvam-moe", LINES),
    "default": DEFAULT,
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"(?<!\s)\s++$",  # `\s+$`, tried only where whitespace begins
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "laguna": PreTokenizer((r"(?:\r?\n)+(?!\r?\n)", QWEN2)),
    "seed-coder": PreTokenizer(
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
    "ufakzeka": PreTokenizer((_words(r"\p{N}", contractions=""),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
            # Spaces are cut into many pieces here, so line ends are searched for only at the start of a run.
            rf"|(?<![^\S\r\n])\s*[\r\n]+|{_JAIS2_SPACES}|\s{{1,2}}(?!\S)|\s",
        )
    ),
    "exaone-moe": PreTokenizer(
        (
            rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "spark2_5": PreTokenizer(
        (
            r"\p{N}{1,3}",
            _KANA_HAN,
            DEEPSEEK3_WORDS.replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
            r"\p{N}",
        )
    ),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _cased_words(r"\p{N}", _CONTRACTIONS + "?")), ignore_merges=True),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        add_bos=True,
    ),
    "kimi-k2": PreTokenizer((KIMI_K2,)),
    "superbpe": PreTokenizer((r"\p{N}+", Digits(r"\d++", isolate=False))),
    **_named("tiny_aya cohere2moe", _AYA),
    "afmoe": PreTokenizer((Digits(r"\p{N}++", isolate=True), _AFMOE_SCRIPTS, DEEPSEEK3_WORDS)),
}
