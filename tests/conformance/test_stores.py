"""Every store sits the same exam."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from perdure.ports import Clock, Store
from perdure.stores import open_store
from perdure.testing import STORE_CHECKS, check_store
from perdure.testing.conformance import run_check, sentence
from perdure.testing.desk import Check, Failure

Make = Callable[[Clock], Store]


@pytest.fixture
def memory() -> Make:
    return lambda clock: open_store("memory:", clock=clock)


@pytest.fixture
def sqlite(tmp_path: Path) -> Make:
    numbers = iter(range(1_000_000))
    return lambda clock: open_store(f"sqlite:///{tmp_path}/{next(numbers)}.db", clock=clock)


@pytest.fixture(scope="module")
def database(postgres_server):
    postgres_server.start()
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def postgres(database: str, request: pytest.FixtureRequest) -> Make:
    """Each check in a schema of its own: quicker than a database of its own."""
    return lambda clock: open_store(with_new_schema(database), clock=clock)


def with_new_schema(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT count(*) FROM pg_namespace").fetchone()
        assert found is not None
        connection.execute(f"CREATE SCHEMA s{found[0]}")  # pyright: ignore[reportArgumentType]
    return f"{url}&options=-csearch_path%3Ds{found[0]}"


@pytest.mark.parametrize("check", STORE_CHECKS, ids=sentence)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_a_store(kind: str, check: Check, request: pytest.FixtureRequest):
    await run_check(check, request.getfixturevalue(kind))


async def test_the_exam_as_others_run_it(memory: Make):
    await check_store(memory)


async def test_an_exam_that_is_failed_names_the_checks(memory: Make):
    def forgetful(clock: Clock) -> Store:
        store = memory(clock)
        store.state = store.ended_fiber  # pyright: ignore
        return store

    with pytest.raises(Failure, match="checks failed") as failed:
        await check_store(forgetful)
    assert "- the state is replaced whole with its version: " in str(failed.value)
    assert "the log is read in pages" not in str(failed.value)
