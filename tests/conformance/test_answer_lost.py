"""The outcome of a COMMIT is unknown: each commit is applied exactly once, and reported as that."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import pytest

from perdure.core.errors import Conflict, StoreUnavailable
from perdure.core.facts import FiberRow, Lease
from perdure.core.writes import Append, OpenFiber
from perdure.stores.group import Commit, Group
from perdure.stores.sql import SqlStore
from perdure.stores.sqlite import SqliteStore
from tests.conformance.doubles import Fault, Flaky


class Desk:
    """A store whose connection is flaky, and some leases on it."""

    def __init__(self, store: SqlStore, flaky: Flaky) -> None:
        self.store = store
        self.flaky = flaky

    async def lease(self, key: str = "k") -> Lease:
        return (await self.store.take("Agent", key, host="h", hold=0)).lease

    async def said(self, lease: Lease) -> list[str]:
        rows = await self.store.events(lease.session)
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        return [row.type for row in rows]


@pytest.fixture(params=["sqlite", "sqlite, writer thread", "postgres"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "postgres":
        from perdure.stores.postgres import PostgresStore

        store: SqlStore = PostgresStore(request.getfixturevalue("pg_database"))
    else:
        store = SqliteStore(tmp_path / "store.db")
    flaky = Flaky(store.group.connection)
    store.group = Group(flaky, inline=request.param == "sqlite")
    yield Desk(store, flaky)
    await store.close()


def said(text: str) -> Append:
    return Append(text, b"{}", 0)


def refused(lease: Lease) -> Commit:
    """A commit that the database refuses: the same fiber twice."""
    row = FiberRow("f", lease.session, "f", "function", 1, None, None, "h", 1, None, None, 0, 0, 0, 0, None)
    return Commit(lease, (OpenFiber(row), OpenFiber(row)))


LOSSES: list[list[Fault]] = [
    ["lost"],
    ["applied, then lost"],
]

LONG_LOSSES: list[list[Fault]] = [
    ["lost", "lost"],
    ["lost", "applied, then lost"],
    ["lost", "lost", "lost"],
    ["lost", "lost", "lost", "applied, then lost"],
]


@pytest.mark.parametrize("faults", LOSSES)
async def test_a_commit_whose_answer_is_lost_is_applied_once_and_is_a_success(desk: Desk, faults):
    lease = await desk.lease()
    desk.flaky.commits.extend(faults)
    assert await desk.store.commit(lease, said("one"), said("two")) == 2
    assert await desk.store.commit(lease, said("three")) == 3
    assert await desk.said(lease) == ["one", "two", "three"]


@pytest.mark.parametrize("faults", LOSSES)
async def test_commit_now_whose_answer_is_lost_is_applied_once_and_is_a_success(desk: Desk, faults):
    lease = await desk.lease()
    desk.flaky.commits.extend(faults)
    assert desk.store.commit_now(lease, said("one")) == 1
    assert desk.store.commit_now(lease, said("two")) == 2
    assert await desk.said(lease) == ["one", "two"]


@pytest.mark.parametrize("faults", LOSSES)
async def test_each_commit_of_a_group_learns_its_own_seq(desk: Desk, faults):
    lease, other = await desk.lease(), await desk.lease("other")
    desk.flaky.commits.extend(faults)
    queued = [desk.store.commit(lease, *(said(f"{n}") for _ in range(n))) for n in (1, 2, 0, 3)]
    beside = desk.store.commit(other, said("beside"))
    assert await asyncio.gather(*queued, beside) == [1, 3, 3, 6, 1]
    assert await desk.said(lease) == ["1", "2", "2", "3", "3", "3"]
    assert await desk.said(other) == ["beside"]


@pytest.mark.parametrize("faults", LONG_LOSSES)
async def test_lost_again_and_again_it_is_applied_once_by_trying_again(desk: Desk, faults):
    lease = await desk.lease()
    desk.flaky.commits.extend(faults)
    commits = [desk.store.commit(lease, said("one")), desk.store.commit(lease, said("two"))]
    assert await asyncio.gather(*(insisted(one) for one in commits)) == [1, 2]
    assert await desk.said(lease) == ["one", "two"]


async def insisted(commit: asyncio.Future[int]) -> int:
    """What `Live.insist` does."""
    while True:
        try:
            return await commit
        except StoreUnavailable as away:
            commit = asyncio.ensure_future(away.again() if away.again is not None else commit)


async def given_up(desk: Desk, lease: Lease, second: Fault) -> StoreUnavailable:
    """A commit "one" that was lost twice, so that its caller was told."""
    desk.flaky.commits.extend(["lost", second])
    with pytest.raises(StoreUnavailable) as told:
        await desk.store.commit(lease, said("one"))
    return told.value


@pytest.mark.parametrize("second", ["lost", "applied, then lost"])
async def test_a_commit_that_nobody_tries_again_does_not_disturb_the_next(desk: Desk, second: Fault):
    lease = await desk.lease()
    await given_up(desk, lease, second)
    before = ["one"] if second == "applied, then lost" else []
    assert await desk.store.commit(lease, said("two")) == len(before) + 1
    assert await desk.said(lease) == [*before, "two"]


async def test_tried_again_after_a_later_commit_it_is_still_applied(desk: Desk):
    lease = await desk.lease()
    lost = await given_up(desk, lease, "lost")
    await desk.store.commit(lease, said("two"))
    assert lost.again is not None
    desk.flaky.begins.append("lost")
    assert await lost.again() == 2
    assert await desk.said(lease) == ["two", "one"]


@pytest.mark.parametrize("key", ["0", "1", "2", "3"])
@pytest.mark.parametrize("second", ["lost", "applied, then lost"])
async def test_a_refused_commit_beside_it_does_not_settle_it(desk: Desk, second: Fault, key: str):
    """Whether it is refused before or after the lost one is looked at (the order of their ids)."""
    lease, other = await desk.lease(), await desk.lease(key)
    lost = await given_up(desk, lease, second)
    assert lost.again is not None
    neighbours = [desk.store.group.submit(refused(other))]
    again = lost.again()
    neighbours += [desk.store.group.submit(refused(other)), desk.store.commit(other, said("beside"))]
    with pytest.raises(Conflict):
        await neighbours[0]
    with pytest.raises(Conflict):
        await neighbours[1]
    assert await again == 1
    assert await neighbours[2] == 1
    assert await desk.said(lease) == ["one"]
    assert await desk.store.commit(lease, said("two")) == 2


@pytest.mark.parametrize("second", ["lost", "applied, then lost"])
async def test_a_full_disk_in_between_does_not_settle_it(desk: Desk, second: Fault):
    lease = await desk.lease()
    lost = await given_up(desk, lease, second)
    assert lost.again is not None
    desk.flaky.begins.append("unavailable")
    with pytest.raises(StoreUnavailable) as full:
        await lost.again()
    assert full.value.again is not None
    assert await full.value.again() == 1
    assert await desk.said(lease) == ["one"]
    assert await desk.store.commit(lease, said("two")) == 2


@pytest.mark.parametrize("where", ["begin", "standing", "fence", "append"])
async def test_the_connection_may_break_anywhere(desk: Desk, where: str):
    lease = await desk.lease()
    lost = await given_up(desk, lease, "applied, then lost")
    assert lost.again is not None
    if where == "begin":
        desk.flaky.begins.append("lost")
    else:
        desk.flaky.queries[where] = deque(["lost"])
    commits = [asyncio.ensure_future(lost.again()), desk.store.commit(lease, said("two"))]
    assert await asyncio.gather(*(insisted(one) for one in commits)) == [1, 2]
    assert await desk.said(lease) == ["one", "two"]


async def test_while_the_store_cannot_be_opened_callers_are_told_and_nothing_is_lost(desk: Desk):
    lease = await desk.lease()
    desk.flaky.commits.append("lost")
    desk.flaky.reopens.extend(["unavailable", "lost", "unavailable"])
    assert await insisted(desk.store.commit(lease, said("one"))) == 1
    assert await desk.said(lease) == ["one"]
    assert not desk.flaky.reopens


async def test_an_error_while_reopening_does_not_end_the_writer(desk: Desk, monkeypatch):
    lease = await desk.lease()
    desk.flaky.commits.append("lost")
    monkeypatch.setattr(desk.flaky, "reopen", lambda: 1 / 0)
    with pytest.raises(StoreUnavailable, match="ZeroDivisionError"):
        await asyncio.gather(desk.store.commit(lease, said("one")), desk.store.commit(lease))
    monkeypatch.undo()
    assert await desk.store.commit(lease, said("two")) == 1


async def test_an_unexpected_error_fails_its_own_commit_only(desk: Desk, monkeypatch):
    lease, other = await desk.lease(), await desk.lease("other")
    bad = desk.store.commit(lease, Append("surrogate \ud800", b"", 0))
    good = desk.store.commit(other, said("one"))
    with pytest.raises(Conflict):
        await bad
    assert await good == 1
    assert await desk.store.commit(lease, said("two")) == 1
