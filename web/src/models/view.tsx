import { TopBar } from "../shell/top_bar";
import { Empty } from "../ui/empty";
import { Cube } from "../ui/icons";

export function ModelsView({ name }: { name: string | null }) {
  return (
    <>
      <TopBar title={name ?? "Models"} />
      <Empty icon={Cube} title="Models" />
    </>
  );
}
