import { TopBar } from "../shell/top_bar";
import { Empty } from "../ui/empty";
import { Chat } from "../ui/icons";

export function ChatView({ id }: { id: string | null }) {
  return (
    <>
      <TopBar title={id ?? "New chat"} />
      <Empty icon={Chat} title="Chat" />
    </>
  );
}
