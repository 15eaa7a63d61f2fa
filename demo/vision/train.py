"""Train demo-vision: `python -m demo.vision.train`. Pictures are drawn on demand and never used twice.

In the first stage, the tower alone learns the contents of patches, with heads that are discarded afterwards;
then the whole model learns to answer. The schedule counts steps, so an interrupted run continues from its
last checkpoint.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.towers import Report, TowerTraining, optimisers
from demo.vision.model import Shape, VisionModel
from demo.vision.rows import HUES, KINDS, Rows, draw_rows, prefix_tokens, right_by_kind
from demo.vision.vocabulary import load_vocabulary

OUT = Path(__file__).parents[1] / "out" / "vision"
SEED = 1
PICTURES = 32  # per step
WARMUP = 30
AVERAGE = 0.995  # share of the averaged weights that a step keeps
_REPORT, _SAVE = 25, 100  # steps between


@dataclass(frozen=True)
class Plan:
    """The length of the training and its learning rates."""

    looking: int = 850  # steps of the tower alone
    steps: int = 2390  # total steps
    falling: int = 1200  # last steps, in which the rate falls to zero
    rate: float = 0.004


class Heads(nn.Module):
    """Heads that predict the thing of a patch: kind, colour, whether its middle is there, and its extent."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kind = nn.Linear(width, len(KINDS))
        self.hue = nn.Linear(width, len(HUES))
        self.middle = nn.Linear(width, 1)
        self.box = nn.Linear(width, 4)

    def forward(self, patches: Tensor, truth: dict[str, Tensor]) -> Tensor:
        """Return the mean loss over [B, patches, width]."""
        known = truth["hue"] > 0
        there = truth["kind"] > 0
        loss = F.cross_entropy(self.kind(patches)[known], truth["kind"][known])
        loss = loss + 0.5 * F.cross_entropy(self.hue(patches)[known], truth["hue"][known])
        loss = loss + 2 * F.binary_cross_entropy_with_logits(self.middle(patches)[..., 0], truth["middle"])
        return loss + 2 * F.smooth_l1_loss(self.box(patches)[there], truth["box"][there], beta=0.05)

    def right(self, patches: Tensor, truth: dict[str, Tensor]) -> float:
        """Count the things recognised by the patch in their middle."""
        with torch.no_grad():
            middle = truth["middle"] > 0
            found = self.kind(patches[middle]).argmax(-1) == truth["kind"][middle]
            return found.float().mean().item()


def read(model: VisionModel, rows: Rows, seen: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    """Return the logits of all learned positions, and their correct tokens."""
    x = model.embed(rows.tokens)
    picture = model.mm(seen)
    x = torch.cat((x[:, :begin], picture, x[:, begin + picture.shape[1] :]), 1)
    hidden = model.hidden(x, rows.positions, rows.mask)
    learn = rows.learn[:, :-1]
    return model.logits(hidden[:, :-1][learn]), rows.tokens[:, 1:][learn]


def rate(plan: Plan, step: int) -> float:
    """Return the learning rate: warm-up in each stage, then constant, falling to zero at the end."""
    since = step if step < plan.looking else step - plan.looking
    return plan.rate * min(1.0, (since + 1) / WARMUP, (plan.steps - step) / plan.falling)


@dataclass
class Training(TowerTraining):
    """The state that changes from step to step."""

    model: VisionModel
    heads: Heads
    begin: int = 0  # index of the picture in a row

    @classmethod
    def of(cls, shape: Shape, begin: int) -> Training:
        model, heads = VisionModel(shape), Heads(shape.vision_hidden)
        return cls(model, heads, optimisers(model, heads, ("_embd", "position")), AVERAGE, begin=begin)

    def learn(self, rows: Rows, plan: Plan, report: Report) -> None:
        """Train one step."""
        seen = self.model.v(rows.pixels)
        loss = looking = self.heads(seen, rows.truth)
        report.sums["looking"] += looking.item()
        report.sums["known"] += self.heads.right(seen, rows.truth)
        if self.step >= plan.looking:
            logits, target = read(self.model, rows, seen, self.begin)
            saying = F.cross_entropy(logits, target)
            loss = looking + saying
            report.sums["saying"] += saying.item()
            right, total = right_by_kind(logits.detach(), target, rows)
            report.right += right
            report.total += total
        self.update(loss, rate(plan, self.step))
        report.steps += 1


def train(out: Path, plan: Plan) -> None:
    """Train to the end of the plan, from the checkpoint in `out` if there is one."""
    torch.manual_seed(SEED)
    shape = Shape()
    tokenizer = load_vocabulary(out / "tokenizer.json")
    assert tokenizer.get_vocab_size() <= shape.vocabulary
    training = Training.of(shape, prefix_tokens(tokenizer, shape)[1])
    path, report = out / "checkpoint.pt", Report()
    if path.exists():
        training.resume(path)
    while training.step < plan.steps:
        rows = draw_rows(random.Random(f"{SEED} {training.step}"), PICTURES, shape, tokenizer)
        training.learn(rows, plan, report)
        last = training.step == plan.steps
        if training.step % _REPORT == 0 or last:
            print(f"step {training.step}/{plan.steps}: {report.line(PICTURES, 'pictures')}", flush=True)
            report = Report()
        if training.step % _SAVE == 0 or last:
            training.save(path)


def load_model(path: Path) -> VisionModel:
    """Return the averaged model of a checkpoint, ready for evaluation."""
    model = VisionModel(Shape())
    model.load_state_dict(torch.load(path, weights_only=True)["average"])
    return model.eval()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options.out, Plan(steps=options.steps))


if __name__ == "__main__":
    main()
