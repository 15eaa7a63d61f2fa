"""A tiny model that says exactly the given texts, in the given pieces.

Its weights are a table of which piece follows which. A file holds up to 64 scripts; the trigger anywhere in
the prompt, such as `<<3>>`, selects the script. Without a trigger, it is the first.

A hidden state consists of the code of a token (184 values of +-1), the code of a script (64 values,
orthogonal), a flag for a script's last piece, a constant, and a flag for triggers. The single attention head
attends to the trigger alone, through the slowest pair of rotary dimensions, and copies the code of its script
into every state. All prompt tokens share one code, so the first piece of a script is the one that matches
that code and the script's; each later piece matches the code of the piece before it. The greedy token leads
by such a margin that temperature 1 gives the same text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGUFWriter
from puna.tokenizer.bpe import byte_characters

MAX_SCRIPTS = 128
CODE, HIDDEN, HEAD = 184, 320, 128
LAST, CONSTANT, TRIGGER = 312, 318, 319  # indices of the flags and the constant
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
END = "<|scripted_end|>"
BYTES = byte_characters()

#: A piece's bytes, and whether it is a control token.
Piece = tuple[bytes, bool]


def trigger(number: int) -> str:
    """Return the text that, in a prompt, selects script `number`."""
    return f"<<{number}>>"


def pieces_of(text: str, controls: Sequence[str] = (), *, size: Callable[[], int] = lambda: 1) -> list[Piece]:
    """Cut `text` into pieces of `size()` bytes each, with each of `controls` as a single control token."""
    pattern = "|".join(re.escape(control) for control in sorted(controls, key=len, reverse=True))
    found: list[Piece] = []
    for part in re.split(f"({pattern})", text) if pattern else [text]:
        if part in controls:
            found.append((part.encode(), True))
            continue
        data = part.encode()
        while data:
            length = size()
            found.append((data[:length], False))
            data = data[length:]
    return found


def random_sizes(seed: int) -> Callable[[], int]:
    """Return a source of piece sizes, most of them small, so that multi-byte characters get cut."""
    dice = random.Random(seed)
    return lambda: dice.choice((1, 1, 2, 3, 4, 6, 9))


def randomly_cut(texts: Sequence[str]) -> list[list[Piece]]:
    """Cut each text into pieces of random sizes, the same on every run."""
    return [pieces_of(text, size=random_sizes(number)) for number, text in enumerate(texts)]


def write_scripted(
    path: Path,
    scripts: Sequence[Sequence[Piece]],
    *,
    template: str | None = None,
    context: int = 8192,
    layers: int = 1,
) -> Path:
    """Write a model that says `scripts[k]` after trigger k; all `layers` but the first do nothing."""
    if not 1 <= len(scripts) <= MAX_SCRIPTS:
        raise ValueError(f"1 to {MAX_SCRIPTS} scripts fit, not {len(scripts)}")
    spoken = [piece for script in scripts for piece in script]
    controls = list(dict.fromkeys(data.decode() for data, control in spoken if control))
    # The later of two tokens with the same text encodes it, so prompts use other tokens than scripts.
    texts = [_spelling(piece) for piece in spoken] + BYTES + ["ab"]
    types = [CONTROL if control else NORMAL for _, control in spoken] + [NORMAL] * 257
    first_trigger = len(texts)
    texts += [trigger(number) for number in range(len(scripts))]
    types += [USER_DEFINED] * len(scripts)
    end = len(texts)
    texts += [END, *controls]
    types += [CONTROL] * (1 + len(controls))
    writer = GGUFWriter(path, "llama")
    for name, item in _metadata(texts, types, end, context, layers).items():
        writer.add(name, item)
    if template is not None:
        writer.add("tokenizer.chat_template", template)
    weights = _weights([len(script) for script in scripts], first_trigger, end, len(texts))
    for name, tensor in weights.items():
        writer.add_tensor(name, tensor)
        for layer in range(1, layers):
            if name.startswith("blk.0."):
                other = name.replace("blk.0.", f"blk.{layer}.")
                writer.add_tensor(other, np.zeros_like(tensor))
    writer.write()
    return path


def _metadata(texts: list[str], types: list[int], end: int, context: int, layers: int) -> dict[str, Any]:
    return {
        "general.name": "Scripted",
        "general.file_type": 0,
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": HEAD,
        "llama.attention.value_length": HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1e6,
        "llama.rope.dimension_count": HEAD,
        "llama.vocab_size": len(texts),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def _weights(
    lengths: Sequence[int], first_trigger: int, end: int, vocab_size: int
) -> dict[str, NDArray[np.float32]]:
    """Return tensors by which scripts of these `lengths`, the first tokens, follow their triggers."""
    spoken = sum(lengths)
    dice = np.random.default_rng(7)
    codes = dice.choice(np.float32([-1, 1]), (spoken, CODE))
    prompt_code = dice.choice(np.float32([-1, 1]), CODE)
    orthogonal = np.ones((1, 1), np.float32)
    while len(orthogonal) < MAX_SCRIPTS:
        orthogonal = np.block([[orthogonal, orthogonal], [orthogonal, -orthogonal]])
    script_code = slice(CODE, CODE + MAX_SCRIPTS)

    embeddings = np.zeros((vocab_size, HIDDEN), np.float32)
    embeddings[:, :CODE] = prompt_code
    embeddings[:spoken, :CODE] = codes
    embeddings[:, CONSTANT] = 1
    output = np.zeros_like(embeddings)
    first = 0
    for number, length in enumerate(lengths):
        embeddings[first_trigger + number, script_code] = orthogonal[number]
        embeddings[first_trigger + number, TRIGGER] = 1
        begin = first if length else end
        output[begin, :CODE] += prompt_code * (0.265 if number == 0 else 0.25)
        output[begin, script_code] += orthogonal[number] / 2
        for piece in range(first + 1, first + length):
            output[piece, :CODE] += codes[piece - 1] / 2
        if length:
            embeddings[first + length - 1, LAST] = 1
        first += length
    output[end, LAST] = CODE / 2

    query, key = np.zeros((2, HEAD, HIDDEN), np.float32)
    value = np.zeros((HEAD, HIDDEN), np.float32)
    query[HEAD - 1, CONSTANT] = key[HEAD - 1, TRIGGER] = 30
    value[:, script_code] = np.eye(HEAD)
    nothing = np.zeros((32, HIDDEN), np.float32)
    return {
        "token_embd.weight": embeddings,
        "output.weight": output,
        "output_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.attn_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.ffn_norm.weight": np.ones(HIDDEN, np.float32),
        "blk.0.attn_q.weight": query,
        "blk.0.attn_k.weight": key,
        "blk.0.attn_v.weight": value,
        "blk.0.attn_output.weight": np.ascontiguousarray(value.T),
        "blk.0.ffn_gate.weight": nothing,
        "blk.0.ffn_up.weight": nothing,
        "blk.0.ffn_down.weight": np.ascontiguousarray(nothing.T),
    }


def _spelling(piece: Piece) -> str:
    data, control = piece
    return data.decode() if control else "".join(BYTES[byte] for byte in data)
