"""Write the synthetic corpus of the demo model: `python -m demo.generate --megabytes 60`.

Files of JSON lines: corpus.jsonl and polish.jsonl for training; taught.jsonl, settled-1.jsonl and
settled-2.jsonl for teach.py; valid.jsonl for evaluation, with documents that do not occur in the others. A
line is {"text": ...} or {"messages": [{role, content}, ...]}. The same seed and size give the same files.
"""

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo.corpus import calls, dialogues, records

OUT = Path(__file__).parent / "out"
SEED = 2024

# fraction of the text by kind
MIX = {"story": 40, "plain": 8, "facts": 20, "sums": 16, "talk": 10, "mixed": 8}


# The last stage of the training has more sums, and questions people ask a new model first.
POLISH = {"story": 34, "plain": 6, "facts": 18, "sums": 18, "talk": 10, "mixed": 5, "small": 4, "extra": 5}
POLISH_CHARACTERS = 12_000_000

# Tools and small JSON objects for the trained model, with some of everything it knows.
TAUGHT = {
    "calls": 38, "records": 14, "story": 14, "plain": 2, "facts": 11, "sums": 11, "talk": 5,
    "mixed": 2, "small": 1, "extra": 2,
}  # fmt: skip
TAUGHT_CHARACTERS = 12_000_000

# Then more of the model's main subjects, once with more stories and once with more sums.
SETTLED = (
    TAUGHT | {"calls": 16, "records": 14, "story": 44, "plain": 4, "facts": 8, "sums": 6, "talk": 4},
    TAUGHT | {"calls": 15, "records": 13, "story": 38, "plain": 4, "facts": 9, "sums": 15, "small": 2},
)
SETTLED_CHARACTERS = 5_000_000


def documents(seed: int, characters: int, mix: dict[str, int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield documents of about `characters` in total, with kinds in the proportions of `mix`."""
    mix = mix or MIX
    rng = random.Random(seed)
    written = dict.fromkeys(mix, 0)
    while sum(written.values()) < characters:
        kind = min(mix, key=lambda k: written[k] / mix[k])
        document = draw(kind, rng)
        written[kind] += length(document)
        yield document


def draw(kind: str, rng: random.Random) -> dict[str, Any]:
    """Draw a document of a kind of `MIX`."""
    if kind == "plain":
        return {"text": dialogues.plain_story(rng)}
    if kind == "story":
        return {"messages": dialogues.story_chat(rng)}
    if kind == "calls":
        return {"messages": calls.tool_chat(rng)}
    if kind == "records":
        return {"messages": records.record_chat(rng)}
    return {"messages": dialogues.chat_of(kind, rng)}


def length(document: dict[str, Any]) -> int:
    """Return the number of characters in a document."""
    if "text" in document:
        return len(document["text"])
    return sum(len(m["content"]) for m in document["messages"])


def write(path: Path, items: Iterator[dict[str, Any]], avoid: set[int] | None = None) -> set[int]:
    """Write the documents whose hash is not in `avoid`, and return the hashes of those written."""
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
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=60, help="size of the training text")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    characters = int(arguments.megabytes * 1e6)
    seen = write(arguments.out / "corpus.jsonl", documents(arguments.seed, characters))
    kept = write(arguments.out / "valid.jsonl", documents(arguments.seed + 1, 400_000), avoid=seen)
    polish = documents(arguments.seed + 2, POLISH_CHARACTERS, POLISH)
    write(arguments.out / "polish.jsonl", polish, avoid=kept)
    taught = documents(arguments.seed + 3, TAUGHT_CHARACTERS, TAUGHT)
    write(arguments.out / "taught.jsonl", taught, avoid=kept)
    for number, mix in enumerate(SETTLED, start=1):
        settled = documents(arguments.seed + 4, SETTLED_CHARACTERS, mix)
        write(arguments.out / f"settled-{number}.jsonl", settled, avoid=kept)


if __name__ == "__main__":
    main()
