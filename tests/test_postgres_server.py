"""The throw-away PostgreSQL server keeps what it promises to the tests that rely on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.postgres import PostgresServer, postgres_server

ROOT = Path(__file__).parents[1]

OWNER = """
from tests.postgres import postgres_server
with postgres_server() as server:
    print(server.pid, server.directory, flush=True)
    input()
"""


def test_a_test_gets_an_empty_database_of_its_own(pg_database: str, postgres_server: PostgresServer):
    with postgres_server.database() as other, psycopg.connect(pg_database) as connection:
        connection.execute("CREATE TABLE here (id int)")
        with psycopg.connect(other) as elsewhere:
            assert elsewhere.execute("SELECT to_regclass('here')").fetchone() == (None,)


def test_the_server_is_durable(postgres_url: str):
    with psycopg.connect(postgres_url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)
        assert connection.execute("SHOW max_connections").fetchone() == ("200",)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_was_committed_is_there_after_a_stop(mode, pg_database: str, postgres_server: PostgresServer):
    with psycopg.connect(pg_database, autocommit=True) as before:
        before.execute("CREATE TABLE kept (id int)")
        before.execute("INSERT INTO kept VALUES (1)")
        with postgres_server.away(mode):
            with pytest.raises(psycopg.OperationalError):
                before.execute("SELECT 1")
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(pg_database)
    with psycopg.connect(pg_database) as after:
        assert after.execute("SELECT id FROM kept").fetchall() == [(1,)]


def test_a_server_left_stopped_is_started_again_for_the_next_test():
    with postgres_server() as server:
        with server.database() as url:
            server.stop()
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url)
        directory = server.directory
    assert not directory.exists()


def test_a_killed_owner_leaves_nothing_behind():
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        os.kill(owner.pid, signal.SIGKILL)
    wait_until_gone(int(pid), Path(directory))


def wait_until_gone(pid: int, directory: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while alive(pid) or directory.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody has waited for yet has ended all the same.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
