"""How models mark thinking and tool calls in their answers: reading it while it streams in."""
