"""Pictures drawn by a program, with their contents: shapes, numbers, words, bar charts."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Box = tuple[float, float, float, float]  # left, top, right, bottom; fractions of the picture
Colour = tuple[int, int, int]

#: Centres of the colours of a name, among them those of CSS, which people draw with.
COLOURS: dict[str, tuple[Colour, ...]] = {
    "red": ((255, 0, 0), (220, 40, 40)),
    "orange": ((255, 165, 0), (245, 130, 30)),
    "yellow": ((255, 255, 0), (245, 225, 60)),
    "green": ((0, 128, 0), (0, 230, 20), (60, 170, 80)),
    "blue": ((0, 0, 255), (40, 90, 210), (60, 130, 230)),
    "purple": ((128, 0, 128), (140, 60, 190)),
    "pink": ((255, 192, 203), (250, 130, 185)),
    "black": ((0, 0, 0), (25, 25, 25)),
    "white": ((255, 255, 255), (242, 242, 242)),
}
SHAPES = ("circle", "square", "triangle", "star", "cross")
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORDS = """
CAT DOG SUN CAR BUS HAT CUP KEY BOX STOP OPEN EXIT FISH BIRD TREE STAR MOON HOME HELLO PUNA YES NO UP GO
"""
WORDS = tuple(_WORDS.split())
_JITTER = 12
_FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")


@dataclass(frozen=True)
class Thing:
    """Something in a picture: a shape, "bar", or a character."""

    kind: str
    colour: str
    box: Box

    @property
    def x(self) -> float:
        return (self.box[0] + self.box[2]) / 2

    @property
    def y(self) -> float:
        return (self.box[1] + self.box[3]) / 2

    @property
    def size(self) -> float:
        """The side of a square with the same area."""
        return math.sqrt((self.box[2] - self.box[0]) * (self.box[3] - self.box[1]))


@dataclass(frozen=True)
class Scene:
    """A picture and its contents. `style` is one of `STYLES`."""

    style: str
    picture: Image.Image
    background: str = ""
    things: tuple[Thing, ...] = ()
    text: str = ""


@dataclass
class _Canvas:
    rng: random.Random
    background: str
    width: int
    height: int
    things: list[Thing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.picture = Image.new("RGB", (self.width, self.height), paint(self.background, self.rng))
        self.draw = ImageDraw.Draw(self.picture)

    def add(self, kind: str, colour: str, box: Box) -> None:
        """Record a thing at a place given in pixels."""
        w, h = self.width, self.height
        self.things.append(Thing(kind, colour, (box[0] / w, box[1] / h, box[2] / w, box[3] / h)))

    def scene(self, style: str, text: str = "") -> Scene:
        return Scene(style, self.picture, self.background, tuple(self.things), text)


def paint(name: str, rng: random.Random) -> Colour:
    """Return a random colour that people would call `name`."""
    r, g, b = (min(max(v + rng.randint(-_JITTER, _JITTER), 0), 255) for v in rng.choice(COLOURS[name]))
    return r, g, b


def draw_shape(
    draw: ImageDraw.ImageDraw, kind: str, x: float, y: float, radius: float, **how: object
) -> None:
    """Draw a shape around (x, y) with a `radius`, in pixels."""
    if kind == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), **how)
        return
    if kind == "square":
        draw.rectangle((x - radius, y - radius, x + radius, y + radius), **how)
        return
    third = radius * 0.38
    corners = {
        "triangle": [(0, -radius), (radius, radius), (-radius, radius)],
        "cross": [
            (-third, -radius), (third, -radius), (third, -third), (radius, -third), (radius, third),
            (third, third), (third, radius), (-third, radius), (-third, third), (-radius, third),
            (-radius, -third), (-third, -third),
        ],
        "star": [
            (
                radius * (1 if i % 2 == 0 else 0.42) * math.sin(i * math.pi / 5),
                -radius * (1 if i % 2 == 0 else 0.42) * math.cos(i * math.pi / 5),
            )
            for i in range(10)
        ],
    }[kind]  # fmt: skip
    draw.polygon([(x + dx, y + dy) for dx, dy in corners], **how)


@lru_cache(maxsize=256)
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a font of `size` pixels, or Pillow's own if the system lacks it."""
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        found = ImageFont.load_default(size)
        assert isinstance(found, ImageFont.FreeTypeFont)
        return found


def _canvas(rng: random.Random, background: str) -> _Canvas:
    wide = rng.choice((1.0, 1.0, 1.0, 4 / 3, 3 / 4, 1.5))
    side = rng.choice((80, 120, 160, 200, 240))
    return _Canvas(rng, background, round(side * max(wide, 1)), round(side / min(wide, 1)))


def _background(rng: random.Random) -> str:
    return "white" if rng.random() < 0.5 else rng.choice(list(COLOURS))


def _other(rng: random.Random, *taken: str) -> str:
    return rng.choice([name for name in COLOURS if name not in taken])


def shapes(rng: random.Random, count: int | None = None) -> Scene:
    """Draw one to three shapes that do not touch, sometimes all of one kind or colour."""
    count = count or rng.choice((1, 1, 2, 2, 2, 3, 3))
    canvas = _canvas(rng, _background(rng))
    side = min(canvas.width, canvas.height)
    same_kind = rng.choice(SHAPES) if rng.random() < 0.15 else None
    same_colour = _other(rng, canvas.background) if rng.random() < 0.15 else None
    most = (0.42, 0.3, 0.25)[count - 1]
    placed: list[tuple[float, float, float]] = []
    for _ in range(200):
        radius = side * rng.uniform(0.11, most)
        x, y = rng.uniform(radius, canvas.width - radius), rng.uniform(radius, canvas.height - radius)
        if all(max(abs(x - a), abs(y - b)) > radius + other + 0.03 * side for a, b, other in placed):
            placed.append((x, y, radius))
            if len(placed) == count:
                break
    outlined = rng.random() < 0.15
    for x, y, radius in placed:
        kind, colour = same_kind or rng.choice(SHAPES), same_colour or _other(rng, canvas.background)
        edge = paint("black", rng) if outlined else None
        draw_shape(canvas.draw, kind, x, y, radius, fill=paint(colour, rng), outline=edge)
        canvas.add(kind, colour, (x - radius, y - radius, x + radius, y + radius))
    return canvas.scene("shapes")


def _print(rng: random.Random, text: str, style: str) -> Scene:
    """Print `text` in large letters."""
    canvas = _canvas(rng, _background(rng))
    plain = canvas.background == "white" and rng.random() < 0.5
    colour = "black" if plain else _other(rng, canvas.background)
    name = rng.choice((*_FONTS, ""))
    share = rng.uniform(max(0.35, 0.18 * len(text)), 0.95)
    size = 40
    wide = font(name, size).getlength(text)
    size = max(round(min(size * share * canvas.width / wide, 0.75 * canvas.height)), 8)
    face = font(name, size)
    left, top, right, bottom = face.getbbox(text)
    x = rng.uniform(1, max(canvas.width - (right - left) - 1, 1))
    y = rng.uniform(1, max(canvas.height - (bottom - top) - 1, 1))
    canvas.draw.text((x - left, y - top), text, paint(colour, rng), face)
    begin = x - left
    for i, character in enumerate(text):
        end = x - left + face.getlength(text[: i + 1])
        canvas.add(character, colour, (begin, y, end, y + bottom - top))
        begin = end
    return canvas.scene(style, text)


def number(rng: random.Random) -> Scene:
    """Draw one or two printed digits."""
    digits = rng.choice((1, 2, 2))
    first = rng.choice("123456789" if digits > 1 else "0123456789")
    return _print(rng, first + "".join(rng.choice("0123456789") for _ in range(digits - 1)), "number")


def word(rng: random.Random) -> Scene:
    """Draw one of a few words in capital letters."""
    return _print(rng, rng.choice(WORDS), "word")


def chart(rng: random.Random) -> Scene:
    """Draw two to five bars of different colours and clearly different heights."""
    background = "white" if rng.random() < 0.7 else rng.choice(("yellow", "pink", "black"))
    canvas = _canvas(rng, background)
    count = rng.randint(2, 5)
    steps = rng.sample(range(8), count)
    axis = paint("black" if background != "black" else "white", rng)
    left, right = canvas.width * rng.uniform(0.04, 0.14), canvas.width * rng.uniform(0.88, 0.98)
    top, bottom = canvas.height * rng.uniform(0.03, 0.12), canvas.height * rng.uniform(0.86, 0.97)
    slot = (right - left) / count
    gap = slot * rng.uniform(0.12, 0.3)
    colours = rng.sample([name for name in COLOURS if name != background], count)
    for i, (step, colour) in enumerate(zip(steps, colours, strict=True)):
        height = (bottom - top) * (0.15 + 0.85 * step / 7)
        box = (left + i * slot + gap, bottom - height, left + (i + 1) * slot - gap / 2, bottom)
        canvas.draw.rectangle(box, fill=paint(colour, rng))
        canvas.add("bar", colour, box)
    if rng.random() < 0.8:
        thick = max(canvas.width // 80, 1)
        canvas.draw.line((left, top, left, bottom, right, bottom), axis, thick)
    return canvas.scene("chart")


def empty(rng: random.Random) -> Scene:
    """Draw one colour and nothing else."""
    return _canvas(rng, rng.choice(list(COLOURS))).scene("empty")


def noise(rng: random.Random) -> Scene:
    """Draw something that resembles a photograph: clouds of colour, grain, scribbles, without meaning."""
    draws = np.random.default_rng(rng.getrandbits(32))
    side = 96
    total = np.full((side, side, 3), draws.uniform(60, 200, 3), np.float32)
    for _ in range(rng.randint(2, 4)):
        cells = rng.choice((3, 5, 8, 14, 30, 60))
        grain = draws.uniform(0, 255, (cells, cells, 3)).astype(np.uint8)
        if rng.random() < 0.4:
            grain[:] = grain[:, :, :1]
        big = Image.fromarray(grain).resize((side, side), Image.Resampling.BICUBIC)
        total += (np.asarray(big, np.float32) - 128) * rng.uniform(0.3, 0.9)
    picture = Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(rng.choice((0, 0, 4, 12))):
        line = [rng.randrange(side) for _ in range(6)]
        draw.line(line, tuple(rng.randrange(256) for _ in range(3)), rng.randint(1, 3))
    if rng.random() < 0.4:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 1.5)))
    return Scene("noise", picture)


STYLES = {"shapes": shapes, "number": number, "word": word, "chart": chart, "empty": empty, "noise": noise}
_SHARES = {"shapes": 0.67, "number": 0.15, "word": 0.04, "chart": 0.06, "empty": 0.03, "noise": 0.05}


def any_scene(rng: random.Random) -> Scene:
    """Draw a picture of any style, with the frequencies of the training."""
    style = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    return STYLES[style](rng)
