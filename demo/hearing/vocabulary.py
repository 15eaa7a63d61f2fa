"""The vocabulary of demo-audio: byte-level BPE of its questions and answers, with single digits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from demo.hearing.questions import blind, questions
from demo.hearing.speech import NOTHING, any_said
from demo.vocabulary import train_vocabulary

BOS, END, USER, ASSISTANT = "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"
AUDIO_BEGIN, AUDIO_END = "<|audio_bos|>", "<|audio_eos|>"
CONTROL = (BOS, END, USER, ASSISTANT, AUDIO_BEGIN, AUDIO_END)
BOS_ID, END_ID, USER_ID, ASSISTANT_ID, AUDIO_BEGIN_ID, AUDIO_END_ID = range(len(CONTROL))
SIZE = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def texts(clips: int, seed: int) -> Iterator[str]:
    """Yield questions and answers about clips."""
    rng = random.Random(seed)
    for number in range(clips):
        said = any_said(rng) if number % 10 else NOTHING
        for asked in questions(said, rng, 6):
            yield asked.question
            yield asked.answer
        asked = blind(rng)
        yield asked.question
        yield asked.answer


def question_vocabulary(clips: int = 1500, seed: int = 1) -> Tokenizer:
    """Return a tokenizer of at most `SIZE` tokens, control tokens first."""
    return train_vocabulary(texts(clips, seed), SIZE, CONTROL)


def load_vocabulary(path: Path) -> Tokenizer:
    """Load the tokenizer from a file, training it first if the file does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        question_vocabulary().save(str(path))
    return Tokenizer.from_file(str(path))
