"""Random JSON schemas that the grammar compiler supports."""

from __future__ import annotations

import random
from typing import Any

_NAMES = ("name", "age", "tags", "größe", 'a "quoted"', "x/y~z", "when")


def random_schema(dice: random.Random, depth: int = 3) -> Any:
    """Return a schema that some short value satisfies."""
    kinds = ["string", "number", "integer", "boolean", "null", "enum", "const", "pattern", "format"]
    if depth:
        kinds += ["object", "array", "tuple", "anyOf", "allOf"] * 2
    match dice.choice(kinds):
        case "string":
            least = dice.randint(0, 3)
            return {"type": "string", "minLength": least, "maxLength": least + dice.randint(0, 6)}
        case "number":
            low = round(dice.uniform(-20, 20), 2)
            return {"type": "number", "minimum": low, dice.choice(["maximum", "exclusiveMaximum"]): low + 3.5}
        case "integer":
            low = dice.randint(-30, 30)
            return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 300)}
        case "boolean" | "null" as kind:
            return {"type": kind}
        case "enum":
            return {"enum": dice.sample(["red", "grün", 'a"b', 1, 2.5, None, True, [1, "x"], {"k": 0}], 3)}
        case "const":
            return {"const": dice.choice(["always", 7, None, [], {"a": [False]}])}
        case "pattern":
            return {
                "type": "string",
                "pattern": dice.choice(["^[a-c]{1,4}$", "^(ab|cd)+x?$", "^\\d{2}-\\d{2}$"]),
            }
        case "format":
            return {"type": "string", "format": dice.choice(["date", "ipv4", "uuid"]), "maxLength": 40}
        case "object":
            names = dice.sample(_NAMES, dice.randint(1, 4))
            return {
                "type": "object",
                "properties": {name: random_schema(dice, depth - 1) for name in names},
                "required": [name for name in names if dice.random() < 0.7],
                "additionalProperties": False,
            }
        case "array":
            least = dice.randint(0, 2)
            items = random_schema(dice, depth - 1)
            return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}
        case "tuple":
            parts = [random_schema(dice, depth - 1) for _ in range(2)]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": 2}
        case "anyOf":
            return {"anyOf": [random_schema(dice, depth - 1) for _ in range(2)]}
        case _:
            return {"allOf": [random_schema(dice, depth - 1), {"description": "whatever the other says"}]}
