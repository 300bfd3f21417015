"""Hearing, on a thread of its own, that another host has put something in."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

import psycopg

from ..core.errors import PerdureError
from .postgres_connection import PostgresSession, Server
from .queries import postgres_queries

PROVE_EVERY = 10.0
"""Seconds after which a silent connection is asked whether it still lives."""

PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before it connects again."""


class Listener:
    """Calls everybody who asked, also after each new connection: something may have been missed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._callbacks: list[Callable[[], None]] = []
        self._ended, self._end = os.pipe()
        self._thread: threading.Thread | None = None

    def add(self, notify: Callable[[], None]) -> None:
        self._callbacks.append(notify)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="perdure-listener", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """The thread has ended."""
        os.close(self._end)
        if self._thread is not None:
            self._thread.join()
        os.close(self._ended)

    def _run(self) -> None:
        failures = 0
        while not self._asked_to_end(PAUSES[min(failures, len(PAUSES)) - 1] if failures else 0):
            try:
                with self._server.connect() as session:
                    failures = 0
                    self._listen(session)
            except (PerdureError, psycopg.Error):
                failures += 1

    def _listen(self, session: PostgresSession) -> None:
        session.add_notify_handler(lambda _: self._call())
        session.execute(postgres_queries()["listen"].text)
        self._call()
        while True:
            readable, _, _ = select.select([session.fileno(), self._ended], [], [], PROVE_EVERY)
            if self._ended in readable:
                return
            session.execute(b"SELECT 1")

    def _call(self) -> None:
        for notify in self._callbacks:
            notify()

    def _asked_to_end(self, within: float) -> bool:
        return bool(select.select([self._ended], [], [], within)[0])
