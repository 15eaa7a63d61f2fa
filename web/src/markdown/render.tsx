// Tokens to elements. Text of the model only gets into the page as text, except for HTML that sanitize() has seen.
import type { Token, Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { isOwnPicture, safeAddress } from "./address";
import { CodeBlock } from "./code";
import { decoded } from "./entities";
import type { MathToken } from "./lex";
import { Formula } from "./math";
import { sanitize } from "./sanitize";

type Render = { growing: boolean };

export function renderBlocks(tokens: readonly Token[], how: Render): ComponentChildren[] {
  return tokens.map((token, index) => block(token as Tokens.Generic, index, how));
}

function block(token: Tokens.Generic, key: number, how: Render): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "paragraph":
      return (
        <p key={key} dir="auto">
          {inline(token.tokens)}
        </p>
      );
    case "text":
      return token.tokens ? inline(token.tokens) : decoded(token.text as string);
    case "heading": {
      // The page's own headings come above those of an answer.
      const Tag = `h${Math.min(6, (token.depth as number) + 1)}` as "h3";
      return (
        <Tag key={key} class={`md-h${token.depth}`} dir="auto">
          {inline(token.tokens)}
        </Tag>
      );
    }
    case "code":
      return (
        <CodeBlock
          key={key}
          text={token.text as string}
          info={(token.lang as string) ?? ""}
          growing={how.growing}
        />
      );
    case "blockquote":
      return <blockquote key={key}>{renderBlocks(token.tokens ?? [], how)}</blockquote>;
    case "list":
      return list(token as Tokens.List, key, how);
    case "table":
      return table(token as Tokens.Table, key);
    case "hr":
      return <hr key={key} />;
    case "html":
      return <Html key={key} html={token.text as string} />;
    default:
      return inline([token as Token]);
  }
}

function list(token: Tokens.List, key: number, how: Render): ComponentChildren {
  const Tag = token.ordered ? "ol" : "ul";
  const start = token.ordered && token.start !== 1 && token.start !== "" ? token.start : undefined;
  return (
    <Tag key={key} start={start as number} dir="auto">
      {token.items.map((item, index) => (
        <li key={index} class={item.task ? "task" : undefined} dir="auto">
          {item.task && <input type="checkbox" disabled checked={item.checked ?? false} aria-label="Done" />}
          {renderBlocks(
            item.tokens.filter((each) => each.type !== "checkbox"),
            how,
          )}
        </li>
      ))}
    </Tag>
  );
}

function table(token: Tokens.Table, key: number): ComponentChildren {
  const align = (at: number) => {
    const side = token.align[at];
    return side ? { textAlign: side === "left" ? "start" : side === "right" ? "end" : "center" } : undefined;
  };
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a wide table is scrolled by the keyboard
    <section key={key} class="md-table" tabIndex={0} aria-label="Table">
      <table dir="auto">
        <thead>
          <tr>
            {token.header.map((cell, at) => (
              <th key={at} style={align(at)} dir="auto" scope="col">
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, at) => (
                <td key={at} style={align(at)} dir="auto">
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

const SIMPLE = new Set([
  "b",
  "strong",
  "i",
  "em",
  "u",
  "s",
  "sub",
  "sup",
  "kbd",
  "mark",
  "small",
  "ins",
  "del",
  "q",
]);

function inline(tokens: readonly Token[] | undefined): ComponentChildren[] {
  const parts: ComponentChildren[] = [];
  const all = tokens ?? [];
  for (let at = 0; at < all.length; at += 1) {
    const token = all[at] as Tokens.Generic;
    if (token.type === "html") {
      const name = /^<([a-z]+)>$/i.exec(token.raw)?.[1]?.toLowerCase();
      const end = name && SIMPLE.has(name) ? closing(all, at + 1, name) : -1;
      if (end > 0) {
        const Tag = name as "b";
        parts.push(<Tag key={at}>{inline(all.slice(at + 1, end))}</Tag>);
        at = end;
      } else if (/^<br\s*\/?>$/i.test(token.raw)) parts.push(<br key={at} />);
      else if (!token.raw.startsWith("<!--")) parts.push(token.raw);
    } else parts.push(part(token, at));
  }
  return parts;
}

/** Return the index of the tag that ends the one with this name, or -1. */
function closing(tokens: readonly Token[], from: number, name: string): number {
  for (let at = from, depth = 1; at < tokens.length; at += 1) {
    const raw = tokens[at]?.type === "html" ? tokens[at]!.raw.toLowerCase() : "";
    if (raw === `<${name}>`) depth += 1;
    else if (raw === `</${name}>`) depth -= 1;
    if (depth === 0) return at;
  }
  return -1;
}

function part(token: Tokens.Generic, key: number): ComponentChildren {
  switch (token.type) {
    case "text":
      return token.tokens ? inline(token.tokens) : decoded(token.text as string);
    case "escape":
      return token.text as string;
    case "strong":
      return <strong key={key}>{inline(token.tokens)}</strong>;
    case "em":
      return <em key={key}>{inline(token.tokens)}</em>;
    case "del":
      return <del key={key}>{inline(token.tokens)}</del>;
    case "codespan":
      return (
        <code key={key} class="code-span">
          {token.text as string}
        </code>
      );
    case "br":
      return <br key={key} />;
    case "math": {
      const { text, display } = token as unknown as MathToken;
      return <Formula key={key} tex={text} display={display} />;
    }
    case "link":
      return (
        <Link key={key} href={decoded(token.href as string)} title={token.title as string | null}>
          {inline(token.tokens)}
        </Link>
      );
    case "image": {
      const href = decoded(token.href as string);
      const text = (token.text as string) || "picture";
      if (isOwnPicture(href)) return <img key={key} src={href} alt={text} class="md-picture" />;
      // A picture from elsewhere would tell its server who reads this.
      return (
        <Link key={key} href={href} title={token.title as string | null}>
          {text}
        </Link>
      );
    }
    default:
      return token.tokens ? inline(token.tokens) : decoded((token.text as string) ?? token.raw);
  }
}

function Link({
  href,
  title,
  children,
}: {
  href: string;
  title: string | null;
  children: ComponentChildren;
}) {
  const address = safeAddress(href);
  if (address === null) return <span class="md-dead-link">{children}</span>;
  return (
    <a href={address} title={title ?? address} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function Html({ html }: { html: string }) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    place.current?.replaceChildren(sanitize(html));
  }, [html]);
  return <div ref={place} class="md-html" dir="auto" />;
}
