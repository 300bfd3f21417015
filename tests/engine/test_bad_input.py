"""Input that cannot be accepted: a clear error, at once, and nothing is changed."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure import (
    Agent,
    BadInput,
    BadName,
    BadStoreUrl,
    Fiber,
    NotFound,
    PerdureError,
    Runtime,
    TooLarge,
    Unserialisable,
    fiber,
)
from perdure.core.facts import InputRow
from perdure.engine.values import LARGEST, decode, encode
from perdure.stores import open_store

from .lives import Lives, World, soon, until

pytestmark = pytest.mark.not_evicted("refused before any commit")


@dataclass
class Plain:
    x: int


class Floating(BaseModel):
    x: float


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    return value


NOT_JSON: dict[str, Any] = {
    "object": object(),
    "set": {1, 2},
    "bytes": b"abc",
    "dataclass": Plain(1),
    "datetime": datetime(2020, 1, 1, tzinfo=UTC),
    "decimal": Decimal("1.5"),
    "complex": 1j,
    "class": Plain,
    "model class": Floating,
    "function": print,
    "nan": float("nan"),
    "infinity": float("-inf"),
    "nan inside": {"a": [1, {"b": float("nan")}]},
    "nan beside null": [None, float("nan")],
    "nan in a model": Floating(x=float("nan")),
    "non-str keys": {1: "a"},
    "non-str keys inside": [{"a": {(1, 2): 3}}],
    "huge integer": 2**64,
    "lone surrogate": "\ud800",
    "lone surrogate as a key": {"\ud800": 1},
    "circular": circular(),
    "too deep": deep(),
}
NAMES: dict[str, tuple[Any, str]] = {
    "empty": ("", "0 bytes"),
    "1 MB": ("x" * 1_000_000, "1000000 bytes"),
    "513 bytes": ("x" * 513, "513 bytes"),
    "NUL": ("a\0b", "has a NUL"),
    "lone surrogate": ("\ud800", "not UTF-8"),
    "no string": (7, "got int"),
}
ODD_NAMES = [
    "a/b",
    "a:b",
    "../../etc/passwd",
    "a b",
    " ",
    "名前",
    "🙂",
    "%00",
    "'; DROP TABLE fibers; --",
    "x" * 512,
]


class Taking(Agent):
    world: World

    @fiber
    async def take(self, f: Fiber, value: Any = None) -> Any:
        self.world.do("take")
        return value

    async def start(self, name: Any, key: Any = None) -> Any:
        async def body(f: Fiber) -> str:
            return f.name

        return await self.run_fiber(name, body, key=key)

    async def by_key(self, key: Any) -> Any:
        return await self.take.with_key(key, 1)

    async def within(self, method: Any) -> Any:
        return await self.run_fiber("within", lambda f: method(self, f))


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Taking.world = world


@pytest.fixture
async def session(lives: Lives) -> Any:
    return (await lives.begin(Taking)).session(Taking, "one")


# --- values


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_refused_with_its_reason(value: Any) -> None:
    with pytest.raises(Unserialisable) as refused:
        encode(value, "a stash")
    assert "a stash: " in str(refused.value)
    assert len(str(refused.value)) < 500


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(json)
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert decode(encode(value, "a value")) == value


@pytest.mark.parametrize("value", ["x" * LARGEST, ["x" * LARGEST], {"x" * LARGEST: 1}, "x" * 50_000_000])
def test_what_is_too_large_is_refused_with_its_size(value: Any) -> None:
    with pytest.raises(TooLarge, match=r"a stash: [\d,]+ bytes, the limit is 1,000,000"):
        encode(value, "a stash")


def test_the_largest_value_is_accepted() -> None:
    assert len(encode("x" * (LARGEST - 2), "a stash")) == LARGEST


@pytest.mark.parametrize("now", [False, True], ids=["stash", "stash_now"])
@pytest.mark.parametrize("value", [*NOT_JSON.values(), "x" * 50_000_000], ids=[*NOT_JSON, "50 MB"])
async def test_a_stash_that_cannot_be_stored_is_refused_at_once_and_changes_nothing(
    lives: Lives, session: Any, value: Any, now: bool
) -> None:
    async def method(agent: Taking, f: Fiber) -> Any:
        await f.stash("before")
        with pytest.raises(BadInput):
            f.stash_now(value) if now else f.stash(value)
        row = await lives.store.fiber(f.id)
        assert row is not None
        assert decode(row.stash) == f.stashed == "before"
        await f.stash("after")
        return f.stashed

    assert await session.call(Taking.within, method) == "after"


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 50_000_000], ids=["object", "nan", "50 MB"])
async def test_arguments_that_cannot_be_stored_start_nothing(session: Any, world: World, value: Any) -> None:
    with pytest.raises(BadInput, match="the arguments of take"):
        await session.start(Taking.take, value)
    assert await session.fibers() == []
    assert await session.ended() == []
    assert world.did == {}


async def test_arguments_of_an_op_that_cannot_be_stored_call_nothing(session: Any, world: World) -> None:
    async def method(agent: Taking, f: Fiber) -> Any:
        for value in (object(), "x" * 50_000_000):
            with pytest.raises(BadInput, match="the arguments of pay"):
                await f.op("pay", world.do, value, effect="once")
        return await f.op("pay", world.do, "pay", effect="once")

    assert await session.call(Taking.within, method) == "pay"
    (op,) = await session.ops()
    assert (op.step, op.outcome) == (0, "done")
    assert world.did == {"pay": 1}


@pytest.mark.parametrize("value", [object(), "x" * 50_000_000], ids=["object", "50 MB"])
async def test_a_fiber_whose_result_cannot_be_stored_has_failed(session: Any, value: Any) -> None:
    async def method(agent: Taking, f: Fiber) -> Any:
        return value

    with pytest.raises(BadInput, match="the result of fiber within"):
        await session.call(Taking.within, method)
    (one,) = await session.ended()
    assert one.outcome == "failed"


# --- names


@pytest.mark.parametrize(("name", "said"), NAMES.values(), ids=NAMES)
async def test_what_can_be_no_name_is_refused_everywhere(session: Any, name: Any, said: str) -> None:
    async def inside(agent: Taking, f: Fiber) -> None:
        for use in (
            lambda: f.op(name, lambda: 1, effect="read"),
            lambda: f.op("pay", lambda: 1, effect="read", key=name),
            lambda: f.scope(name).__aenter__(),
        ):
            with pytest.raises(BadName, match=said):
                await use()

    await session.call(Taking.within, inside)
    for use in (
        lambda: session.call(Taking.start, name),
        lambda: session.call(Taking.start, "ok", name) if name is not None else None,
        lambda: session.call(Taking.by_key, name),
        lambda: session.start_once(name, Taking.take),
        lambda: session.call(Taking.schedule, 1, "take", key=name),
    ):
        with pytest.raises(BadName, match=said):
            await use()
    with pytest.raises(BadName, match=said):
        session._host and type(session)(session._host, Taking, name)
    assert [one.name for one in await session.ended()] == ["within"]
    assert await session.alarms() == []


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: name[:12])
async def test_odd_names_are_kept_as_they_are(lives: Lives, world: World, name: str) -> None:
    rt = await lives.begin(Taking)
    session = rt.session(Taking, name)
    assert await session.call(Taking.start, name, key=name) == name

    async def inside(agent: Taking, f: Fiber) -> Any:
        async with f.scope(name):
            await f.op(name, lambda: 1, effect="once")
        await f.op(name, lambda: 2, effect="once", key=name)
        return agent.key

    assert await session.call(Taking.within, inside) == name
    assert {op.kind for op in await session.ops()} == {name}
    assert name in {one.name for one in await session.ended()}
    row = await lives.store.session(session.id)
    assert row is not None
    assert row.key == name
    assert len(session.id) == 32
    await lives.kill(rt)
    rt = await lives.begin(Taking)
    assert await rt.session(Taking, name).call(Taking.start, "other", key=name) == name


# --- calls


async def test_an_unknown_method_or_fiber_is_not_found(session: Any) -> None:
    class Other(Agent):
        @fiber
        async def elsewhere(self, f: Fiber) -> None: ...

    with pytest.raises(NotFound, match="Taking has no method 'nothing'"):
        await session.call("nothing")
    with pytest.raises(NotFound, match="Taking has no fiber 'elsewhere'"):
        await session.start(Other.elsewhere)


@pytest.mark.parametrize(("args", "kwargs"), [((1, 2), {}), ((), {"other": 1}), ((1,), {"value": 1})])
async def test_wrong_arguments_are_refused_at_the_start(
    session: Any, world: World, args: Any, kwargs: Any
) -> None:
    for start in (
        lambda: session.start(Taking.take, *args, **kwargs),
        lambda: session.start_once("k", Taking.take, *args, **kwargs),
        lambda: session.call(Taking.take, *args, **kwargs),
    ):
        with pytest.raises(TypeError):
            await start()
    assert await session.fibers() == []
    assert await session.ended() == []
    assert world.did == {}


@pytest.mark.parametrize("effect", ["reads", "", "ONCE", None])
async def test_an_effect_with_a_typo_is_refused_and_nothing_is_called(
    session: Any, world: World, effect: Any
) -> None:
    async def method(agent: Taking, f: Fiber) -> None:
        with pytest.raises(BadInput, match="the effect of pay is one of read, keyed, once"):
            await f.op("pay", world.do, "pay", effect=effect)

    await session.call(Taking.within, method)
    assert world.did == {}
    assert await session.ops() == []


async def test_two_agents_with_one_name_are_refused(lives: Lives) -> None:
    class Other(Agent): ...

    Other.__name__ = "Taking"
    with pytest.raises(ValueError, match="two agents are called Taking"):
        await lives.begin(Taking, Other)


# --- the inbox


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("answer", {"fiber": "f0", "answer": "retry"}),
        ("answer", {"fiber": "f0", "answer": "yes"}),
        ("answer", {}),
        ("resolve", {"op": "nothing", "happened": True}),
        ("resolve", {"op": 7}),
        ("cancel", {"fiber": "f0"}),
        ("run_alarm", {"alarm": "nothing"}),
        ("dance", {}),
        ("cancel", ["no", "object"]),
    ],
)
async def test_an_input_that_fits_nothing_is_recorded_as_refused_and_leaves(
    lives: Lives, session: Any, kind: str, body: Any
) -> None:
    await session.call(Taking.take)
    row = InputRow("i1", session.id, kind, encode(body, "an input"), lives.store.now())
    twice = await asyncio.gather(lives.store.put_input(row), lives.store.put_input(row))
    assert twice == [True, False]
    lives.here.host.poke()

    async def refused() -> Any:
        return [decode(one.body) for one in await session.events() if one.type == "input.refused"]

    (event,) = await until(refused)
    assert (event["input"], event["kind"]) == ("i1", kind)
    assert await session.inbox() == []
    assert await soon(session.call(Taking.take)) is None


async def test_a_wrong_answer_from_the_inbox_runs_nothing_again(lives: Lives, world: World) -> None:
    class Doubting(Agent):
        @fiber
        async def pay(self, f: Fiber) -> str:
            return await f.op("pay", self.lose, effect="once")

        def lose(self) -> str:
            world.do("pay")
            raise ConnectionError

    rt = await lives.begin(Doubting)
    session = rt.session(Doubting, "one")
    running = await session.start(Doubting.pay)
    await until(lambda: _parked(session))
    (doubt,) = await session.doubts()
    wrong = {"fiber": running.id, "answer": "yes"}, {"op": doubt.id, "happened": "no"}
    for number, (kind, body) in enumerate(zip(("answer", "resolve"), wrong, strict=True)):
        row = InputRow(f"i{number}", session.id, kind, encode(body, "an input"), lives.store.now())
        await lives.store.put_input(row)
    rt.host.poke()
    await until(lambda: _refused(session, 2))
    assert await _parked(session)
    assert len(await session.doubts()) == 1
    assert world.did == {"pay": 1}


async def _parked(session: Any) -> bool:
    return any(row.parked is not None for row in await session.fibers())


async def _refused(session: Any, count: int) -> bool:
    return sum(one.type == "input.refused" for one in await session.events()) == count


# --- stores


@pytest.mark.parametrize(
    "url",
    [
        "",
        "agents.db",
        "sqlite:/agents.db",
        "sqlite//agents.db",
        "sqlite:///",
        "sqllite:///agents.db",
        "sqlite:///nowhere/at/all/agents.db",
        "postgres:/localhost/x",
        "mysql://localhost/x",
        "http://localhost",
        "memory",
    ],
)
async def test_a_store_url_with_a_typo_is_refused(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadStoreUrl):
        open_store(url)
    with pytest.raises(BadStoreUrl):
        await Runtime(url).__aenter__()
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n" * 100)
    with pytest.raises(BadStoreUrl, match="not an SQLite database"):
        open_store(f"sqlite:///{path}")
    assert path.read_text().startswith("these are my notes")


async def test_a_runtime_that_was_not_entered_says_so() -> None:
    rt = Runtime("memory:")
    assert not rt.entered
    with pytest.raises(PerdureError, match="async with Runtime"):
        rt.session(Taking, "one")
