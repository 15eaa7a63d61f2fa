export function ChatHistory() {
  return null;
}
