"""Word wrap for text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache


class WordWrap:
    """Wraps text for a terminal so that no word is split at the right edge.

    Text is shown as soon as it arrives, so the current word may turn out too long for its line: it is
    then erased and written again on the next one. Lines of fenced code blocks are not wrapped, so that
    code can be copied.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        """`columns` returns the current maximum line width (terminals are resized)."""
        self._columns = columns
        self._column = 0  # cells written on this line
        self._word = ""  # the unfinished word at the end of it
        self._word_cells = 0
        self._line = ""  # the logical line so far, to recognise fences
        self._fenced = False

    def feed(self, text: str) -> str:
        """The output for the next piece of text, including cursor movements."""
        return "".join(map(self._put, text))

    def _put(self, character: str) -> str:
        if character == "\n":
            if self._line.lstrip().startswith("```"):
                self._fenced = not self._fenced
            self._line = ""
            return self._next_line()
        self._line += character
        if self._fenced or self._line.lstrip().startswith("```"):
            return character
        cells = _cells(character)
        if character in " \t":
            return self._put_space(character, cells)
        if cells == 2:
            return self._put_wide(character)
        return self._put_narrow(character, cells)

    def _put_space(self, character: str, cells: int) -> str:
        if self._column + cells > self._columns():
            return self._next_line()  # the line break replaces a space at the edge
        self._word, self._word_cells = "", 0
        self._column += cells
        return character

    def _put_wide(self, character: str) -> str:
        """Scripts written without spaces may break before any character."""
        fits = self._column == 0 or self._column + 2 <= self._columns()
        line_break = "" if fits else self._next_line()
        self._word, self._word_cells = "", 0
        self._column += 2
        return line_break + character

    def _put_narrow(self, character: str, cells: int) -> str:
        if self._column + cells <= self._columns() or self._column == 0:
            self._word += character
            self._word_cells += cells
            self._column += cells
            return character
        if self._word_cells == self._column:  # the word fills the line, so it has to be split
            line_break, word = self._next_line(), character
        else:
            word = self._word + character
            erase = f"\x1b[{self._word_cells}D\x1b[K" if self._word_cells else ""
            line_break = erase + self._next_line()
        self._word = word
        self._word_cells = self._column = sum(map(_cells, word))
        return line_break + word

    def _next_line(self) -> str:
        self._column = self._word_cells = 0
        self._word = ""
        return "\n"


@cache
def _cells(character: str) -> int:
    """Columns a character takes up on a terminal: 0, 1 or 2; a tab counts as 8."""
    if character == "\t":
        return 8
    if character.isascii():
        return 1
    from wcwidth import wcwidth

    return max(wcwidth(character), 0)
