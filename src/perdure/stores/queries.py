"""The named queries of `queries.sql` and the numbered migrations, as text for one driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ..core.errors import StoreTooNew

Queries = dict[str, str]
PARAMETER = re.compile(r"(?<!:):(\w+)")


class PostgresQuery(NamedTuple):
    """A query with the parameters that psycopg takes, and their names in the order of the text."""

    text: bytes
    names: tuple[str, ...]


@cache
def queries() -> Queries:
    """Query by name, with `:name` parameters as SQLite takes them."""
    return _named("queries.sql")


@cache
def postgres_queries() -> dict[str, PostgresQuery]:
    """The same queries for Postgres, with those that it has for itself."""
    return {
        name: PostgresQuery(
            PARAMETER.sub(r"%(\1)s", text).encode(), tuple(dict.fromkeys(PARAMETER.findall(text)))
        )
        for name, text in (_named("queries.sql") | _named("postgres.sql")).items()
    }


@cache
def migrations(dialect: str) -> tuple[str, ...]:
    """The steps that build the schema; the n-th makes version n out of version n - 1."""
    folder = files(__name__.rpartition(".")[0]).joinpath("migrations", dialect)
    steps = sorted(
        (one.name, one.read_text(encoding="utf-8")) for one in folder.iterdir() if one.name.endswith(".sql")
    )
    return tuple(text for _, text in steps)


def migrate(dialect: str, version: int, apply: Callable[[int, str], None]) -> None:
    """Bring a schema of `version` up to date by calling `apply(n, script)` for each missing step."""
    steps = migrations(dialect)
    if version > len(steps):
        raise StoreTooNew(f"(the store has schema {version}, this code knows {len(steps)})")
    for number, script in enumerate(steps[version:], start=version + 1):
        apply(number, script)


def _named(file: str) -> Queries:
    text = files(__name__.rpartition(".")[0]).joinpath(file).read_text(encoding="utf-8")
    named = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {name: _statement(body) for name, body in zip(named[::2], named[1::2], strict=True)}


def _statement(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
