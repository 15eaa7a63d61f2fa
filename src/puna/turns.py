"""Fair turns between clients: in every round, one for each client that waits.

Used for sequences of the engine, images to decode and models to load.
"""

from __future__ import annotations

#: A round and the client's place in it. Lower turns are served first.
Turn = tuple[int, int]


class ClientRotation:
    """Rounds in which each client has one turn, always in the same order of clients.

    An item gets the round after its client's previous one, but never a round that is over. So no waiting item
    is overtaken for ever, and a client's next item comes after at most one waiting item of each other client,
    however many they have. (Start-time fair queueing, Goyal et al., 1996, at equal costs.)
    """

    def __init__(self) -> None:
        self._round = 0  # the latest round from which an item was served
        self._served: set[str] = set()  # clients that had their turn in it
        self._latest: dict[str, Turn] = {}  # each client's last turn, unless that round is over
        self._places = 0

    def take(self, client: str) -> Turn:
        """Return the turn of a new item of `client`."""
        if client in self._latest:
            latest, place = self._latest[client]
            turn = max(self._round, latest + 1), place
        else:
            self._places += 1
            turn = self._round, self._places
        self._latest[client] = turn
        return turn

    def served(self, client: str, turn: Turn) -> None:
        """Note that the item of `client` with this turn is being served."""
        if turn[0] > self._round:
            self._round = turn[0]
            self._served = set()
            self._latest = {name: latest for name, latest in self._latest.items() if latest[0] >= turn[0]}
        if turn[0] == self._round:
            self._served.add(client)

    def emptied(self, client: str) -> None:
        """Note that `client` has withdrawn all of its waiting items, whose turns no longer count."""
        latest = self._latest.pop(client, None)
        if latest is not None and client in self._served:
            self._latest[client] = self._round, latest[1]
