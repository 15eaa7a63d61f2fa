"""Training rows: a picture, the contents of its patches, and questions about it with answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from demo.vision.model import Shape
from demo.vision.questions import Asked, blind, questions
from demo.vision.scenes import CHARACTERS, COLOURS, SHAPES, Scene, any_scene
from demo.vision.vocabulary import (
    AROUND,
    ASSISTANT_ID,
    BOS_ID,
    END_ID,
    IMAGE_BEGIN_ID,
    IMAGE_END_ID,
    USER_ID,
)

KINDS = ("", *SHAPES, "bar", *CHARACTERS)
HUES = ("", *COLOURS)
_QUESTIONS = 5  # per picture
_BLIND, _APART = (
    0.15,
    0.75,
)  # shares of rows that end with a question without a picture; that are no conversations


@dataclass
class Rows:
    """Pictures with their questions, one row per picture; T tokens include the picture's rows."""

    pixels: Tensor  # [B, 3, image, image]
    truth: dict[str, Tensor]
    tokens: Tensor  # [B, T]; 0 at the picture's rows
    positions: Tensor  # [B, T]
    mask: Tensor  # bool [B, T, T]
    learn: Tensor  # bool [B, T]: whether the next token is learned
    kinds: list[str]  # of questions
    question: Tensor  # [B, T]: the number in `kinds` of a learned token


def pixels_of(picture: Image.Image, side: int) -> np.ndarray:
    """Return a picture of any size as the tower reads it: uint8 [side, side, 3]."""
    return np.asarray(picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))


def normalised(pixels: np.ndarray) -> Tensor:
    """Map uint8 [B, side, side, 3] to [B, 3, side, side] from -1 to 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


def truth_of(scene: Scene, side: int) -> dict[str, np.ndarray]:
    """Return the contents of each of side x side patches."""
    kind, hue = np.zeros((side, side), np.int64), np.zeros((side, side), np.int64)
    middle, box = np.zeros((side, side), np.float32), np.zeros((side, side, 4), np.float32)
    if scene.background:
        hue[:] = HUES.index(scene.background)
    for thing in scene.things:
        left, top, right, bottom = (round(edge * side) for edge in thing.box)
        column, row = (min(int(at * side), side - 1) for at in (thing.x, thing.y))
        area = (
            slice(min(top, row), max(bottom, row + 1)),
            slice(min(left, column), max(right, column + 1)),
        )
        kind[area], hue[area], box[area] = KINDS.index(thing.kind), HUES.index(thing.colour), thing.box
        middle[row, column] = 1
    return {"kind": kind.ravel(), "hue": hue.ravel(), "middle": middle.ravel(), "box": box.reshape(-1, 4)}


def prefix_tokens(tokenizer: Tokenizer, shape: Shape) -> tuple[list[int], int]:
    """Return the tokens before the first question, and the index of the picture's rows in them."""
    around = tokenizer.encode(AROUND, add_special_tokens=False).ids
    before = [BOS_ID, USER_ID, *around, IMAGE_BEGIN_ID]
    return [*before, *[0] * shape.rows, IMAGE_END_ID, *around], len(before)


def row_of(
    prefix: list[int], begin: int, rows: int, asked: list[Asked], tokenizer: Tokenizer, apart: bool
) -> tuple[np.ndarray, ...]:
    """Return tokens, positions, mask, learned and question of one picture.

    Questions follow one another as in a conversation, or each is asked `apart`, as if it were the first.
    Questions without a picture do not attend to it.
    """
    tokens, positions = list(prefix), list(range(len(prefix)))
    segment, learn, question = [0] * len(prefix), [False] * len(prefix), [0] * len(prefix)
    for number, each in enumerate(asked, 1):
        sees = each.kind != "no picture"
        alone = apart or not sees
        start = [] if alone or number == 1 else [USER_ID]
        asks = [*start, *tokenizer.encode(each.question, add_special_tokens=False).ids, ASSISTANT_ID]
        answer = [*tokenizer.encode(each.answer, add_special_tokens=False).ids, END_ID]
        at = 2 if not sees else len(prefix) if apart or number == 1 else positions[-1] + 1
        tokens += asks + answer
        positions += range(at, at + len(asks) + len(answer))
        segment += [-number if not sees else number if apart else 1] * (len(asks) + len(answer))
        learn += [False] * (len(asks) - 1) + [True] * len(answer) + [False]
        question += [number] * (len(asks) + len(answer))
    of, at_all = np.array(segment), np.arange(len(tokens))
    mask = (at_all[:, None] >= at_all) & ((of[:, None] == of) | ((of == 0) & (of[:, None] > 0)))
    mask[: len(prefix), : len(prefix)] = np.tri(len(prefix), dtype=bool)
    mask[begin : begin + rows, begin : begin + rows] = True
    mask[of < 0, :2] = True
    return np.array(tokens), np.array(positions), mask, np.array(learn), np.array(question)


def draw_rows(rng: random.Random, count: int, shape: Shape, tokenizer: Tokenizer) -> Rows:
    """Draw `count` pictures with questions; some are conversations, some end with a blind question."""
    scenes = [any_scene(rng) for _ in range(count)]
    prefix, begin = prefix_tokens(tokenizer, shape)
    parts, kinds = [], [""]
    for scene in scenes:
        asked = questions(scene, rng, _QUESTIONS)
        if rng.random() < _BLIND:
            asked[-1] = blind(rng)
        tokens, positions, mask, learn, question = row_of(
            prefix, begin, shape.rows, asked, tokenizer, rng.random() < _APART
        )
        parts.append((tokens, positions, mask, learn, np.where(question > 0, question + len(kinds) - 1, 0)))
        kinds += [each.kind for each in asked]
    length = max(len(part[0]) for part in parts)
    tokens, positions, question = (np.zeros((count, length), np.int64) for _ in range(3))
    learn, mask = np.zeros((count, length), bool), np.zeros((count, length, length), bool)
    mask[:, np.arange(length), np.arange(length)] = True
    for i, part in enumerate(parts):
        n = len(part[0])
        tokens[i, :n], positions[i, :n], mask[i, :n, :n], learn[i, :n], question[i, :n] = part
    truths = [truth_of(scene, shape.side) for scene in scenes]
    return Rows(
        normalised(np.stack([pixels_of(scene.picture, shape.image) for scene in scenes])),
        {name: torch.from_numpy(np.stack([truth[name] for truth in truths])) for name in truths[0]},
        *(torch.from_numpy(array) for array in (tokens, positions, mask, learn)),
        kinds,
        torch.from_numpy(question),
    )


def right_by_kind(logits: Tensor, target: Tensor, rows: Rows) -> tuple[Counter[str], Counter[str]]:
    """Return, for each kind of question, the numbers of exactly right answers and of questions."""
    wrong = set(rows.question[:, :-1][rows.learn[:, :-1]][logits.argmax(-1) != target].tolist())
    total = Counter(rows.kinds[1:])
    return total - Counter(rows.kinds[i] for i in wrong), total
