"""Words spoken by espeak-ng in many voices: digits, commands, and words that the model does not know."""

from __future__ import annotations

import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray

from puna.audio.recording import SAMPLE_RATE

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
COMMANDS = (
    "stop", "go", "left", "right", "up", "down", "yes", "no", "lights on", "lights off", "volume up",
    "volume down", "play music", "next song", "open door", "close door",
)  # fmt: skip
#: Words that the model learns to tell from those it knows, and words kept for its evaluation.
OTHERS = """
apple banana window table garden kitchen summer winter yellow purple elephant monkey tiger butterfly mountain
river ocean island doctor teacher student farmer picture paper pencil letter bottle butter coffee sugar
chocolate breakfast dinner morning evening weather thunder rainbow holiday birthday party family mother
father sister brother cousin friend neighbour village city market bicycle airplane station hospital library
museum castle bridge forest flower potato tomato carrot onion pepper chicken rabbit turtle dolphin spider
finger shoulder elbow stomach question answer problem reason number history science machine computer keyboard
internet message telephone television camera magazine newspaper hello goodbye please thanks welcome sorry
""".split()  # noqa: SIM905
UNHEARD = """
orange basket pyjamas umbrella gorilla penguin pumpkin captain wizard furniture orchestra calendar
""".split()  # noqa: SIM905

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-us-nyc")
#: Variants of espeak-ng's voices: those of the training, and those kept for the evaluation.
VOICES = """
f1 f2 f3 f5 m1 m2 m3 m4 m6 m7 Alex Andy Annie Denis Gene Lee Mario Michael Mike Storm adam anika belinda boris
caleb david ed edward grandma grandpa iven john linda marcelo max miguel pablo pedro quincy rob robert sandro
shelby travis victor zac benjamin Diogo Henrique antonio
""".split()  # noqa: SIM905
UNHEARD_VOICES = "f4 m5 m8 Alicia Jacky Marco Nguyen steph paul norbert".split()  # noqa: SIM905
SPEEDS, PITCHES = (115, 220), (20, 80)  # of the training
_RATE = 22_050  # of espeak-ng
_HEADER = 44  # bytes of a WAV file before its samples
_QUIET = 0.01  # share of the largest sample below which a clip is cut at both ends


@dataclass(frozen=True)
class Said:
    """The words of a clip, and their kind: "digits", "command", "other", or "nothing"."""

    kind: str
    words: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.words)


NOTHING = Said("nothing")


@dataclass(frozen=True)
class Voice:
    """A voice of espeak-ng."""

    accent: str
    variant: str
    speed: int  # words a minute
    pitch: int  # 0 to 99
    gap: int = 0  # pause between words, in units of 10 ms


def is_installed() -> bool:
    return shutil.which("espeak-ng") is not None


def speak(text: str, voice: Voice) -> NDArray[np.float32]:
    """Return a text as spoken, without silence at its ends: samples at 16,000 Hz, the largest 1 or -1."""
    made = subprocess.run(
        ["espeak-ng", "-v", f"{voice.accent}+{voice.variant}", "-s", str(voice.speed), "-p", str(voice.pitch),
         "-g", str(voice.gap), "--stdout", text],
        check=True, capture_output=True, stdin=subprocess.DEVNULL,
    ).stdout  # fmt: skip
    samples = np.frombuffer(made[_HEADER:], "<i2").astype(np.float32)
    loud = np.flatnonzero(np.abs(samples) > _QUIET * np.abs(samples).max())
    samples = samples[loud[0] : loud[-1] + 1]
    found: NDArray[np.float32] = soxr.resample(samples / np.abs(samples).max(), _RATE, SAMPLE_RATE)
    return found


def any_said(rng: random.Random, others: list[str] = OTHERS) -> Said:
    """Draw one to five digits, a command, or one to three words of `others`."""
    kind = rng.choices(("digits", "command", "other"), (55, 32, 13))[0]
    if kind == "command":
        return Said(kind, tuple(rng.choice(COMMANDS).split()))
    count = rng.choices(range(1, 6), (25, 20, 30, 15, 10) if kind == "digits" else (6, 3, 1, 0, 0))[0]
    return Said(kind, tuple(rng.choices(DIGITS if kind == "digits" else others, k=count)))


def any_voice(rng: random.Random, variants: list[str] = VOICES, speeds: tuple[int, int] = SPEEDS) -> Voice:
    gap = rng.choice((0, 0, 0, 2, 5, 10, 20))
    return Voice(rng.choice(ACCENTS), rng.choice(variants), rng.randint(*speeds), rng.randint(*PITCHES), gap)


class Bank:
    """Many spoken clips in a file, which a training draws from."""

    def __init__(self, folder: Path) -> None:
        self._samples = np.load(folder / "speech.npy", mmap_mode="r")
        index = msgspec.json.decode((folder / "speech.json").read_bytes(), type=list[tuple[Said, int]])
        self._said = [said for said, _ in index]
        self._ends = np.cumsum([count for _, count in index])

    def draw(self, rng: random.Random) -> tuple[Said, NDArray[np.float32]]:
        number = rng.randrange(len(self._said))
        begin = self._ends[number - 1] if number else 0
        samples = self._samples[begin : self._ends[number]].astype(np.float32) / 32767
        return self._said[number], samples


def fill_bank(folder: Path, clips: int, seed: int) -> None:
    """Speak `clips` clips in voices of the training, unless `folder` has them."""
    if (folder / "speech.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    asked = [(any_said(rng), any_voice(rng)) for _ in range(clips)]

    def made(each: tuple[Said, Voice]) -> NDArray[np.int16]:
        return np.rint(speak(each[0].text, each[1]) * 32767).clip(-32767, 32767).astype(np.int16)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(made, asked))
    np.save(folder / "speech.npy", np.concatenate(found))
    index = [(said, len(samples)) for (said, _), samples in zip(asked, found, strict=True)]
    (folder / "speech.json").write_bytes(msgspec.json.encode(index))
