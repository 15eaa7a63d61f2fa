import { TopBar } from "../shell/top_bar";
import { Empty } from "../ui/empty";
import { Pulse } from "../ui/icons";

export function EngineView() {
  return (
    <>
      <TopBar title="Engine" />
      <Empty icon={Pulse} title="Engine" />
    </>
  );
}
