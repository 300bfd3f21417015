"""Postgres: many hosts on one database, with its clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..core.errors import BadStoreUrl, StoreUnavailable
from ..ports import Clock
from .clock import FollowedClock, monotonic
from .group import ConnectionLost, Group, Rejected, Row
from .postgres_connection import Limits, PostgresConnection, Server, tried_twice
from .postgres_listener import Listener
from .sql import SqlStore

READERS = 4


class PostgresStore(SqlStore):
    """`clock=None` means the database's clock, for every host of it. `host=False` only looks, and
    puts inputs into the inbox.

    Writes go through one connection and one thread, reads through a few others, and renewals
    through one of their own, so that a slow flush does not cost the host its lease.
    """

    poll_every = 1.0

    def __init__(
        self, url: str, *, clock: Clock | None = None, host: bool = True, limits: Limits | None = None
    ) -> None:
        self._server = Server(url, limits or Limits())
        self._clock = clock
        self._database_clock = FollowedClock()
        self._listener = Listener(self._server)
        self._renewing = threading.Lock()
        self._idle: list[PostgresConnection] = []
        self._closed = False
        self._writer = PostgresConnection(self._server)
        try:
            self._renewer = self._prepare(host)
        except BaseException:
            self._writer.close()
            self._listener.close()
            raise
        self.group = Group(self._writer, inline=False)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="perdure-reader")

    def now(self) -> int:
        return self._clock.now() if self._clock is not None else self._database_clock.now()

    def renew(self, host: str, label: str, lives: int) -> None:
        with self._renewing:
            tried_twice(self._renewer, lambda connection: self._renew(connection, host, label, lives))

    async def close(self) -> None:
        """Everything that waited has been written or refused; no thread and no connection is left."""
        if not self._closed:
            self._closed = True
            self._server.leave()
            await asyncio.to_thread(self._close)

    def on_change(self, notify: Callable[[], None]) -> None:
        self._listener.add(notify)

    async def _read(self, query: str, params: Mapping[str, Any]) -> list[Row]:
        if self._closed:
            raise StoreUnavailable("(it is closed)")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._look, query, params)

    def _look(self, query: str, params: Mapping[str, Any]) -> list[Row]:
        """On a reader's thread. A connection that failed twice is not kept."""
        if self._closed:
            raise StoreUnavailable("(it is closed)")
        connection = self._idle.pop() if self._idle else PostgresConnection(self._server)
        try:
            rows = tried_twice(connection, lambda one: one.run(query, params))
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return rows

    def _renew(self, connection: PostgresConnection, host: str, label: str, lives: int) -> None:
        """By the time that the database had after we asked: our own count of the lease is shorter."""
        now = self._tick(connection) if self._clock is None else self._clock.now()
        connection.run("renew", {"host": host, "label": label, "now": now, "expires_at": now + lives})

    def _tick(self, connection: PostgresConnection) -> int:
        said = connection.run("tick", {})[0][0]
        self._database_clock.hear(said, monotonic())
        return said

    def _prepare(self, host: bool) -> PostgresConnection:
        """The schema is up to date, and the time is known. Only a host makes a schema."""
        try:
            if not host and not self._writer.version():
                raise BadStoreUrl(f"(no host has ever used {self._server.name})")
            self._writer.migrate()
            if self._clock is None:
                self._tick(self._writer)
        except (ConnectionLost, Rejected) as error:
            raise StoreUnavailable(f"(cannot prepare {self._server.name}: {error})") from error
        return PostgresConnection(self._server)

    def _close(self) -> None:
        self._listener.close()
        self.group.close()
        self._readers.shutdown()
        with self._renewing:
            for connection in (self._writer, self._renewer, *self._idle):
                connection.close()
