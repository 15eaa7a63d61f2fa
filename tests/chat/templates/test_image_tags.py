"""The places of images in a conversation."""

from __future__ import annotations

from puna.chat.templates.messages import Message, tagged


def test_images_come_before_their_text_or_at_its_tags() -> None:
    messages = [
        Message(role="system", content="see"),
        Message(role="user", content="two", images=[b"a", b"b"]),
        Message(role="assistant", content="yes"),
        Message(role="user", content="one [img] and [img] here", images=[b"c", b"a", b"d"]),
    ]
    shown, images = tagged(messages)
    assert [message.content for message in shown] == [
        "see",
        "[img-0][img-1]two",
        "yes",
        "[img-4]one [img-2] and [img-3] here",
    ]
    assert images == [b"a", b"b", b"c", b"a", b"d"]
    assert [list(message.images) for message in shown] == [[], [0, 1], [], [2, 3, 4]]
