import { TopBar } from "../shell/top_bar";

export function SettingsView({ section }: { section: string | null }) {
  return <TopBar title={section ?? "Settings"} />;
}
