"""Train demo-audio: `python -m demo.hearing.train`. Needs espeak-ng, whose speech it records in many ways.

In the first stage, the tower alone learns to write down the words, with a head that is discarded afterwards;
then the whole model learns to answer. The schedule counts steps, so an interrupted run continues from its
last checkpoint.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from demo.hearing.clips import any_clip
from demo.hearing.model import AudioModel, Shape
from demo.hearing.rows import WORDS, Rows, masked, right_by_kind, rows_with, writing_loss, written
from demo.hearing.speech import Bank, fill_bank
from demo.hearing.vocabulary import load_vocabulary
from demo.towers import Report, TowerTraining, optimisers

OUT = Path(__file__).parents[1] / "out" / "hearing"
SEED = 1
CLIPS = 32  # per step
SPOKEN = 7000  # clips of the bank
_SORTED = 4  # steps whose clips are sorted by length
WARMUP = 30
AVERAGE = 0.99  # share of the averaged weights that a step keeps
_REPORT, _SAVE = 25, 50  # steps between


@dataclass(frozen=True)
class Plan:
    """The length of the training and its learning rates."""

    writing: int = 350  # steps of the tower alone
    steps: int = 2900  # total steps
    falling: int = 500  # last steps, in which the rate falls to zero
    rate: float = 0.004


def read(model: AudioModel, rows: Rows, heard: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of all learned positions, and their correct tokens."""
    x = model.embed(rows.tokens)
    there = torch.arange(heard.shape[1]) < rows.counts[:, None]
    x = x.masked_scatter(rows.heard[..., None], model.rows(heard)[there])
    hidden = model.hidden(x, rows.positions, rows.mask)
    learn = rows.learn[:, :-1]
    return model.logits(hidden[:, :-1][learn]), rows.tokens[:, 1:][learn]


def rate(plan: Plan, step: int) -> float:
    """Return the learning rate: warm-up in each stage, then constant, falling to zero at the end."""
    since = step if step < plan.writing else step - plan.writing
    return plan.rate * min(1.0, (since + 1) / WARMUP, (plan.steps - step) / plan.falling)


@dataclass
class Training(TowerTraining):
    """The state that changes from step to step; the heads make words of a row of the tower."""

    model: AudioModel
    heads: nn.Linear

    @classmethod
    def of(cls, shape: Shape) -> Training:
        model, heads = AudioModel(shape), nn.Linear(shape.audio_hidden, len(WORDS))
        return cls(model, heads, optimisers(model, heads, ("_embd",)), AVERAGE)

    def learn(self, rows: Rows, plan: Plan, report: Report) -> None:
        """Train one step."""
        features = masked(rows.features, random.Random(f"{SEED} {self.step} mask"))
        heard = self.model.a(features, rows.states)
        scores = self.heads(heard)
        loss = writing = writing_loss(scores, rows)
        report.sums["writing"] += writing.item()
        pairs = zip(written(scores.detach(), rows), rows.words, strict=True)
        report.sums["right"] += sum(found == words for found, words in pairs) / CLIPS
        if self.step >= plan.writing:
            logits, target = read(self.model, rows, heard)
            saying = F.cross_entropy(logits, target)
            loss = 0.5 * writing + saying
            report.sums["saying"] += saying.item()
            right, total = right_by_kind(logits.detach(), target, rows)
            report.right += right
            report.total += total
        self.update(loss, rate(plan, self.step))
        report.steps += 1


def batches(bank: Bank, step: int, tokenizer: Tokenizer, shape: Shape) -> Iterator[Rows]:
    """Yield the rows of each step from `step` on, with clips of about the same length."""
    group, skipped = divmod(step, _SORTED)
    while True:
        rng = random.Random(f"{SEED} {group}")
        clips = sorted(
            (any_clip(bank, rng) for _ in range(_SORTED * CLIPS)),
            key=lambda clip: len(clip.recording.samples),
        )
        for number in rng.sample(range(_SORTED), _SORTED)[skipped:]:
            part = clips[number * CLIPS : (number + 1) * CLIPS]
            yield rows_with(part, random.Random(f"{SEED} {group} {number}"), tokenizer, shape.bands)
        group, skipped = group + 1, 0


def train(out: Path, plan: Plan, clips: int = SPOKEN) -> None:
    """Train to the end of the plan, from the checkpoint in `out` if there is one."""
    fill_bank(out, clips, SEED)
    bank = Bank(out)
    torch.manual_seed(SEED)
    shape = Shape()
    tokenizer = load_vocabulary(out / "tokenizer.json")
    assert tokenizer.get_vocab_size() <= shape.vocabulary
    training = Training.of(shape)
    path, report = out / "checkpoint.pt", Report()
    if path.exists():
        training.resume(path)
    for rows in batches(bank, training.step, tokenizer, shape):
        if training.step >= plan.steps:
            break
        training.learn(rows, plan, report)
        last = training.step == plan.steps
        if training.step % _REPORT == 0 or last:
            print(f"step {training.step}/{plan.steps}: {report.line(CLIPS, 'clips')}", flush=True)
            report = Report()
        if training.step % _SAVE == 0 or last:
            training.save(path)


def load_model(path: Path) -> AudioModel:
    """Return the averaged model of a checkpoint, ready for evaluation."""
    model = AudioModel(Shape())
    model.load_state_dict(torch.load(path, weights_only=True)["average"])
    return model.eval()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--writing", type=int, default=Plan.writing)
    parser.add_argument("--falling", type=int, default=Plan.falling)
    parser.add_argument("--clips", type=int, default=SPOKEN, help="spoken clips of the bank")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = Plan(options.writing, options.steps, options.falling)
    train(options.out, plan, options.clips)


if __name__ == "__main__":
    main()
