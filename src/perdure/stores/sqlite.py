"""SQLite: one file, one host at a time, durable on return."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apsw

from ..core.errors import BadStoreUrl, StoreUnavailable
from ..ports import Clock
from .clock import SystemClock
from .filelock import FileLock, held
from .group import ConnectionLost, Group, Rejected, Row, Task
from .queries import migrate, migrations, queries
from .sql import SqlStore
from .statements import Params

MEMORY = ":memory:"
BUSY_MS = 5_000


class SqliteConnection:
    """An apsw connection with WAL and `synchronous=FULL`: a commit has reached the disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queries = queries()
        self.raw: Any = self._open()

    def run(self, query: str, params: Params) -> list[Row]:
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
        if self._path == MEMORY:
            self.rollback()
        else:
            self.close()
            self.raw = self._open()

    def close(self) -> None:
        self.raw.close(True)

    def migrate(self) -> None:
        """Bring the schema up to date, whole or not at all, whoever else tries that now."""
        if self._version() >= len(migrations("sqlite")):
            migrate("sqlite", self._version(), self._apply_migration)
            return
        self.begin()
        try:
            self._plain("CREATE TABLE IF NOT EXISTS perdure_schema (version INTEGER NOT NULL)")
            migrate("sqlite", self._version(), self._apply_migration)
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def _apply_migration(self, number: int, script: str) -> None:
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
            mode = raw.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
            raw.execute("PRAGMA synchronous = FULL; PRAGMA fullfsync = 1")
        except apsw.NotADBError as error:
            raise BadStoreUrl(f"({self._path} is not an SQLite database)") from error
        except apsw.Error as error:
            raise StoreUnavailable(f"(cannot open {self._path}: {error})") from error
        if mode != "wal" and self._path != MEMORY:
            raw.close()
            raise StoreUnavailable(
                f"(there can be no write-ahead log beside {self._path}: is it a local disk?)"
            )
        return raw


class SqliteStore(SqlStore):
    """`host=False` opens the file beside its host: to read, and to put inputs into the inbox."""

    def __init__(self, path: str | Path, *, clock: Clock | None = None, host: bool = True) -> None:
        self.path = os.fspath(path)
        in_memory = self.path == MEMORY
        self.poll_every = 1.0 if in_memory else 0.25
        if not in_memory and not Path(self.path).absolute().parent.is_dir():
            raise BadStoreUrl(f"(there is no folder {Path(self.path).absolute().parent})")
        self._lock_path = f"{os.path.realpath(self.path)}.lock"
        self._lock = FileLock(self._lock_path) if host and not in_memory else None
        self._connections: list[SqliteConnection] = []
        try:
            self._writer = self._connect()
            self._prepare()
            self._reader = self._writer if in_memory else self._connect()
            self.group = Group(self._writer, inline=True)
            self._clock = clock or SystemClock(self._last_renewal())
            if host:
                self.group.run_now(Task(lambda connection: connection.run("retire_all", {})))
        except BaseException:
            self._leave()
            raise

    def now(self) -> int:
        return self._clock.now()

    def renew(self, host: str, label: str, lives: int) -> None:
        now = self.now()
        row = {"host": host, "label": label, "now": now, "expires_at": now + lives}
        self.group.run_now(Task(lambda connection: connection.run("renew", row)))

    def on_change(self, notify: Callable[[], None]) -> None:
        """Nothing to hear from: the host polls."""

    async def owner_lives(self, session: str) -> bool:
        """Beside the host the lock tells at once what a lease would tell later."""
        if self._lock is None and self.path != MEMORY and not held(self._lock_path):
            return False
        return await super().owner_lives(session)

    async def close(self) -> None:
        self.group.close()
        self._leave()

    async def _read(self, query: str, params: Mapping[str, Any]) -> list[Row]:
        if self._reader is self._writer:
            return self.group.run_now(Task(lambda connection: connection.run(query, params)))
        try:
            return self._reader.run(query, params)
        except ConnectionLost:
            return self._read_anew(query, params)
        except Rejected as error:
            raise StoreUnavailable(f"({error})") from error

    def _read_anew(self, query: str, params: Mapping[str, Any]) -> list[Row]:
        try:
            self._reader.reopen()
            return self._reader.run(query, params)
        except (ConnectionLost, Rejected) as error:
            raise StoreUnavailable(f"({error})") from error

    def _last_renewal(self) -> int:
        return self._writer.run("last_renewal", {})[0][0] or 0

    def _connect(self) -> SqliteConnection:
        self._connections.append(SqliteConnection(self.path))
        return self._connections[-1]

    def _prepare(self) -> None:
        try:
            self._writer.migrate()
        except (apsw.Error, ConnectionLost, Rejected) as error:
            raise StoreUnavailable(f"(cannot prepare {self.path}: {error})") from error

    def _leave(self) -> None:
        for connection in self._connections:
            connection.close()
        if self._lock is not None:
            self._lock.release()


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
