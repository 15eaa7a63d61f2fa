import { Component, type ComponentChildren } from "preact";
import { append, type Block, blocksOf, EMPTY, type Splitting } from "./blocks";
import { CodeBlock } from "./code";
import { lex, mayRefer } from "./lex";
import { Formula } from "./math";
import { renderBlocks } from "./render";
import { repair } from "./repair";

export interface MarkdownProps {
  text: string;
  /** Whether more may come. */
  growing?: boolean;
}

/** Blocks that are compared, and left out of layout while off the screen, together. */
const GROUP = 24;
/** A block that takes long to parse is parsed anew only after this many times as long. */
const PATIENCE = 6;

/** A text in Markdown. While it grows, only its last block is parsed again. */
export class Markdown extends Component<MarkdownProps> {
  private text = "";
  private splitting: Splitting = EMPTY;

  override shouldComponentUpdate({ text, growing }: MarkdownProps): boolean {
    return text !== this.props.text || growing !== this.props.growing;
  }

  private split(text: string): Splitting {
    const grows = text.length >= this.text.length && text.startsWith(this.text);
    this.splitting = grows ? append(this.splitting, text.slice(this.text.length)) : append(EMPTY, text);
    this.text = text;
    return this.splitting;
  }

  override render() {
    const { text, growing = false } = this.props;
    const { blocks, definitions } = blocksOf(this.split(text));
    const groups: ComponentChildren[] = [];
    for (let at = 0; at < blocks.length; at += GROUP) {
      const isLast = at + GROUP >= blocks.length;
      groups.push(
        <Group
          key={at}
          blocks={blocks.slice(at, at + GROUP)}
          definitions={definitions}
          growing={growing && isLast}
          alone={blocks.length <= GROUP}
        />,
      );
    }
    return <div class="md">{groups}</div>;
  }
}

interface GroupProps {
  blocks: readonly Block[];
  definitions: string;
  growing: boolean;
  /** Whether it is the only one: then it is always laid out. */
  alone: boolean;
}

class Group extends Component<GroupProps> {
  override shouldComponentUpdate(next: GroupProps): boolean {
    const { blocks, definitions, growing, alone } = this.props;
    return (
      growing !== next.growing ||
      alone !== next.alone ||
      definitions !== next.definitions ||
      blocks.length !== next.blocks.length ||
      blocks.some((block, at) => block !== next.blocks[at])
    );
  }

  override render() {
    const { blocks, definitions, growing, alone } = this.props;
    return (
      <div class={alone || growing ? "md-group" : "md-group md-lazy"}>
        {blocks.map((block, at) => (
          <BlockView
            key={at}
            block={block}
            definitions={block.kind === "text" && mayRefer(block.raw) ? definitions : ""}
            growing={growing && at === blocks.length - 1}
          />
        ))}
      </div>
    );
  }
}

interface BlockProps {
  block: Block;
  definitions: string;
  growing: boolean;
}

class BlockView extends Component<BlockProps> {
  /** How long the last parse took, and when it was, in milliseconds. */
  private cost = 0;
  private parsedAt = 0;
  private later: ReturnType<typeof setTimeout> | undefined;

  override shouldComponentUpdate({ block, definitions, growing }: BlockProps): boolean {
    const now = this.props;
    if (now.growing !== growing || now.definitions !== definitions) return true;
    if (now.block === block || (now.block.kind === block.kind && now.block.raw === block.raw)) return false;
    if (!growing || this.cost < 4) return true;
    const wait = this.parsedAt + this.cost * PATIENCE - performance.now();
    if (wait <= 0) return true;
    clearTimeout(this.later);
    this.later = setTimeout(() => this.forceUpdate(), wait);
    return false;
  }

  override componentWillUnmount(): void {
    clearTimeout(this.later);
  }

  override render() {
    const { block, definitions, growing } = this.props;
    clearTimeout(this.later);
    if (block.kind === "code") {
      return <CodeBlock text={block.text} info={block.info} growing={growing && !block.closed} />;
    }
    if (block.kind === "math") return <Formula tex={block.text} display />;
    const begun = performance.now();
    const tokens = lex(growing ? repair(block.raw) : block.raw, definitions);
    const rendered = renderBlocks(tokens, { growing });
    this.parsedAt = performance.now();
    this.cost = this.parsedAt - begun;
    return <>{rendered}</>;
  }
}
