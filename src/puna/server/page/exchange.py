"""Export and import: chats of the history as files, and files as chats of the history."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Final

from puna.errors import ChatNotFoundError, PunaError, RequestError
from puna.server.history import chats
from puna.server.history.chats import MAX_MESSAGES, MessageDraft
from puna.server.history.exchange import ours
from puna.server.history.exchange.importer.client import imported
from puna.server.history.exchange.importer.protocol import FoundChat
from puna.server.history.exchange.markdown import chat_markdown
from puna.server.history.exchange.reading import SkippedChat
from puna.server.history.exchange.trees import ReadChat, ReadMessage
from puna.server.page.service import PageService
from puna.server.page.wire import ImportReport, Skipped

#: Text of the messages that are added at a time: others use the history in between.
_BATCH_CHARACTERS: Final = 200_000
_BATCH_MESSAGES: Final = 500


async def exported(page: PageService, ids: Iterable[str]) -> AsyncGenerator[bytes, None]:
    """Yield an export of these chats. One that is deleted meanwhile is left out, unless it is the only one.

    Raises ChatNotFoundError, HistoryError.
    """
    ids = [*ids]
    begun = False
    for id in ids:
        try:
            chat = await page.with_history(chats.get_chat, id)
        except ChatNotFoundError:
            if len(ids) == 1:
                raise
            continue
        yield (ours.BETWEEN if begun else ours.BEGIN) + await asyncio.to_thread(ours.chat_begin, chat)
        begun = True
        first = True
        for file in ours.file_ids(chat):
            with contextlib.suppress(ChatNotFoundError):
                _, data = await page.with_history(chats.get_file, file)
                yield await asyncio.to_thread(ours.file_part, file, data, first=first)
                first = False
        yield ours.CHAT_END
    yield (b"" if begun else ours.BEGIN) + ours.END


async def markdown_of(page: PageService, id: str) -> str:
    """Return the shown branch of a chat as Markdown. Raises ChatNotFoundError."""
    return chat_markdown(await page.with_history(chats.get_chat, id))


async def import_chats(page: PageService, data: bytes) -> ImportReport:
    """Add the chats of a file to the caller's. Raises RequestError, ImporterError, HistoryError.

    What was imported before an error stays.
    """
    await page.with_history(chats.chat_ids)  # raises without a history, before any work
    skipped: list[Skipped] = []
    count = 0
    async with page.importing, contextlib.aclosing(imported(data)) as found:
        async for each in found:
            match each:
                case SkippedChat(title=title, reason=reason):
                    skipped.append(Skipped(title, reason))
                case FoundChat(chat=chat, digest=digest):
                    try:
                        await _keep(page, chat, digest)
                        count += 1
                    except RequestError as error:
                        skipped.append(Skipped(chat.title[: chats.MAX_SHOWN_TITLE], str(error)))
    return ImportReport(count, skipped)


async def _keep(page: PageService, chat: ReadChat, digest: str) -> None:
    """Add a chat. Raises RequestError for one that cannot be kept."""
    if len(chat.messages) > MAX_MESSAGES:
        raise RequestError(f"it has more than {MAX_MESSAGES:,} messages")
    number = await page.with_history(
        chats.begin_import,
        digest,
        title=chat.title,
        folder=chat.folder,
        tags=chat.tags,
        settings=chat.settings,
        pinned=chat.pinned,
        created=chat.created,
    )
    if number is None:
        raise RequestError("it has been imported before")
    ids = [chats.new_id() for _ in chat.messages]
    kept: set[str] = set()
    try:
        for batch in _batches(chat.messages):
            await _add_files(page, chat, batch, kept)
            drafts = [(ids[place], _draft(chat.messages[place], ids)) for place in batch]
            await page.with_history(chats.add_imported, number, drafts)
    except PunaError:
        with contextlib.suppress(PunaError):
            await page.with_history(chats.drop_import, number)
        raise
    leaf = None if chat.leaf is None else ids[chat.leaf]
    await page.with_history(chats.finish_import, number, leaf=leaf, model=chat.model, updated=chat.updated)


def _batches(messages: list[ReadMessage]) -> Iterator[range]:
    """Yield the places of messages that are added together."""
    begin = size = 0
    for place, message in enumerate(messages):
        size += len(message.content) + len(message.thinking)
        if size > _BATCH_CHARACTERS or place + 1 - begin >= _BATCH_MESSAGES:
            yield range(begin, place + 1)
            begin, size = place + 1, 0
    if begin < len(messages):
        yield range(begin, len(messages))


async def _add_files(page: PageService, chat: ReadChat, batch: range, kept: set[str]) -> None:
    """Keep the files of these messages that are not in `kept`."""
    for file in (file for place in batch for file in chat.messages[place].files):
        if file.id not in kept:
            kept.add(file.id)
            await page.with_history(chats.add_file, file.name, file.type, chat.contents[file.id])


def _draft(message: ReadMessage, ids: list[str]) -> MessageDraft:
    """Return a message to be added, whose files are kept already."""
    return MessageDraft(
        parent=None if message.parent is None else ids[message.parent],
        role=message.role,
        content=message.content,
        thinking=message.thinking,
        calls=message.calls,
        tool_name=message.tool_name,
        tool_call_id=message.tool_call_id,
        files=[(file.id, file.name[: chats.MAX_TITLE]) for file in message.files],
        model=message.model,
        stats=message.stats,
        error=message.error,
        state=message.state,
        created=message.created,
    )
