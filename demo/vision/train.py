"""Train demo-vision: `python -m demo.vision.train`. Pictures are drawn as they are needed, none twice.

In its first stage the tower alone learns what lies where, from heads that are thrown away afterwards; then
the whole model learns to answer. The schedule counts steps, so a run can be interrupted and goes on from its
last checkpoint.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from demo.vision.model import Shape, VisionModel
from demo.vision.muon import Muon
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
    load_vocabulary,
)

OUT = Path(__file__).parents[1] / "out" / "vision"
SEED = 1
PICTURES = 32  # in a step
QUESTIONS = 5  # about each picture
KINDS = ("", *SHAPES, "bar", *CHARACTERS)
HUES = ("", *COLOURS)
WARMUP = 30
AVERAGE = 0.995  # how much of the averaged weights a step leaves


@dataclass(frozen=True)
class Plan:
    """How long and how fast is learned."""

    looking: int = 150  # steps of the tower alone
    steps: int = 1000  # steps in all
    falling: int = 300  # of those, the last ones, in which the rate falls to nothing
    rate: float = 0.004


class Heads(nn.Module):
    """What a patch is part of: a thing's kind and colour, whether its middle is there, where it reaches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kind = nn.Linear(width, len(KINDS))
        self.hue = nn.Linear(width, len(HUES))
        self.middle = nn.Linear(width, 1)
        self.box = nn.Linear(width, 4)

    def forward(self, patches: Tensor, truth: dict[str, Tensor]) -> Tensor:
        """The mean loss over [B, patches, width]."""
        known = truth["hue"] > 0
        there = truth["kind"] > 0
        loss = F.cross_entropy(self.kind(patches)[known], truth["kind"][known])
        loss = loss + 0.5 * F.cross_entropy(self.hue(patches)[known], truth["hue"][known])
        loss = loss + 2 * F.binary_cross_entropy_with_logits(self.middle(patches)[..., 0], truth["middle"])
        return loss + 2 * F.smooth_l1_loss(self.box(patches)[there], truth["box"][there], beta=0.05)


@dataclass
class Rows:
    """Pictures and what is asked about them, one row a picture; T of tokens counts the picture's rows."""

    pixels: Tensor  # [B, 3, image, image]
    truth: dict[str, Tensor]
    tokens: Tensor  # [B, T]; 0 where the picture stands
    positions: Tensor  # [B, T]
    mask: Tensor  # bool [B, T, T]
    learn: Tensor  # bool [B, T]: whether the next token is learned
    kinds: list[str]  # of questions
    question: Tensor  # [B, T]: which of `kinds` a learned token belongs to


def pixels_of(picture: Image.Image, side: int) -> np.ndarray:
    """uint8 [side, side, 3], as the tower reads a picture of any size."""
    return np.asarray(picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))


def normalised(pixels: np.ndarray) -> Tensor:
    """uint8 [B, side, side, 3] to [B, 3, side, side] from -1 to 1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


def truth_of(scene: Scene, side: int) -> dict[str, np.ndarray]:
    """What is in each of side x side patches."""
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
    """What stands before the first question, and where in it the picture's rows begin."""
    around = tokenizer.encode(AROUND, add_special_tokens=False).ids
    before = [BOS_ID, USER_ID, *around, IMAGE_BEGIN_ID]
    return [*before, *[0] * shape.rows, IMAGE_END_ID, *around], len(before)


def row_of(
    prefix: list[int], begin: int, rows: int, asked: list[Asked], tokenizer: Tokenizer, apart: bool
) -> tuple[np.ndarray, ...]:
    """Tokens, positions, mask, learned and question of one picture.

    Questions follow each other as in a conversation, or are asked `apart` as if each was the first one;
    those without a picture do not see it.
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
    """`count` pictures with questions about each; some are conversations, some have a blind question last."""
    scenes = [any_scene(rng) for _ in range(count)]
    prefix, begin = prefix_tokens(tokenizer, shape)
    parts, kinds = [], [""]
    for scene in scenes:
        asked = questions(scene, rng, QUESTIONS)
        if rng.random() < 0.15:
            asked[-1] = blind(rng)
        tokens, positions, mask, learn, question = row_of(
            prefix, begin, shape.rows, asked, tokenizer, rng.random() < 0.75
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


def read(model: VisionModel, rows: Rows, seen: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    """Logits of all learned positions, and the tokens that are right there."""
    x = model.embed(rows.tokens)
    picture = model.mm(seen)
    x = torch.cat((x[:, :begin], picture, x[:, begin + picture.shape[1] :]), 1)
    hidden = model.hidden(x, rows.positions, rows.mask)
    learn = rows.learn[:, :-1]
    return model.logits(hidden[:, :-1][learn]), rows.tokens[:, 1:][learn]


def right_by_kind(logits: Tensor, target: Tensor, rows: Rows) -> tuple[Counter[str], Counter[str]]:
    """Of each kind of question: how many are answered right token for token, and how many there are."""
    wrong = set(rows.question[:, :-1][rows.learn[:, :-1]][logits.argmax(-1) != target].tolist())
    total = Counter(rows.kinds[1:])
    return total - Counter(rows.kinds[i] for i in wrong), total


def rate(plan: Plan, step: int) -> float:
    """Learning rate: warm-up in each of the stages, then constant, in the end falling to nothing."""
    since = step if step < plan.looking else step - plan.looking
    return plan.rate * min(1.0, (since + 1) / WARMUP, (plan.steps - step) / plan.falling)


def optimisers(model: VisionModel, heads: Heads) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for everything else."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "blk." in n]
    rest = [p for n, p in model.named_parameters() if not (p.dim() == 2 and "blk." in n)]
    return [
        Muon(matrices, weight_decay=0.05),
        torch.optim.AdamW([*rest, *heads.parameters()], betas=(0.9, 0.95), weight_decay=0.0),
    ]


def evaluate(
    model: VisionModel, shape: Shape, tokenizer: Tokenizer, batches: int, begin: int
) -> dict[str, tuple[float, int]]:
    """Of each kind: the fraction right, on pictures that are never learned from, and how many."""
    good: Counter[str] = Counter()
    total: Counter[str] = Counter()
    model.eval()
    with torch.inference_mode():
        for number in range(batches):
            rows = draw_rows(random.Random(f"held out {number}"), PICTURES, shape, tokenizer)
            logits, target = read(model, rows, model.v(rows.pixels), begin)
            found, of = right_by_kind(logits, target, rows)
            good += found
            total += of
    model.train()
    return {kind: (good[kind] / count, count) for kind, count in sorted(total.items())}


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(options.threads)
    shape = Shape()
    plan = Plan(options.looking, options.steps, options.falling)
    tokenizer = load_vocabulary(options.out / "tokenizer.json")
    assert tokenizer.get_vocab_size() <= shape.vocabulary
    begin = prefix_tokens(tokenizer, shape)[1]
    model, heads = VisionModel(shape), Heads(shape.vision_hidden)
    updates = optimisers(model, heads)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    path, start = options.out / "checkpoint.pt", 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        heads.load_state_dict(saved["heads"])
        for optimiser, state in zip(updates, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        average, start = saved["average"], saved["step"]
    parameters = [*model.parameters(), *heads.parameters()]
    total, answered, seen_loss, said_loss = Counter[str](), Counter[str](), [], []
    began = time.monotonic()
    for step in range(start, plan.steps):
        while options.pause is not None and options.pause.exists():
            time.sleep(3)
        rows = draw_rows(random.Random(f"{SEED} {step}"), PICTURES, shape, tokenizer)
        seen = model.v(rows.pixels)
        loss = aux = heads(seen, rows.truth)
        if step >= plan.looking:
            logits, target = read(model, rows, seen, begin)
            said = F.cross_entropy(logits, target)
            loss = said + 0.3 * aux
            found, of = right_by_kind(logits.detach(), target, rows)
            answered += found
            total += of
            said_loss.append(said.item())
        seen_loss.append(aux.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 1.0)
        for optimiser in updates:
            optimiser.param_groups[0]["lr"] = rate(plan, step)
            optimiser.step()
            optimiser.zero_grad()
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].lerp_(p, 1 - min(AVERAGE, (step + 1) / (step + 10)))
        if (step + 1) % 25 == 0:
            speed = (step + 1 - start) * PICTURES / (time.monotonic() - began)
            right = sum(answered.values()) / max(sum(total.values()), 1)
            losses = [f"{np.mean(part):.4f}" if part else "-" for part in (seen_loss, said_loss)]
            print(
                f"{time.strftime('%H:%M:%S')} step {step + 1}/{plan.steps} looking {losses[0]} "
                f"saying {losses[1]} right {right:.3f} {speed:.1f} pictures/s",
                flush=True,
            )
            if (step + 1) % 100 == 0 and total:
                kinds = {kind: f"{answered[kind] / count:.2f}" for kind, count in sorted(total.items())}
                print("   ", kinds, flush=True)
                total, answered = Counter[str](), Counter[str]()
            seen_loss, said_loss = [], []
        if (step + 1) % 100 == 0 or step + 1 == plan.steps:
            state = {
                "step": step + 1,
                "model": model.state_dict(),
                "heads": heads.state_dict(),
                "average": average,
                "optimisers": [optimiser.state_dict() for optimiser in updates],
            }
            torch.save(state, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)


def load_model(path: Path) -> VisionModel:
    """The averaged model of a checkpoint, ready to be evaluated."""
    model = VisionModel(Shape())
    model.load_state_dict(torch.load(path, weights_only=True)["average"])
    return model.eval()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--looking", type=int, default=Plan.looking)
    parser.add_argument("--falling", type=int, default=Plan.falling)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pause", type=Path, help="wait between steps while this file exists")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
