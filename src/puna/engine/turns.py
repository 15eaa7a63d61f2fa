"""Whose turn it is: clients are served in rounds, one sequence of each."""

from __future__ import annotations

#: A round, and the client's place in it. Lower ones are served first.
Turn = tuple[int, int]


class ClientRotation:
    """Gives waiting sequences turns: in every round one to each client, always in the same order of clients.

    A sequence takes the round after its client's previous one, but none that is over. So what is waiting is
    not overtaken for ever, and a client's next sequence comes after at most one waiting sequence of each
    other client, however many these have. (Start-time fair queueing, Goyal et al., 1996, at equal costs.)
    """

    def __init__(self) -> None:
        self._round = 0  # the latest of which a sequence was served
        self._served: set[str] = set()  # clients that had their turn in it
        self._latest: dict[str, Turn] = {}  # of each client, unless its round is over
        self._places = 0

    def take(self, client: str) -> Turn:
        """The turn of a new sequence of `client`."""
        if client in self._latest:
            latest, place = self._latest[client]
            turn = max(self._round, latest + 1), place
        else:
            self._places += 1
            turn = self._round, self._places
        self._latest[client] = turn
        return turn

    def served(self, client: str, turn: Turn) -> None:
        """Note that the sequence of `client` that has this turn is being served."""
        if turn[0] > self._round:
            self._round = turn[0]
            self._served = set()
            self._latest = {name: latest for name, latest in self._latest.items() if latest[0] >= turn[0]}
        if turn[0] == self._round:
            self._served.add(client)

    def emptied(self, client: str) -> None:
        """Note that `client` has given up all that was waiting: these turns do not count."""
        latest = self._latest.pop(client, None)
        if latest is not None and client in self._served:
            self._latest[client] = self._round, latest[1]
