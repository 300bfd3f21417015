"""What only Postgres does: many hosts, a server that may vanish, one clock for all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from perdure.core.errors import (
    BadStoreUrl,
    Conflict,
    Fenced,
    OwnedElsewhere,
    StoreTooNew,
    StoreUnavailable,
)
from perdure.core.facts import InputRow, Lease
from perdure.core.writes import Append, HandOver, OpenFiber
from perdure.stores import open_store
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_connection import Limits
from perdure.testing import ManualClock
from perdure.testing.desk import Desk
from tests.conformance.doubles import all_at_once
from tests.postgres import PostgresServer

IMPATIENT = Limits(connect=2, statement=5.0, silence=1.0, lock=1.0, idle=1.0, leaving=0.5)

HOST = """
import asyncio, sys
from perdure.core.errors import Fenced
from perdure.core.writes import Append
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres_connection import Limits

async def main():
    store = PostgresStore(sys.argv[1], limits=Limits(idle=1.0))
    store.renew("child", "the child", 1_000)
    lease = (await store.take("Agent", "k", host="child", hold=0)).lease
    if sys.argv[2] == "in a transaction":
        store.group.connection.begin()
        fence = {"session": lease.session, "epoch": 1, "revision": 0, "events": 0}
        store.group.connection.run("fence", fence)
    print("ready", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "in a transaction":
        try:
            store.group.connection.commit()
            print("committed", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
    try:
        await store.commit(lease, Append("late", b"", 0))
        print("written", flush=True)
    except Fenced:
        print("fenced", flush=True)
    await store.close()

asyncio.run(main())
"""

OPEN = """
import asyncio, sys
from perdure.stores.postgres import PostgresStore
print("ready", flush=True)
sys.stdin.readline()
store = PostgresStore(sys.argv[1])
store.renew(sys.argv[2], sys.argv[2], 60_000)
asyncio.run(store.close())
"""


@pytest.fixture
async def stores(pg_database: str) -> AsyncIterator[Callable[..., PostgresStore]]:
    """Opens stores, each as another host would, and closes them afterwards."""
    opened: list[PostgresStore] = []

    def open_one(**options: Any) -> PostgresStore:
        opened.append(PostgresStore(pg_database, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()
    assert our_threads() == []


@pytest.fixture
def store(stores: Callable[..., PostgresStore]) -> PostgresStore:
    return stores()


Stores = Callable[..., PostgresStore]


def our_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("perdure-")]


async def lease(store: PostgresStore, key: str = "k", host: str = "h", hold: int = 0) -> Lease:
    return (await store.take("Agent", key, host=host, hold=hold)).lease


def said(text: str = "said") -> Append:
    return Append(text, b"{}", 0)


async def logged(store: PostgresStore, one: Lease) -> list[str]:
    rows = await store.events(one.session)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.type for row in rows]


async def insisted(work: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    """What the engine does while a store is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await work()
        except StoreUnavailable as away:
            if time.monotonic() > deadline:
                raise
            work = away.again or work
            await asyncio.sleep(0.05)


async def until(true: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        done = connection.execute(statement)  # pyright: ignore[reportArgumentType]
        return done.fetchall() if done.description else []


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def backend(store: PostgresStore) -> int:
    return store._writer.raw.info.backend_pid


# --- opening


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/db", StoreUnavailable, "cannot connect to 127.0.0.1/db"),
        ("postgresql://me:s3cret@/db?host=/nowhere", StoreUnavailable, "cannot connect to /nowhere/db"),
        ("postgresql://me:s3cret@nowhere.invalid/db", StoreUnavailable, "nowhere.invalid"),
        ("postgresql://me:s3cret@host:port/db", BadStoreUrl, "cannot be read"),
        ("postgresql://me:s3/cret@host/db", BadStoreUrl, "/ %2F"),
        ("postgresql://me:12/cret@host/db", BadStoreUrl, "/ %2F"),
        ("postgresql://me:12@cret@host/db", BadStoreUrl, "@ is written %40"),
        ("postgresql://me:s3cret@host/db?colour=red", BadStoreUrl, "cannot be read"),
    ],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(url: str, error: Any, words: str):
    begun = time.monotonic()
    with pytest.raises(error) as told:
        open_store(url)
    text = "".join(map(str, (told.value, told.value.__cause__, told.value.__context__)))
    assert words in text
    assert "cret" not in text
    assert time.monotonic() - begun < 10
    assert our_threads() == []


def test_an_unknown_database_is_named(postgres_server: PostgresServer):
    postgres_server.start()
    with pytest.raises(StoreUnavailable, match='database "nothing_here" does not exist'):
        open_store(postgres_server.url("nothing_here"))


def test_a_database_of_another_encoding_is_refused(postgres_server: PostgresServer):
    postgres_server.start()
    sql(postgres_server.url(), "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(BadStoreUrl, match="is encoded in LATIN1"):
        open_store(postgres_server.url("latin"))
    sql(postgres_server.url(), "DROP DATABASE latin")


async def test_a_newer_schema_is_refused_and_left_alone(stores: Stores, pg_database: str):
    stores()
    sql(pg_database, "UPDATE perdure_schema SET version = 1000")
    for _ in range(2):
        with pytest.raises(StoreTooNew, match="the store has schema 1000"):
            open_store(pg_database)


def test_twelve_processes_that_start_on_an_empty_database_all_succeed(pg_database: str):
    assert all_at_once(OPEN, [[pg_database, f"h{n}"] for n in range(12)]) == [0] * 12
    assert sql(pg_database, "SELECT count(*), max(version) FROM perdure_schema")[0] == (1, 1)
    assert sql(pg_database, "SELECT count(*) FROM hosts") == [(12,)]


async def test_twelve_threads_that_start_on_an_empty_database_all_succeed(stores: Stores):
    opened = await asyncio.gather(*(asyncio.to_thread(stores) for _ in range(12)))
    assert len(opened) == 12


async def test_a_migration_that_fails_leaves_nothing(pg_database: str, monkeypatch: pytest.MonkeyPatch):
    from perdure.stores import postgres_connection, queries

    steps = (*queries.migrations("postgres"), "CREATE TABLE half (id int); SELECT 1/0")
    monkeypatch.setattr(queries, "migrations", lambda _: steps)
    monkeypatch.setattr(postgres_connection, "migrations", lambda _: steps)
    with pytest.raises(StoreUnavailable, match=r"cannot prepare .* division by zero"):
        open_store(pg_database)
    assert sql(pg_database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


async def test_the_settings_of_the_session(store: PostgresStore):
    def setting(name: str) -> str:
        return store._writer.raw.execute(f"SHOW {name}".encode()).fetchall()[0][0]

    assert setting("synchronous_commit") == "on"
    assert setting("statement_timeout") == "8s"
    assert setting("lock_timeout") == "2s"
    assert setting("idle_in_transaction_session_timeout") == "5s"
    assert setting("default_transaction_isolation") == "read committed"
    assert setting("application_name") == "perdure"


# --- several hosts


async def test_a_host_that_was_replaced_is_fenced(stores: Stores):
    one, two = stores(), stores()
    one.renew("one", "one", 60_000)
    two.renew("two", "two", 60_000)
    old = await lease(one, host="one")
    await one.commit(old, said("before"))
    new = await lease(two, host="two")
    with pytest.raises(Fenced):
        await one.commit(old, said("late"))
    assert await two.commit(new, said("after")) == 2
    assert await logged(one, new) == ["before", "after"]


@pytest.mark.parametrize("where", ["between transactions", "in a transaction"])
async def test_a_host_that_was_stopped_is_replaced_and_fenced(
    store: PostgresStore, pg_database: str, where: str
):
    """Also if it holds the locks of an open transaction: the server ends that."""
    command = [sys.executable, "-c", HOST, pg_database, where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            with stopped(child.pid):
                store.renew("h", "h", 60_000)
                taken = await insisted(lambda: take_when_dead(store))
                assert taken.epoch == 2
                assert await insisted(lambda: store.commit(taken, said("mine"))) == 1
            child.stdin.write("go\n")
            child.stdin.flush()
            if where == "in a transaction":
                assert child.stdout.readline() == "ConnectionLost\n"
            assert child.stdout.readline() == "fenced\n"
            assert child.wait() == 0
        finally:
            child.kill()
    assert await logged(store, taken) == ["mine"]


async def take_when_dead(store: PostgresStore) -> Lease:
    while True:
        try:
            return await lease(store, hold=60_000)
        except OwnedElsewhere:
            await asyncio.sleep(0.02)


async def test_twelve_hosts_that_take_forty_sessions_get_each_once(stores: Stores):
    hosts = [stores() for _ in range(12)]
    for n, one in enumerate(hosts):
        one.renew(f"h{n}", f"h{n}", 60_000)

    async def take_all(number: int) -> list[str]:
        order = [(k * 7 + number * 3) % 40 for k in range(40)]  # each host in an order of its own
        takes = (lease(hosts[number], f"k{k}", f"h{number}", hold=60_000) for k in order)
        results = await asyncio.gather(*takes, return_exceptions=True)
        assert {type(one) for one in results} <= {Lease, OwnedElsewhere}
        return [one.session for one in results if isinstance(one, Lease)]

    won = [session for found in await asyncio.gather(*map(take_all, range(12))) for session in found]
    assert len(won) == len(set(won)) == 40


async def test_an_owner_that_opens_a_fiber_just_now_is_not_robbed(stores: Stores):
    """The take waits for the commit that is going on, and then sees its fiber."""
    clock = ManualClock()
    one, two = stores(clock=clock), stores(clock=clock)
    desk = Desk(one, clock)
    mine = await desk.lease("a")
    await desk.host("b")
    await clock.advance(10)
    await desk.host("a")
    connection = one._writer
    connection.begin()
    fence = {"session": mine.session, "epoch": mine.epoch, "revision": mine.revision, "events": 0}
    connection.run("fence", fence)
    connection.run("open_fiber", desk.fiber(mine))
    taking = asyncio.create_task(two.take("Examinee", "k", host="b", hold=1))
    await until(lambda: waits_for_a_lock(one))
    connection.commit()
    with pytest.raises(OwnedElsewhere):
        await taking


def waits_for_a_lock(store: PostgresStore) -> bool:
    query = b"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(store._renewer.raw.execute(query).fetchall())


async def test_a_row_that_another_holds_delays_only_who_needs_it(stores: Stores, pg_database: str):
    store = stores(limits=IMPATIENT)
    blocked, free = await lease(store, "blocked"), await lease(store, "free")
    with psycopg.connect(pg_database) as other:
        other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [blocked.session])
        queued = [store.commit(blocked, said("later")), store.commit(free, said("now"))]
        begun = time.monotonic()
        store.renew("h", "h", 1_000)
        assert time.monotonic() - begun < 0.5, "renewals wait for nobody"
        assert await queued[1] == 1
        with pytest.raises(StoreUnavailable, match="lock timeout") as told:
            await queued[0]
    assert told.value.again is not None
    assert await told.value.again() == 1


async def test_a_deadlock_is_resolved_and_nothing_is_lost(store: PostgresStore, pg_database: str):
    leases = sorted([await lease(store, "a"), await lease(store, "b")], key=lambda one: one.session)
    with psycopg.connect(pg_database) as other:
        other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [leases[1].session])
        queued = [store.commit(one, said()) for one in leases]
        await until(lambda: waits_for_a_lock(store))
        other.execute("SET deadlock_timeout = '10ms'")
        with pytest.raises(psycopg.errors.DeadlockDetected):
            other.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", [leases[0].session])
    assert await asyncio.gather(*(insisted(lambda one=one: one) for one in queued)) == [1, 1]


# --- a server that vanishes


@pytest.mark.parametrize("mode", ["immediate", "fast"])
async def test_a_server_that_was_away_for_a_moment(
    stores: Stores, postgres_server: PostgresServer, mode: Any
):
    store = stores(limits=IMPATIENT)
    heard: list[str] = []
    store.on_change(lambda: heard.append("something"))
    leases = [await lease(store, f"k{n}") for n in range(10)]
    going_on = True

    async def work(mine: Lease) -> int:
        steps = 0
        while going_on or steps < 20:
            seq = await insisted(lambda: store.commit(mine, said(f"{steps}")))  # noqa: B023
            steps += 1
            assert seq == steps
        return steps

    working = [asyncio.create_task(work(one)) for one in leases]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(postgres_server.stop, mode)
    with pytest.raises(StoreUnavailable):
        await store.sessions()
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(store.renew, "h", "h", 1_000)
    calls = len(heard)
    await asyncio.to_thread(postgres_server.start)
    going_on = False
    for mine, steps in zip(leases, await asyncio.gather(*working), strict=True):
        assert await insisted(lambda mine=mine: logged(store, mine)) == [f"{n}" for n in range(steps)]
    await asyncio.to_thread(store.renew, "h", "h", 1_000)
    await until(lambda: len(heard) > calls)


async def test_a_backend_that_was_ended(store: PostgresStore, pg_database: str):
    mine = await lease(store)
    for n in range(3):
        sql(pg_database, f"SELECT pg_terminate_backend({backend(store)})")
        assert await store.commit(mine, said()) == n + 1
    for _ in range(3):
        sql(
            pg_database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        assert len(await logged(store, mine)) == 3
        store.renew("h", "h", 1_000)


async def test_a_backend_that_stands_still_is_left_for_a_new_one(stores: Stores):
    store = stores(limits=IMPATIENT)
    mine = await lease(store)
    with stopped(backend(store)):
        begun = time.monotonic()
        assert await store.commit(mine, said("one")) == 1
        assert 0.9 < time.monotonic() - begun < 5
    assert await store.commit(mine, said("two")) == 2
    assert await logged(store, mine) == ["one", "two"]


async def test_a_commit_that_still_lands_while_we_connect_again_is_waited_for(
    stores: Stores, pg_database: str
):
    """COMMIT takes longer than we wait for it, and lands after we have given up the connection."""
    store = stores(limits=Limits(connect=2, silence=0.4, lock=5.0))
    mine = await lease(store)
    sql(
        pg_database,
        """
        CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.9) WHERE NEW.type = 'slow'; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow();
        """,
    )
    assert await insisted(lambda: store.commit(mine, said("slow"))) == 1
    assert await store.commit(mine, said("after")) == 2
    assert await logged(store, mine) == ["slow", "after"]


async def test_close_is_prompt_and_ends_all_threads(stores: Stores, postgres_server: PostgresServer):
    for condition in ("up", "away", "stopped"):
        store = stores(limits=IMPATIENT)
        store.on_change(lambda: None)
        mine = await lease(store)
        await store.sessions()
        async with _condition(condition, postgres_server, store):
            queued = store.commit(mine, said())
            begun = time.monotonic()
            await store.close()
            await store.close()
            assert time.monotonic() - begun < 4, condition
            assert our_threads() == []
            if condition == "up":
                assert await queued == 1
            else:
                with pytest.raises(StoreUnavailable):
                    await queued
            with pytest.raises(StoreUnavailable):
                await store.sessions()
            with pytest.raises(StoreUnavailable):
                store.renew("h", "h", 1)


@asynccontextmanager
async def _condition(name: str, server: PostgresServer, store: PostgresStore) -> AsyncIterator[None]:
    if name == "away":
        with server.away():
            yield
    elif name == "stopped":
        with stopped(backend(store)):
            yield
    else:
        yield


# --- what the server says


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("53100", StoreUnavailable),  # disk full
        ("53200", StoreUnavailable),  # out of memory
        ("57014", StoreUnavailable),  # took too long
        ("58030", StoreUnavailable),  # I/O error
        ("40001", StoreUnavailable),
        ("23514", Conflict),
        ("22003", Conflict),
    ],
)
async def test_whose_fault_it_is(store: PostgresStore, pg_database: str, code: str, error: type[Exception]):
    mine = await lease(store)
    sql(
        pg_database,
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'as the test wished' USING ERRCODE = '{code}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse();
        """,
    )
    with pytest.raises(error, match="as the test wished") as told:
        await store.commit(mine, said("one"))
    sql(pg_database, "DROP TRIGGER refuse ON events")
    if isinstance(told.value, StoreUnavailable):
        assert told.value.again is not None
        assert await told.value.again() == 1
    assert await store.commit(mine, said("two")) == (2 if error is StoreUnavailable else 1)


async def test_a_server_that_can_only_be_read_is_left_for_the_writable_one(
    stores: Stores, pg_database: str, postgres_server: PostgresServer
):
    store = stores()
    mine = await lease(store)
    name = psycopg.conninfo.conninfo_to_dict(pg_database)["dbname"]
    sql(postgres_server.url(), f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    store._writer.reopen()
    with pytest.raises(StoreUnavailable, match="it can only be read") as told:
        await store.commit(mine, said())
    sql(postgres_server.url(), f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert told.value.again is not None
    assert await told.value.again() == 1


async def test_a_server_without_a_free_connection(
    stores: Stores, pg_database: str, postgres_server: PostgresServer
):
    stores()
    sql(postgres_server.url(), "CREATE ROLE guest LOGIN CONNECTION LIMIT 2")
    sql(pg_database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO guest")
    store = PostgresStore(pg_database.replace("postgres@", "guest@"))
    try:
        with pytest.raises(StoreUnavailable, match="too many connections"):
            await store.sessions()
        assert (await lease(store)).epoch == 1
    finally:
        await store.close()
        sql(pg_database, "DROP OWNED BY guest")
        sql(postgres_server.url(), "DROP ROLE guest")


# --- hearing from other hosts


async def test_a_host_hears_what_other_hosts_put_in(stores: Stores):
    one, two = stores(), stores()
    calls: list[str] = []
    one.on_change(lambda: calls.append("one"))
    one.on_change(lambda: calls.append("another"))
    await until(lambda: calls)
    two.renew("two", "two", 60_000)
    mine = await lease(two, host="two")
    desk = Desk(two, ManualClock())
    await two.commit(mine, OpenFiber(desk.fiber(mine)))

    async def puts_in(work: Callable[[], Awaitable[Any]]) -> bool:
        calls.clear()
        await work()
        with pytest.MonkeyPatch.context():
            try:
                await until(lambda: set(calls) == {"one", "another"}, 0.5)
            except AssertionError:
                return False
        return True

    assert await puts_in(lambda: two.put_input(InputRow("i", mine.session, "message", b"", 0)))
    assert not await puts_in(lambda: two.put_input(InputRow("i", mine.session, "message", b"", 0)))
    assert not await puts_in(lambda: two.commit(mine, said()))
    assert await puts_in(lambda: two.commit(mine, HandOver()))
    assert await puts_in(lambda: asyncio.to_thread(two.retire, "two"))


async def test_nothing_is_heard_before_it_can_be_seen(stores: Stores):
    one, two = stores(), stores()
    mine = await lease(two)
    heard: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    one.on_change(lambda: loop.call_soon_threadsafe(heard.put_nowait, None))
    await heard.get()
    for n in range(30):
        await two.put_input(InputRow(f"i{n}", mine.session, "message", b"", 0))
        await asyncio.wait_for(heard.get(), 10)
        assert len(await one.inputs(mine.session)) == n + 1


# --- time


async def test_hosts_whose_clocks_differ_by_hours_agree(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    one = stores()
    ahead = time.time_ns() + 5 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    monkeypatch.setattr(time, "time", lambda: ahead / 1e9)
    two = stores()
    for _ in range(3):
        one.renew("one", "one", 60_000)
        two.renew("two", "two", 60_000)
        assert abs(one.now() - two.now()) < 1_000
    mine = await lease(one, host="one", hold=60_000)
    assert await two.owner_lives(mine.session)
    with pytest.raises(OwnedElsewhere):
        await lease(two, host="two", hold=60_000)


async def test_the_time_is_that_of_the_database(store: PostgresStore, pg_database: str):
    now = store.now()
    ((said,),) = sql(pg_database, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
    assert now <= said < now + 2_000


async def test_the_clock_never_runs_backwards(stores: Stores, pg_database: str):
    """The database moved to a machine whose clock is an hour behind."""
    one = stores()
    was = one.now()
    sql(pg_database, "UPDATE clock SET wall = wall + 3600000, said = said + 3600000")
    one.renew("one", "one", 1_000)
    assert one.now() >= was + 3_590_000
    was = one.now()
    two = stores()
    seen = [two.now()]
    for _ in range(50):
        two.renew("two", "two", 1_000)
        one.renew("one", "one", 1_000)
        seen.append(two.now())
        assert one.now() >= was
    assert seen == sorted(seen)
    assert seen[0] >= was - 1_000
    begun, real = seen[-1], time.monotonic()
    await asyncio.sleep(0.3)
    two.renew("two", "two", 1_000)
    assert two.now() > begun
    sql(pg_database, "UPDATE clock SET wall = wall - 3600000, said = said - 7200000")
    two.renew("two", "two", 1_000)
    assert two.now() >= begun
    assert time.monotonic() > real


async def test_a_lease_lives_at_least_as_long_as_its_host_counts(stores: Stores, pg_database: str):
    """The host counts from before it asked, the database from after that."""
    store = stores()
    for _ in range(20):
        ((before,),) = sql(pg_database, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)")
        store.renew("h", "h", 1_000)
        ((expires_at,),) = sql(pg_database, "SELECT expires_at FROM hosts WHERE id = 'h'")
        now = store.now()
        ((after,),) = sql(pg_database, "SELECT extract(epoch FROM clock_timestamp()) * 1000")
        assert expires_at >= before + 1_000
        assert now <= after
