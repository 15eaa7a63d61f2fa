import { Component, type ComponentChildren } from "preact";
import { messageOf } from "../api/client";
import { Button } from "../ui/button";
import { Empty } from "../ui/empty";
import { Warning } from "../ui/icons";
import { TopBar } from "./top_bar";

interface BoundaryProps {
  /** Where the page is: somewhere else the view may well work. */
  place: string;
  children: ComponentChildren;
}

/** Keeps the rest of the page alive when a view fails because of a defect in it. */
export class Boundary extends Component<BoundaryProps, { failure: string | null }> {
  override state = { failure: null };

  static override getDerivedStateFromError(error: unknown) {
    return { failure: messageOf(error) };
  }

  override componentDidCatch(error: unknown): void {
    console.error(error);
  }

  override componentDidUpdate(before: BoundaryProps): void {
    if (before.place !== this.props.place && this.state.failure !== null) this.setState({ failure: null });
  }

  override render() {
    if (this.state.failure === null) return this.props.children;
    return (
      <>
        <TopBar title="Something went wrong" />
        <Empty
          icon={Warning}
          title="This view has failed"
          actions={
            <>
              <Button onClick={() => location.reload()}>Reload the page</Button>
              <Button kind="primary" onClick={() => this.setState({ failure: null })}>
                Try again
              </Button>
            </>
          }
        >
          A defect of the page, not of your chats or models: <code>{this.state.failure}</code>
        </Empty>
      </>
    );
  }
}
