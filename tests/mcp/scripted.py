"""An MCP server that says what a file tells it to: `python scripted.py FILE`, without any package.

The file has frames for methods, and for all `other` ones, each in base64 with a number of times. In them,
`@ID@` is the id of the request. After the frames of a method in `ends`, the server ends.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path


def main(path: str) -> None:
    script = json.loads(Path(path).read_text())
    for line in sys.stdin:
        request = json.loads(line)
        method, number = request.get("method"), request.get("id")
        if number is None or method is None:
            continue
        for frame, times in script["frames"].get(method, script["frames"]["other"]):
            data = base64.b64decode(frame).replace(b"@ID@", json.dumps(number).encode())
            for _ in range(times):
                sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if method in script["ends"]:
            return


if __name__ == "__main__":
    main(sys.argv[1])
