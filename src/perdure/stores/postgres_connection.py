"""Connections to Postgres: durable on return, and never waiting for ever.

Every wait is bounded twice: by the server (timeouts of the session), and by us, because a server
that has vanished or stands still keeps no promise.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.adapt import AdaptersMap
from psycopg.types.numeric import Int8BinaryDumper

from ..core.errors import BadStoreUrl, StoreUnavailable
from .group import ConnectionLost, Contended, Rejected, Row
from .queries import migrate, migrations, postgres_queries
from .statements import Params

T = TypeVar("T")

log = logging.getLogger("perdure")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds."""

    connect: int = 5
    statement: float = 8.0
    """One statement, by the server's count."""

    silence: float = 10.0
    """The server's answer, by ours."""

    lock: float = 2.0
    """Waiting for another host's transaction."""

    idle: float = 5.0
    """A transaction whose host does nothing: a stopped host must not hold its locks."""

    migration: float = 600.0
    leaving: float = 2.0
    """An answer after `close` was called."""


class Silence(psycopg.OperationalError):
    """The server does not answer."""


class Server:
    """Where the database is, and how long anything there may take."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.limits = limits
        self.leaving_at: float | None = None
        given = _read(url)
        self._password = str(given.get("password") or "")
        params: dict[str, Any] = {**self._defaults(), **given}
        self._conninfo = conninfo.make_conninfo(**params)
        self.name = (
            f"{given.get('host') or given.get('hostaddr') or 'the local server'}/{given.get('dbname', '')}"
        )

    def connect(self) -> PostgresSession:
        """A new session, with its settings made. Raises `StoreUnavailable`."""
        if self.leaving_at is not None:
            raise StoreUnavailable("(it is closed)")
        try:
            session = PostgresSession.connect(self._conninfo, autocommit=True, context=ADAPTERS)
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailable(f"(cannot connect to {self.name}: {self.words(error)})") from None
        try:
            self._settle(session)
        except BaseException:
            session.close()
            raise
        return session

    def leave(self) -> None:
        """From now on nobody waits long, and nobody connects again."""
        if self.leaving_at is None:
            self.leaving_at = time.monotonic()

    def words(self, error: BaseException) -> str:
        """What the server said, without secrets."""
        text = " ".join(str(error).split())
        return text.replace(self._password, "***") if self._password else text

    def _defaults(self) -> dict[str, Any]:
        return {
            "application_name": "perdure",
            "client_encoding": "utf8",
            "connect_timeout": self.limits.connect,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": int(self.limits.silence * 1000),
        }

    def _settle(self, session: PostgresSession) -> None:
        session.server = self
        session.patience = self.limits.silence
        session.prepared_max = 200
        wanted = {
            "statement": f"{self.limits.statement * 1000:.0f}",
            "lock": f"{self.limits.lock * 1000:.0f}",
            "idle": f"{self.limits.idle * 1000:.0f}",
        }
        try:
            found = session.execute(postgres_queries()["session_settings"].text, wanted).fetchall()
        except psycopg.Error as error:
            raise StoreUnavailable(f"(cannot use {self.name}: {self.words(error)})") from None
        *_, encoding, fsync = found[0]
        if encoding != "UTF8":
            raise BadStoreUrl(f"(the database {self.name} is encoded in {encoding}, and must be in UTF8)")
        if fsync != "on":
            log.warning("the database %s can lose what it has confirmed: its setting fsync is off", self.name)


class PostgresSession(psycopg.Connection[Row]):
    """A psycopg connection whose every wait ends."""

    server: Server | None = None
    patience: float = 10.0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run `gen`, and give up when the server has been silent for too long."""
        begun = time.monotonic()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and self._too_long(begun):
                    self.pgconn.finish()
                    raise Silence("the server does not answer")
                state = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _too_long(self, begun: float) -> bool:
        now = time.monotonic()
        leaving = self.server.leaving_at if self.server is not None else None
        if self.server is not None and leaving is not None:
            return now - max(begun, leaving) > self.server.limits.leaving
        return now - begun > self.patience


class PostgresConnection:
    """One database session behind the `Connection` protocol of the group."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._queries = postgres_queries()
        self.raw = server.connect()

    def run(self, query: str, params: Params) -> list[Row]:
        text, names = self._queries[query]
        named = dict(zip(names, params, strict=True)) if isinstance(params, tuple) else params
        if query == "take":
            self.run("lock_session", named)
        with self._mapping_errors():
            cursor = self.raw.execute(text, named, prepare=True, binary=True)
            return cursor.fetchall() if cursor.description is not None else []

    def begin(self) -> None:
        self._plain(b"BEGIN")

    def commit(self) -> None:
        if self._plain(b"COMMIT") != "COMMIT":
            raise Rejected("the transaction had failed before")

    def rollback(self) -> None:
        self._plain(b"ROLLBACK")

    def reopen(self) -> None:
        self.close()
        self.raw = self._server.connect()

    def close(self) -> None:
        self.raw.close()

    def migrate(self) -> None:
        """Bring the schema up to date, whole or not at all. Any number of hosts may do this at once."""
        if self.version() >= len(migrations("postgres")):
            migrate("postgres", self.version(), self._apply_migration)
            return
        self.raw.patience = self._server.limits.migration
        self.begin()
        try:
            self.run("migration_settings", {"patience": f"{self._server.limits.migration * 1000:.0f}"})
            self.run("wait_for_migrations", {})
            self.run("create_schema_table", {})
            migrate("postgres", self.version(), self._apply_migration)
            self.commit()
        except BaseException:
            self.rollback()
            raise
        finally:
            self.raw.patience = self._server.limits.silence

    def _apply_migration(self, number: int, script: str) -> None:
        self._plain(script.encode())
        self.run("forget_schema_version", {})
        self.run("note_schema_version", {"version": number})

    def version(self) -> int:
        """The schema's version; 0 if there is none."""
        if not self.run("schema_exists", {})[0][0]:
            return 0
        return self.run("schema_version", {})[0][0] or 0

    def _plain(self, statement: bytes) -> str | None:
        with self._mapping_errors():
            return self.raw.execute(statement).statusmessage

    @contextmanager
    def _mapping_errors(self) -> Generator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._mapped(error) from error

    def _mapped(self, error: psycopg.Error) -> Exception:
        """Whose fault it is: the statement's, the server's, or nobody knows what was written."""
        said, state = self._server.words(error), error.sqlstate or ""
        if self.raw.closed or state.startswith(BROKEN):
            self.raw.close()
            return ConnectionLost(said)
        if state in READ_ONLY:
            self.raw.close()  # the writable server is elsewhere by now: look for it
            return StoreUnavailable(f"(it can only be read: {said})")
        if state in CONTENDED:
            return Contended(said)
        if state.startswith(UNABLE):
            return StoreUnavailable(f"({said})")
        return Rejected(said)


def _read(url: str) -> dict[str, Any]:
    """The parts of a URL. One that cannot be read is not quoted: nobody knows where its password ends."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = None
    ports = str(given.get("port", "")).replace(",", "") if given is not None else ""
    if (
        given is None
        or (ports and not ports.isdigit())
        or re.match(r"\w+://([^/?]*@[^/?]*|[^/?]*/[^?]*)@", url)
    ):
        raise BadStoreUrl(
            "(this one cannot be read; in a name or a password, @ is written %40, : %3A, / %2F)"
        )
    return {**given}


BROKEN = ("08", "57P", "25P03")
"""The connection is gone, or the server is about to end it."""

READ_ONLY = ("25006",)
CONTENDED = ("40001", "40P01", "55P03")
"""Serialisation failure, deadlock, a lock that did not become free."""

UNABLE = ("53", "54", "57014", "58", "XX")
"""No disk, no memory, no connections; took too long; the server's own trouble."""


def adapters() -> AdaptersMap:
    """All integers are BIGINT, so that a statement is prepared once and not once per size of number."""
    made = AdaptersMap(psycopg.adapters)
    made.register_dumper(int, Int8BinaryDumper)
    return made


ADAPTERS = adapters()


def tried_twice(connection: PostgresConnection, work: Callable[[PostgresConnection], T]) -> T:
    """Work that may be repeated: done, on a new connection if the old one is broken."""
    try:
        try:
            return work(connection)
        except ConnectionLost:
            connection.reopen()
            return work(connection)
    except (ConnectionLost, Rejected) as error:
        raise StoreUnavailable(f"({error})") from error
