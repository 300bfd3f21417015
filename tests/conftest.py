from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from perdure.stores import open_store
from tests.postgres import PostgresServer
from tests.postgres import postgres_server as start_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.ports import Store


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The runtime is an asyncio program; it promises nothing about other event loops."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL server, one per test process. Beside `pg_database` a test may leave it stopped."""
    with start_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of the server's maintenance database. Tests keep their tables in `pg_database`."""
    return postgres_server.url()


@pytest.fixture
def pg_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database for this test alone."""
    postgres_server.start()
    with postgres_server.database() as url:
        yield url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


@pytest.fixture
def fresh_postgres(pg_database: str) -> Callable[[], Store]:
    """Makes an empty store, as often as it is called. The one before it must have been closed."""

    def make() -> Store:
        with psycopg.connect(pg_database, autocommit=True) as connection:
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
            filled = [sql.Identifier(name) for (name,) in tables if name not in ("perdure_schema", "clock")]
            if filled:
                connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(filled)))
        return open_store(pg_database)

    return make
