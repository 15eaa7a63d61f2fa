"""Training rows: a clip's spectrogram, and questions about it with answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from demo.hearing.clips import Clip
from demo.hearing.questions import NO_RECORDING, blind, questions
from demo.hearing.speech import COMMANDS, DIGITS
from demo.hearing.vocabulary import ASSISTANT_ID, AUDIO_BEGIN_ID, AUDIO_END_ID, BOS_ID, END_ID, USER_ID
from demo.vision.questions import Asked
from puna.audio.mel import HOP, mel_filters

#: What the tower learns to write down; the first is the blank of the loss, the second any other word.
WORDS = ("", "?", *DIGITS, *sorted({word for command in COMMANDS for word in command.split()}))
_QUESTIONS = 3  # per clip
#: Shares of rows that end with a question without a recording; whose question is before the recording; that
#: are no conversations.
_BLIND, _AFTER, _APART = 0.12, 0.12, 0.75
_LENGTH = 400  # samples of a frame


@dataclass
class Rows:
    """Clips with their questions, a row for each; T tokens include those of the recording."""

    features: Tensor  # [B, frames, bands]
    states: Tensor  # [B]: the tower's states of the recording, of which two become a row
    words: list[list[int]]  # of each clip, as numbers in `WORDS`
    tokens: Tensor  # [B, T]; 0 for the recording
    positions: Tensor  # [B, T]
    mask: Tensor  # bool [B, T, T]
    heard: Tensor  # bool [B, T]: the recording
    learn: Tensor  # bool [B, T]: whether the next token is learned
    kinds: list[str]  # of questions
    question: Tensor  # [B, T]: the number in `kinds` of a learned token

    @property
    def counts(self) -> Tensor:
        """The rows of each recording in the text: [B]."""
        return self.states // 2


def states_of(clip: Clip) -> int:
    """Return the tower's states of a recording."""
    frames = -(-len(clip.recording.samples) // HOP)
    return (frames + 1) // 2


def spectrograms(clips: Sequence[Clip], bands: int) -> Tensor:
    """Return the log-mel spectrograms that the engine makes: [B, frames, bands].

    Silence follows each clip, for as long as the states of the longest one read.
    """
    frames = 2 * max(states_of(clip) for clip in clips) + 3
    batch = torch.zeros(len(clips), frames * HOP + 2 * _LENGTH)
    for row, clip in zip(batch, clips, strict=True):
        samples = clip.recording.samples
        row[: len(samples)] = torch.from_numpy(clip.recording.values(0, len(samples)))
    half = _LENGTH // 2
    begun = torch.cat((batch[:, 1 : half + 1].flip(1), batch), 1)  # the first frame begins with a reflection
    pieces = begun.unfold(1, _LENGTH, HOP)[:, :frames] * torch.hann_window(_LENGTH)
    power = torch.fft.rfft(pieces).abs().square()
    bands_of = torch.from_numpy(mel_filters(bands)).float()
    logarithms = (power @ bands_of).clamp(min=1e-10).log10()
    return (logarithms.maximum(logarithms.amax((1, 2), keepdim=True) - 8) + 4) / 4


def row_of(count: int, asked: list[Asked], tokenizer: Tokenizer, form: str) -> tuple[np.ndarray, ...]:
    """Return tokens, positions, mask, heard, learned and question of a clip with `count` rows.

    In the form "talk", questions follow one another as in a conversation; "apart", each is asked as if it
    were the first; "after", only the first is asked, and the recording follows it. Questions without a
    recording do not attend to it.
    """
    recording = [AUDIO_BEGIN_ID, *[0] * count, AUDIO_END_ID]
    sound = [False, *[True] * count, False]
    tokens, heard = [BOS_ID, USER_ID], [False, False]
    if form != "after":
        tokens, heard = tokens + recording, heard + sound
    prefix = len(tokens)
    positions, segment = list(range(prefix)), [0] * prefix
    learn, question = [False] * prefix, [0] * prefix
    for number, each in enumerate(asked[:1] if form == "after" else asked, 1):
        hears = each.answer != NO_RECORDING
        alone = form != "talk" or not hears
        start = [] if alone or number == 1 else [USER_ID]
        asks = [*start, *tokenizer.encode(each.question, add_special_tokens=False).ids]
        between = recording if form == "after" and hears else []
        answer = [*tokenizer.encode(each.answer, add_special_tokens=False).ids, END_ID]
        added = [*asks, *between, ASSISTANT_ID, *answer]
        at = 2 if not hears else prefix if alone or number == 1 else positions[-1] + 1
        tokens += added
        heard += [False] * len(asks) + (sound if between else []) + [False] * (1 + len(answer))
        positions += range(at, at + len(added))
        segment += [-number if not hears else number if form == "apart" else 1] * len(added)
        learn += [False] * (len(asks) + len(between)) + [True] * len(answer) + [False]
        question += [number] * len(added)
    of, at_all = np.array(segment), np.arange(len(tokens))
    mask = (at_all[:, None] >= at_all) & ((of[:, None] == of) | ((of == 0) & (of[:, None] > 0)))
    mask[of < 0, :2] = True
    parts = tokens, positions, mask, heard, learn, question
    return tuple(np.array(part) for part in parts)


def rows_with(clips: Sequence[Clip], rng: random.Random, tokenizer: Tokenizer, bands: int) -> Rows:
    """Return rows of clips with questions drawn at random."""
    parts, kinds = [], [""]
    for clip in clips:
        form = rng.choices(("after", "apart", "talk"), (_AFTER, _APART, 1 - _AFTER - _APART))[0]
        asked = questions(clip.said, rng, 1 if form == "after" else _QUESTIONS)
        if form != "after" and rng.random() < _BLIND:
            asked[-1] = blind(rng)
        part = row_of(states_of(clip) // 2, asked, tokenizer, form)
        parts.append((*part[:-1], np.where(part[-1] > 0, part[-1] + len(kinds) - 1, 0)))
        kinds += [each.kind for each in asked]
    length = max(len(part[0]) for part in parts)
    found = []
    for column in zip(*parts, strict=True):
        kind = bool if column[0].dtype == bool else np.int64
        whole = np.zeros((len(clips), *(length,) * column[0].ndim), kind)
        for row, part in zip(whole, column, strict=True):
            row[tuple(slice(size) for size in part.shape)] = part
        found.append(torch.from_numpy(whole))
    tokens, positions, mask, heard, learn, question = found
    mask |= torch.eye(length, dtype=torch.bool)
    return Rows(
        spectrograms(clips, bands),
        torch.tensor([states_of(clip) for clip in clips]),
        [[WORDS.index(word) if word in WORDS else 1 for word in clip.said.words] for clip in clips],
        tokens, positions, mask, heard, learn, kinds, question,
    )  # fmt: skip


def masked(features: Tensor, rng: random.Random) -> Tensor:
    """Return spectrograms with a few bands and moments silenced (Park et al., arXiv:1904.08779)."""
    features = features.clone()
    for each in features:
        for axis, most in ((0, 12), (1, 12)):
            size = rng.randint(0, most)
            begin = rng.randrange(each.shape[axis] - size)
            each.narrow(axis, begin, size).fill_(float(each.mean()))
    return features


def writing_loss(scores: Tensor, rows: Rows) -> Tensor:
    """Return the mean loss of writing down the words (CTC) of scores [B, rows, words]."""
    target = torch.tensor([word for words in rows.words for word in words])
    lengths = torch.tensor([len(words) for words in rows.words])
    logprobs = F.log_softmax(scores, -1).transpose(0, 1)
    losses = F.ctc_loss(logprobs, target, rows.counts, lengths, reduction="none", zero_infinity=True)
    return losses.mean()


def written(scores: Tensor, rows: Rows) -> list[list[int]]:
    """Return the likeliest words of scores [B, rows, words], repetitions and blanks removed."""
    found = []
    for best, count in zip(scores.argmax(-1).tolist(), rows.counts.tolist(), strict=True):
        kept = best[:count]
        found.append([word for word, last in zip(kept, [0, *kept], strict=False) if word and word != last])
    return found


def right_by_kind(logits: Tensor, target: Tensor, rows: Rows) -> tuple[Counter[str], Counter[str]]:
    """Return, for each kind of question, the numbers of exactly right answers and of questions."""
    wrong = set(rows.question[:, :-1][rows.learn[:, :-1]][logits.argmax(-1) != target].tolist())
    total = Counter(rows.kinds[1:])
    return total - Counter(rows.kinds[i] for i in wrong), total
