"""SQLite: one file, one host at a time, durable on return."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw

from ..core.errors import BadStoreUrl, StoreTooNew, StoreUnavailable
from ..ports import Clock
from .clock import SystemClock
from .filelock import FileLock
from .group import ConnectionLost, Group, Rejected, Row, Task
from .queries import migrate, queries
from .sql import SqlStore

MEMORY = ":memory:"
BUSY_MS = 5_000


class SqliteConnection:
    """An apsw connection with WAL and `synchronous=FULL`: a commit has reached the disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queries = queries()
        self.raw: Any = self._open()

    def run(self, query: str, params: Mapping[str, Any]) -> list[Row]:
        try:
            return self.raw.execute(self._queries[query], params).fetchall()
        except apsw.Error as error:
            raise _mapped(error) from error

    def begin(self) -> None:
        self._plain("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._plain("COMMIT")

    def rollback(self) -> None:
        if self.raw.in_transaction:
            self._plain("ROLLBACK")

    def reopen(self) -> None:
        if self._path != MEMORY:
            self.raw.close(True)
            self.raw = self._open()

    def migrate(self) -> None:
        """Bring the schema up to date, each step and its version in one transaction."""
        if self._version() == 0:
            self._plain("CREATE TABLE IF NOT EXISTS perdure_schema (version INTEGER NOT NULL)")
        migrate("sqlite", self._version(), self._apply_migration)

    def _apply_migration(self, number: int, script: str) -> None:
        with self.raw:
            if self._version() >= number:
                return
            self.raw.execute(script)
            self.raw.execute("DELETE FROM perdure_schema")
            self.raw.execute("INSERT INTO perdure_schema VALUES (?)", (number,))

    def _version(self) -> int:
        try:
            known: list[Row] = self.raw.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'perdure_schema'"
            ).fetchall()
            found: list[Row] = (
                self.raw.execute("SELECT max(version) FROM perdure_schema").fetchall() if known else []
            )
        except apsw.NotADBError as error:
            raise BadStoreUrl(f"({self._path} is not an SQLite database)") from error
        return (found[0][0] or 0) if found else 0

    def _plain(self, statement: str) -> None:
        try:
            self.raw.execute(statement)
        except apsw.Error as error:
            raise _mapped(error) from error

    def _open(self) -> Any:
        """The types of apsw's methods are not fully known to the checker: hence `Any`."""
        try:
            raw: Any = apsw.Connection(self._path)
            raw.set_busy_timeout(BUSY_MS)
            if self._path != MEMORY:
                raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = FULL; PRAGMA fullfsync = 1")
        except apsw.NotADBError as error:
            raise BadStoreUrl(f"({self._path} is not an SQLite database)") from error
        except apsw.Error as error:
            raise StoreUnavailable(f"(cannot open {self._path}: {error})") from error
        return raw


class SqliteStore(SqlStore):
    """`host=False` opens the file beside its host: to read, and to put inputs into the inbox."""

    poll_every = 0.25

    def __init__(self, path: str | Path, *, clock: Clock | None = None, host: bool = True) -> None:
        self.path = os.fspath(path)
        in_memory = self.path == MEMORY
        if not in_memory and not Path(self.path).absolute().parent.is_dir():
            raise BadStoreUrl(f"(there is no folder {Path(self.path).absolute().parent})")
        self._lock = FileLock(f"{self.path}.lock") if host and not in_memory else None
        try:
            self._writer = SqliteConnection(self.path)
            self._check_readable(host)
            self._reader = self._writer if in_memory else SqliteConnection(self.path)
            self.group = Group(self._writer, inline=True)
            self._clock = clock or SystemClock(self._last_renewal())
            if host:
                self.group.run_now(Task(lambda connection: connection.run("retire_all", {})))
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def now(self) -> int:
        return self._clock.now()

    def renew(self, host: str, label: str, lives: int) -> None:
        now = self.now()
        row = {"host": host, "label": label, "now": now, "expires_at": now + lives}
        self.group.run_now(Task(lambda connection: connection.run("renew", row)))

    async def close(self) -> None:
        self.group.close()
        self._writer.raw.close()
        self._reader.raw.close()
        if self._lock is not None:
            self._lock.release()

    async def _read(self, query: str, params: Mapping[str, Any]) -> list[Row]:
        try:
            if self._reader is self._writer:
                return self.group.run_now(Task(lambda connection: connection.run(query, params)))
            return self._reader.run(query, params)
        except (ConnectionLost, Rejected) as error:
            raise StoreUnavailable(f"({error})") from error

    def _last_renewal(self) -> int:
        return self._writer.run("last_renewal", {})[0][0] or 0

    def _check_readable(self, host: bool) -> None:
        try:
            self._writer.migrate()
        except apsw.Error as error:
            raise StoreUnavailable(f"(cannot prepare {self.path}: {error})") from error
        except StoreTooNew:
            self._writer.raw.close()
            raise


def _mapped(error: apsw.Error) -> Exception:
    """Whose fault it is: the statement's, the disk's, or nobody knows what was written."""
    match error:
        case apsw.FullError():
            return StoreUnavailable("(the disk is full)")
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable("(another process holds the database)")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreUnavailable("(the database cannot be written)")
        case apsw.IOError() | apsw.CantOpenError() | apsw.CorruptError() | apsw.NotADBError():
            return ConnectionLost(str(error))
        case _:
            return Rejected(str(error))
