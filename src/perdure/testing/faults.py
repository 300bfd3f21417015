"""A database connection that fails when it is told to."""

from __future__ import annotations

from typing import Any

from ..ports import Store
from ..stores.group import Connection, ConnectionLost, Row
from ..stores.sql import SqlStore


class FaultyConnection:
    """Passes everything on, but may lose the answer to a COMMIT that was applied."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.lose_answers = 0
        self.lose_commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def run(self, query: str, params: Any) -> list[Row]:
        return self._connection.run(query, params)

    def begin(self) -> None:
        self._connection.begin()

    def commit(self) -> None:
        if self.lose_commits:
            self.lose_commits -= 1
            self._connection.rollback()
            raise ConnectionLost("the connection broke before the commit")
        self._connection.commit()
        if self.lose_answers:
            self.lose_answers -= 1
            raise ConnectionLost("the answer to the commit was lost")

    def rollback(self) -> None:
        self._connection.rollback()

    def reopen(self) -> None:
        self._connection.reopen()


def faulty(store: Store) -> FaultyConnection:
    """Put a faulty connection into an SQL store, or return the one that is there."""
    assert isinstance(store, SqlStore), "faults are injected into SQL stores"
    connection = store.group.connection
    if not isinstance(connection, FaultyConnection):
        connection = store.group.connection = FaultyConnection(connection)
    return connection


def lose_next_answer(store: Store) -> None:
    """The next transaction is applied, and its answer is lost."""
    faulty(store).lose_answers += 1
