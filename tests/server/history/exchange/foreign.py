"""Small exports as other programs write them."""

from __future__ import annotations

import json
from typing import Any


def node(
    id: str,
    parent: str | None,
    role: str = "",
    text: Any = "",
    *,
    content: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return a node of ChatGPT's tree; without a role it has no message."""
    message = None
    if role:
        author = {"role": role, "name": fields.pop("name", None), "metadata": {}}
        message = {
            "id": id,
            "author": author,
            "create_time": 1_700_000_000.5,
            "content": content or {"content_type": "text", "parts": [text]},
            "status": "finished_successfully",
            "weight": 1.0,
            "metadata": metadata or {},
            "recipient": "all",
        } | fields
    return {"id": id, "message": message, "parent": parent, "children": []}


def conversation(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a conversation of ChatGPT with these nodes."""
    return {
        "title": "Foxes",
        "create_time": 1_700_000_000.0,
        "update_time": 1_700_000_100.0,
        "mapping": {each["id"]: each for each in nodes},
        "current_node": nodes[-1]["id"],
        "conversation_id": "c",
        "moderation_results": [],
    } | fields


#: A question with a hidden beginning, an answer with thoughts, another answer, and a call of a tool.
CHATGPT = conversation(
    node("root", None),
    node("hidden", "root", "system", "", metadata={"is_visually_hidden_from_conversation": True}),
    node("instructions", "hidden", "user", content={"content_type": "user_editable_context", "x": 1}),
    node("ask", "instructions", "user", "Why are foxes red?"),
    node(
        "thoughts",
        "ask",
        "assistant",
        content={"content_type": "thoughts", "thoughts": [{"summary": "Fur", "content": "It is pigment."}]},
    ),
    node("recap", "thoughts", "assistant", content={"content_type": "reasoning_recap", "content": "3 s"}),
    node(
        "one",
        "recap",
        "assistant",
        "Pigment. \ue200cite\ue202turn0search0\ue201",
        metadata={"model_slug": "gpt-x"},
    ),
    node("two", "ask", "assistant", "Because."),
    node(
        "run", "two", "assistant", content={"content_type": "code", "language": "python", "text": "1 + 1"},
        recipient="python",
    ),
    node(
        "result", "run", "tool", name="python",
        content={"content_type": "execution_output", "text": "2"},
    ),
    node(
        "picture",
        "result",
        "user",
        content={
            "content_type": "multimodal_text",
            "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "file-service://f"}, "This?"],
        },
        metadata={"attachments": [{"name": "notes.pdf", "size": 1}]},
    ),
    current_node="one",
)  # fmt: skip


def webui_chat(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a chat of Open WebUI's export with these messages."""
    return {
        "id": "w",
        "user_id": "u",
        "title": "Owls",
        "chat": {
            "title": "Owls",
            "models": ["llama3.2"],
            "params": {"system": "Be brief."},
            "history": {
                "messages": {each["id"]: each for each in messages},
                "currentId": messages[-1]["id"] if messages else None,
            },
            "messages": [],
            "tags": [],
            "timestamp": 1_700_000_000_000,
            "files": [],
        },
        "created_at": 1_700_000_000,
        "updated_at": 1_700_000_200,
        "pinned": True,
        "meta": {"tags": ["birds"]},
        "folder_id": None,
    } | fields


ANSWER = (
    '<details type="reasoning" done="true" duration="2">\n<summary>Thought for 2 seconds</summary>\n'
    "&gt; They &amp; mice\n&gt; sleep\n</details>\n"
    '<details type="tool_calls" done="true" id="call_1" name="clock" '
    'arguments="&quot;{\\&quot;zone\\&quot;: \\&quot;UTC\\&quot;}&quot;" result="&quot;noon&quot;">\n'
    "<summary>Tool Executed</summary>\n</details>\nAt night."
)
OPEN_WEBUI = webui_chat([
    {
        "id": "a", "parentId": None, "childrenIds": ["b", "c"], "role": "user", "content": "When?",
        "timestamp": 1_700_000_001,
        "files": [
            {"type": "image", "url": "data:image/png;base64,iVBORw0="},
            {"type": "file", "name": "owls.txt", "file": {"data": {"content": "Owls."}}},
            {"type": "file", "name": "gone.pdf", "id": "1"},
        ],
    },
    {
        "id": "b", "parentId": "a", "childrenIds": [], "role": "assistant", "content": ANSWER,
        "model": "llama3.2",
    },
    {
        "id": "c", "parentId": "a", "childrenIds": [], "role": "assistant", "content": "", "model": "phi",
        "error": {"content": "no memory"},
    },
])  # fmt: skip


def file_of(*chats: dict[str, Any]) -> bytes:
    return json.dumps(chats).encode()
