"""Write the synthetic corpus of the demo model: `python -m demo.generate --megabytes 60`.

Two files of JSON lines: train.jsonl and valid.jsonl. A line is {"text": ...} or {"messages": [{role,
content}, ...]}. The same seed and size give the same files. Documents of the validation file do not occur
in the training file.
"""

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo.corpus import dialogues

OUT = Path(__file__).parent / "out"
SEED = 2024

# share of the text by kind
MIX = {"story": 40, "plain": 8, "facts": 20, "sums": 16, "talk": 10, "mixed": 8}


def documents(seed: int, characters: int, mix: dict[str, int] | None = None) -> Iterator[dict[str, Any]]:
    """Documents until their text has so many characters; kinds in the proportions of `mix`, by characters."""
    mix = mix or MIX
    rng = random.Random(seed)
    written = dict.fromkeys(mix, 0)
    while sum(written.values()) < characters:
        kind = min(mix, key=lambda k: written[k] / mix[k])
        document = draw(kind, rng)
        written[kind] += length(document)
        yield document


def draw(kind: str, rng: random.Random) -> dict[str, Any]:
    """One document of a kind of `MIX`."""
    if kind == "plain":
        return {"text": dialogues.plain_story(rng)}
    if kind == "story":
        return {"messages": dialogues.story_chat(rng)}
    return {"messages": dialogues.chat_of(kind, rng)}


def length(document: dict[str, Any]) -> int:
    """Characters of text in a document."""
    if "text" in document:
        return len(document["text"])
    return sum(len(m["content"]) for m in document["messages"])


def write(path: Path, items: Iterator[dict[str, Any]], avoid: set[int] | None = None) -> set[int]:
    """Write the documents whose hash is not in `avoid`; the hashes of what was written."""
    seen: set[int] = set()
    temporary = path.with_suffix(".part")
    with temporary.open("w", encoding="utf-8") as file:
        for item in items:
            line = json.dumps(item, ensure_ascii=False)
            key = zlib.crc32(line.encode())
            if avoid is not None and key in avoid:
                continue
            seen.add(key)
            file.write(line + "\n")
    temporary.rename(path)
    return seen


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=60, help="size of the training text")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    characters = int(arguments.megabytes * 1e6)
    seen = write(arguments.out / "train.jsonl", documents(arguments.seed, characters))
    write(arguments.out / "valid.jsonl", documents(arguments.seed + 1, 400_000), avoid=seen)


if __name__ == "__main__":
    main()
