from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .hosts import Stage


@pytest.fixture
def sqlite_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage on an SQLite file. Its hosts are gone afterwards."""
    stage = Stage(f"sqlite:///{tmp_path / 'store.db'}", tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def postgres_stage(tmp_path: Path, pg_database: str) -> Iterator[Stage]:
    """A stage on a Postgres database."""
    stage = Stage(pg_database, tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture(params=["sqlite", "postgres"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """A stage on each of the stores."""
    return request.getfixturevalue(f"{request.param}_stage")
