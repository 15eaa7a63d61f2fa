"""The vocabulary of demo-vision: byte-level BPE of its questions, with single capital letters and digits.

It is trained on questions and answers without the words and numbers printed in pictures, so that printed text
is always spelt one letter at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from demo.vision.questions import blind, questions
from demo.vision.scenes import any_scene
from demo.vocabulary import train_vocabulary

BOS, END, USER, ASSISTANT = "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"
IMAGE_BEGIN, IMAGE_END = "<start_of_image>", "<end_of_image>"
CONTROL = (BOS, END, USER, ASSISTANT, IMAGE_BEGIN, IMAGE_END)
BOS_ID, END_ID, USER_ID, ASSISTANT_ID, IMAGE_BEGIN_ID, IMAGE_END_ID = range(len(CONTROL))
AROUND = "\n\n"  # the tokens before and after a picture, as in Gemma 3
SIZE = 768

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def texts(pictures: int, seed: int) -> Iterator[str]:
    """Yield questions and answers without text printed in pictures."""
    rng = random.Random(seed)
    for _ in range(pictures):
        scene = any_scene(rng)
        for asked in questions(scene, rng, 6):
            yield asked.question
            if scene.style not in ("word", "number"):
                yield asked.answer
        yield blind(rng).question


def question_vocabulary(pictures: int = 4000, seed: int = 1) -> Tokenizer:
    """Return a tokenizer of at most `SIZE` tokens, control tokens first."""
    # "I see no picture." and "The word" are answers only for missing or printed pictures.
    spoken = ["I see no picture.", "I cannot tell.", "The number", "The word", "There is no text.", AROUND]
    return train_vocabulary([*texts(pictures, seed), *spoken * 200], SIZE, CONTROL)


def load_vocabulary(path: Path) -> Tokenizer:
    """Load the tokenizer from a file, training it first if the file does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        question_vocabulary().save(str(path))
    return Tokenizer.from_file(str(path))
