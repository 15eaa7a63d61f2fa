import { useSignal } from "@preact/signals";
import { Component, createRef } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Message } from "../api/types";
import { Button, IconButton } from "../ui/button";
import { ArrowDown, Refresh } from "../ui/icons";
import { Notice } from "../ui/notice";
import type { Conversation } from "./conversation";
import { MessageView, Waiting } from "./message";

/** Messages that are drawn, or left out while far from the screen, together. */
const CHUNK = 12;
const NEAR = "1600px 0px";
/** How far from the end still counts as being there, in pixels. */
const AT_END = 48;

/** The branch that is shown. Only what is near the screen is drawn. */
export function MessageList({ chat }: { chat: Conversation }) {
  const scroller = useRef<HTMLElement>(null);
  const column = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const showsJump = useSignal(false);
  const path = chat.path.value;
  const last = path.at(-1);
  const asking = chat.asking.value;
  const failure = chat.failure.value;

  const toEnd = () => {
    const element = scroller.current;
    if (element === null) return;
    follows.current = true;
    showsJump.value = false;
    element.scrollTop = element.scrollHeight;
  };

  // The end stays in view while an answer grows, unless somebody reads above.
  useLayoutEffect(() => {
    const [element, content] = [scroller.current, column.current];
    if (element === null || content === null) return;
    element.scrollTop = element.scrollHeight;
    const watcher = new ResizeObserver(() => {
      if (follows.current) element.scrollTop = element.scrollHeight;
    });
    watcher.observe(content);
    watcher.observe(element);
    let before = element.scrollTop;
    const onScroll = () => {
      const left = element.scrollHeight - element.clientHeight - element.scrollTop;
      if (left < AT_END) follows.current = true;
      else if (element.scrollTop < before - 1) follows.current = false;
      before = element.scrollTop;
      showsJump.value = left > 240;
    };
    // A wheel upwards counts before its scrolling does, which the next token may undo.
    const onWheel = (event: WheelEvent) => {
      if (event.deltaY < 0) follows.current = false;
    };
    element.addEventListener("scroll", onScroll, { passive: true });
    element.addEventListener("wheel", onWheel, { passive: true });
    return () => {
      watcher.disconnect();
      element.removeEventListener("scroll", onScroll);
      element.removeEventListener("wheel", onWheel);
    };
  }, []);

  // Whoever asks wants to see the answer.
  useEffect(() => {
    if (asking !== null) toEnd();
  }, [asking]);

  const chunks: Message[][] = [];
  for (let at = 0; at < path.length; at += CHUNK) chunks.push(path.slice(at, at + CHUNK));
  const isWaiting = asking !== null && (last?.id === asking || last?.parent === asking);
  const isUnanswered = last !== undefined && last.role !== "assistant" && !isWaiting;
  return (
    <div class="chat-scroller">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by the keyboard */}
      <section ref={scroller} class="chat-scroll" tabIndex={0} aria-label="Conversation">
        <div ref={column} class="chat-column">
          {chunks.map((messages, index) => (
            <Chunk
              key={messages[0]!.id}
              chat={chat}
              messages={messages}
              last={last?.id ?? ""}
              isEnd={index >= chunks.length - 2}
              root={scroller}
            />
          ))}
          {isWaiting && <Waiting model={chat.model.value} />}
          {failure !== null && (failure.parent === last?.id || failure.parent === last?.parent) ? (
            <Notice
              kind="error"
              actions={
                <Button size="s" icon={Refresh} onClick={() => chat.retry()}>
                  Try again
                </Button>
              }
            >
              {failure.message}
            </Notice>
          ) : (
            isUnanswered && (
              <div class="row unanswered">
                <span class="faint small">There is no answer yet.</span>
                <Button size="s" icon={Refresh} onClick={() => void chat.answer(last.id)}>
                  Get an answer
                </Button>
              </div>
            )
          )}
        </div>
      </section>
      {showsJump.value && (
        <IconButton class="jump" kind="plain" icon={ArrowDown} label="To the end" onClick={toEnd} />
      )}
    </div>
  );
}

interface ChunkProps {
  chat: Conversation;
  messages: Message[];
  last: string;
  /** Whether it is near the end, where it is always drawn. */
  isEnd: boolean;
  root: { current: HTMLElement | null };
}

/** Some messages, or as much room as they take. */
class Chunk extends Component<ChunkProps, { isNear: boolean }> {
  override state = { isNear: this.props.isEnd };
  private readonly element = createRef<HTMLDivElement>();
  private watcher: IntersectionObserver | null = null;
  private height = 0;

  override shouldComponentUpdate(next: ChunkProps, state: { isNear: boolean }): boolean {
    const now = this.props;
    const hasLast = (props: ChunkProps) => props.messages.some((message) => message.id === props.last);
    return (
      state.isNear !== this.state.isNear ||
      next.isEnd !== now.isEnd ||
      next.chat !== now.chat ||
      next.messages.length !== now.messages.length ||
      next.messages.some((message, at) => message !== now.messages[at]) ||
      (next.last !== now.last && (hasLast(next) || hasLast(now)))
    );
  }

  override componentDidMount(): void {
    const element = this.element.current;
    if (element === null) return;
    this.watcher = new IntersectionObserver(
      (seen) => {
        const isNear = seen.at(-1)?.isIntersecting ?? false;
        if (isNear === this.state.isNear) return;
        // What somebody is writing in, or has selected, stays.
        if (!isNear && (element.contains(document.activeElement) || hasSelection(element))) return;
        if (!isNear) this.height = element.offsetHeight;
        this.setState({ isNear });
      },
      { root: this.props.root.current, rootMargin: NEAR },
    );
    this.watcher.observe(element);
  }

  override componentWillUnmount(): void {
    this.watcher?.disconnect();
  }

  override render() {
    const { chat, messages, last, isEnd } = this.props;
    const isDrawn = this.state.isNear || isEnd;
    const height = this.height || messages.reduce((sum, message) => sum + guessedHeight(message), 0);
    return (
      <div
        ref={this.element}
        class="message-chunk"
        style={isDrawn ? { minBlockSize: "auto" } : { minBlockSize: `${height}px` }}
      >
        {isDrawn &&
          messages.map((message) => (
            <MessageView key={message.id} chat={chat} message={message} isLast={message.id === last} />
          ))}
      </div>
    );
  }
}

function hasSelection(element: Element): boolean {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && selection.containsNode(element, true);
}

const guessedHeight = (message: Message) =>
  76 + Math.min(40_000, Math.ceil(message.content.length / 85) * 26);
