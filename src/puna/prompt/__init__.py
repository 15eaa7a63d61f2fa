"""From messages to prompt text: chat templates in Jinja and in Go's template language, and back."""

from puna.prompt.choose import chat_format, check_template, is_jinja
from puna.prompt.fit import Fitted, fit_chat, fit_chat_async
from puna.prompt.format import ChatFormat, Think
from puna.prompt.messages import Message, as_messages
from puna.prompt.thinking import Tags, ThinkingParser

__all__ = [
    "ChatFormat",
    "Fitted",
    "Message",
    "Tags",
    "Think",
    "ThinkingParser",
    "as_messages",
    "chat_format",
    "check_template",
    "fit_chat",
    "fit_chat_async",
    "is_jinja",
]
