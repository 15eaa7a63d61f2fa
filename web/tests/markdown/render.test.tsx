// @vitest-environment jsdom
import { render } from "preact";
import { expect, test } from "vitest";
import { safeAddress } from "../../src/markdown/address";
import { linesOf } from "../../src/markdown/highlighted";
import { Markdown } from "../../src/markdown/markdown";
import { repair } from "../../src/markdown/repair";
import { pick, random } from "../random";

function shown(text: string, growing = false): HTMLElement {
  const place = document.createElement("div");
  render(<Markdown text={text} growing={growing} />, place);
  return place;
}

test("Markdown is shown as it is meant", () => {
  const place = shown(
    "# Title\n\nSome **bold**, *thin*, `code` &amp; ~~gone~~.\n\n1. one\n2. two\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n",
  );
  expect(place.querySelector("h2")?.textContent).toBe("Title");
  expect(place.querySelector("p")?.innerHTML).toContain(
    '<strong>bold</strong>, <em>thin</em>, <code class="code-span">code</code> &amp; <del>gone</del>.',
  );
  expect([...place.querySelectorAll("ol li")].map((item) => item.textContent)).toEqual(["one", "two"]);
  expect([...place.querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["1", "2"]);
});

test("links lead out in a new tab without a referrer, pictures from elsewhere are links", () => {
  const place = shown(
    "[a](https://example.org/?q=1&amp;r=2) ![b](https://example.org/x.png) ![c](data:image/png;base64,AAAA)",
  );
  const links = [...place.querySelectorAll("a")];
  expect(links.map((link) => link.getAttribute("href"))).toEqual([
    "https://example.org/?q=1&r=2",
    "https://example.org/x.png",
  ]);
  for (const link of links) {
    expect(link.target).toBe("_blank");
    expect(link.rel).toContain("noreferrer");
  }
  expect([...place.querySelectorAll("img")].map((image) => image.getAttribute("src"))).toEqual([
    "data:image/png;base64,AAAA",
  ]);
});

test("a definition further down counts in blocks above", () => {
  const place = shown("See [here][x].\n\nMore.\n\n[x]: https://example.org\n");
  expect(place.querySelector("a")?.getAttribute("href")).toBe("https://example.org");
});

const ATTACKS = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg onload=alert(1)>",
  "<svg><script>alert(1)</script></svg>",
  "<iframe src=javascript:alert(1)></iframe>",
  "[a](javascript:alert(1))",
  "[a](java\nscript:alert(1))",
  "[a](&#106;avascript:alert(1))",
  "[a](data:text/html,<script>alert(1)</script>)",
  "[a](vbscript:alert(1))",
  "![a](javascript:alert(1))",
  '![a](x"onerror="alert(1))',
  "<a href='javascript:alert(1)'>a</a>",
  "<a href=' &#14; javascript:alert(1)'>a</a>",
  "<div style='background:url(javascript:alert(1))' onclick='alert(1)'>x</div>",
  "<form action=javascript:alert(1)><button>x</button></form>",
  "<math><mtext></p><img src=x onerror=alert(1)></math>",
  "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
  "<table background=javascript:alert(1)><td>x</td></table>",
  "<style>@import 'https://evil.example/x.css'</style>",
  "<link rel=stylesheet href=https://evil.example>",
  "<base href=https://evil.example>",
  "<object data=javascript:alert(1)></object>",
  "<details open ontoggle=alert(1)>x</details>",
  "<video src=x onerror=alert(1)></video>",
  "```html\n<script>alert(1)</script>\n```",
  '```"><script>alert(1)</script>\nx\n```',
  "`<script>alert(1)</script>`",
  "$\\href{javascript:alert(1)}{x}$",
  "[x]: javascript:alert(1)\n\n[x]",
  "<kbd onclick=alert(1)>x</kbd>",
  "<b><img src=x onerror=alert(1)></b>",
  "&lt;script&gt;alert(1)&lt;/script&gt;",
]; // biome-ignore format: a list of attacks

const FORBIDDEN =
  "script,iframe,object,embed,form,input:not([type=checkbox]),style,link,base,meta,video,audio,svg script,svg[onload]";

function expectHarmless(place: HTMLElement, text: string): void {
  expect(place.querySelector(FORBIDDEN), text).toBeNull();
  for (const element of place.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) {
      expect(name.startsWith("on"), `${text}: ${name}`).toBe(false);
      if (name === "href") expect(value, text).toMatch(/^(?:https?:\/\/|mailto:)/i);
      if (name === "src") expect(value, text).toMatch(/^data:image\//);
    }
  }
}

test("nothing that a model writes runs or is fetched", () => {
  for (const attack of ATTACKS) expectHarmless(shown(attack), attack);
  const next = random(6);
  for (let round = 0; round < 60; round += 1) {
    const text = Array.from({ length: 4 }, () => pick(next, ATTACKS)).join(
      pick(next, ["\n\n", "\n", " ", "\n- ", "\n> "]),
    );
    for (const growing of [false, true])
      expectHarmless(shown(text.slice(0, Math.floor(next() * text.length) + 1), growing), text);
  }
}, 30_000);

test("a text that has grown looks like one that came at once", () => {
  const whole =
    "# A\n\nWords and **more**.\n\n- one\n- two\n\n```js\nlet x;\n```\n\n| a |\n|---|\n| 1 |\n\nThe end [x](https://example.org).";
  const place = document.createElement("div");
  for (let end = 0; end < whole.length; end += 3)
    render(<Markdown text={whole.slice(0, end)} growing />, place);
  render(<Markdown text={whole} />, place);
  const clear = (element: HTMLElement) => element.innerHTML.replace(/ id="[^"]*"/g, "");
  expect(clear(place)).toBe(clear(shown(whole)));
});

test("blocks that are finished keep their elements while the text grows", () => {
  const place = document.createElement("div");
  render(<Markdown text={"First.\n\nSec"} growing />, place);
  const first = place.querySelector("p");
  render(<Markdown text={"First.\n\nSecond and more.\n\nThird"} growing />, place);
  expect(place.querySelector("p")).toBe(first);
});

test.each([
  ["Some **bo", "Some **bo**"],
  ["Some **bold**", "Some **bold**"],
  ["Some **", "Some "],
  ["Some *th", "Some *th*"],
  ["Some `co", "Some `co`"],
  ["See [the te", "See the te"],
  ["See [text](https://exa", "See text"],
  ["Title\n-", "Title\n"],
  ["- one\n- ", "- one\n"],
  ["##", ""],
  ["| a | b |\n|--", "| a | b |\n"],
  ["2 * 3 and 4", "2 * 3 and 4"],
])("%j is shown as %j while it grows", (raw, repaired) => {
  expect(repair(raw)).toBe(repaired);
});

test("only addresses of pages and mail are links", () => {
  expect(safeAddress("https://example.org")).toBe("https://example.org");
  expect(safeAddress("mailto:a@example.org")).toBe("mailto:a@example.org");
  for (const address of [
    "javascript:alert(1)",
    " java\tscript:alert(1)",
    "data:text/html,x",
    "file:///etc/passwd",
    "//evil.example",
    "x",
  ]) {
    expect(safeAddress(address), address).toBeNull();
  }
});

test("highlighted code becomes lines of text", () => {
  const html =
    '<span class="hljs-keyword">if</span> a &lt; b:\n<span class="hljs-string">&quot;x\ny&quot;</span>';
  expect(linesOf(html)).toEqual([
    [
      { text: "if", name: "hljs-keyword" },
      { text: " a < b:", name: "" },
    ],
    [{ text: '"x', name: "hljs-string" }],
    [{ text: 'y"', name: "hljs-string" }],
  ]);
});
