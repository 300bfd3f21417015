"""The command line on Postgres: the same words, another URL."""

from __future__ import annotations

import psycopg

from perdure import Runtime
from tests.cli.conftest import Perdure, Shop, World, perdure_process


async def test_a_doubt_is_seen_and_settled_beside_the_host(pg_database: str, perdure: Perdure) -> None:
    async with Runtime(pg_database, agents=[Shop]) as rt:
        shop = rt.session(Shop, "ada")
        running = await World.doubtful_in(shop)
        (one,) = (await perdure("ls", "--store", pg_database, "--json")).json["sessions"]
        assert (one["status"], one["doubts"]) == ("interrupted", 1)
        found = (await perdure("show", "Shop/ada", "--store", pg_database, "--json")).json
        op = found["doubts"][0]["id"]
        said = await perdure("resolve", op, "--happened", "--result", "7", "--store", pg_database, "--json")
        assert said.json["taken"]
        assert await shop.wait(running) == "book: 7"


def test_a_server_that_is_not_there_is_one_line() -> None:
    url = "postgresql://nobody:secret@127.0.0.1:1/nowhere"
    said = perdure_process("ls", "--store", url, "--json")
    assert (said.code, said.out) == (1, "")
    assert said.error["type"] == "StoreUnavailable"
    assert "secret" not in said.err


def test_looking_at_a_database_without_agents_says_so_and_creates_nothing(pg_database: str) -> None:
    said = perdure_process("ls", "--store", pg_database, "--json")
    assert (said.code, said.error["type"]) == (2, "BadStoreUrl")
    with psycopg.connect(pg_database) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert tables == (0,)
