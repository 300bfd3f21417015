from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

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
def fresh_postgres(postgres_server: PostgresServer) -> Iterator[Callable[[], Store]]:
    """Makes a store on an empty database of its own, as often as it is called."""
    with ExitStack() as databases:
        postgres_server.start()
        yield lambda: open_store(databases.enter_context(postgres_server.database()))
