"""The runtime where people use it: in tests, in scripts, twice in a row, with errors inside; retention."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Fiber, NotFound, PerdureError, Runtime, Settings, StoreInUse, fiber
from perdure.stores import open_store
from perdure.testing.clock import ManualClock

from .lives import Lives, World, soon, until


class Greeter(Agent):
    @fiber
    async def greet(self, f: Fiber, name: str) -> str:
        return f"hello {name}"

    @fiber
    async def fail(self, f: Fiber) -> None:
        raise ValueError("no")

    async def count(self) -> int:
        return await self.set_state((self.state or 0) + 1)


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/agents.db"


async def test_it_is_used_in_an_asynchronous_test(tmp_path: Path) -> None:
    async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
        assert rt.entered
        assert await rt.session(Greeter, "one").call(Greeter.greet, "ada") == "hello ada"
    assert not rt.entered


def test_it_is_used_in_a_script_twice_in_a_row_on_one_file(tmp_path: Path) -> None:
    async def main() -> int:
        async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
            return await rt.session(Greeter, "one").call(Greeter.count)

    assert [asyncio.run(main()) for _ in range(3)] == [1, 2, 3]


async def test_it_is_entered_twice_in_a_row_in_one_loop(tmp_path: Path) -> None:
    for count in (1, 2):
        async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
            assert await rt.session(Greeter, "one").call(Greeter.count) == count


async def test_agents_need_not_be_named_in_advance(tmp_path: Path) -> None:
    async with Runtime(url_in(tmp_path)) as rt:
        assert await rt.session(Greeter, "one").call(Greeter.greet, "ada") == "hello ada"


async def test_an_error_inside_comes_out_and_the_file_is_free_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
            await rt.session(Greeter, "one").call(Greeter.count)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await main()
    async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
        assert await rt.session(Greeter, "one").call(Greeter.count) == 2


async def test_a_cancellation_inside_comes_out_and_the_file_is_free_again(tmp_path: Path) -> None:
    inside = asyncio.Event()

    async def main() -> None:
        async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
            await rt.session(Greeter, "one").call(Greeter.count)
            inside.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(main())
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
        assert await rt.session(Greeter, "one").call(Greeter.count) == 2


async def test_a_runtime_that_cannot_begin_leaves_the_file_free(tmp_path: Path) -> None:
    class Other(Agent): ...

    Other.__name__ = "Greeter"
    with pytest.raises(ValueError, match="two agents"):
        async with Runtime(url_in(tmp_path), agents=[Greeter, Other]):
            pass
    async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
        assert await rt.session(Greeter, "one").call(Greeter.count) == 1


async def test_two_hosts_on_one_file_are_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
        with pytest.raises(StoreInUse, match=r"process \d+"):
            async with Runtime(url_in(tmp_path), agents=[Greeter]):
                pass
        assert await rt.session(Greeter, "one").call(Greeter.count) == 1


async def test_a_store_that_was_given_is_not_closed(tmp_path: Path) -> None:
    store = open_store(url_in(tmp_path))
    for count in (1, 2):
        async with Runtime(store, agents=[Greeter]) as rt:
            assert rt.store is store
            assert await rt.session(Greeter, "one").call(Greeter.count) == count
    assert await store.sessions() != []
    await store.close()


async def test_an_in_memory_store_is_gone_with_its_runtime() -> None:
    for _ in range(2):
        async with Runtime("memory:", agents=[Greeter]) as rt:
            assert await rt.session(Greeter, "one").call(Greeter.count) == 1


async def test_sessions_can_not_be_used_outside(tmp_path: Path) -> None:
    async with Runtime("memory:", agents=[Greeter]) as rt:
        pass
    with pytest.raises(PerdureError, match="inside `async with Runtime"):
        rt.session(Greeter, "one")


async def test_what_was_left_running_goes_on_in_the_next_process(tmp_path: Path, world: World) -> None:
    class Slow(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            return await world.do_and_wait("work")

    async with Runtime(url_in(tmp_path), agents=[Slow]) as rt:
        running = (await rt.session(Slow, "one").start(Slow.work)).id
    world.open("work")
    async with Runtime(url_in(tmp_path), agents=[Slow]) as rt:
        assert await soon(rt.session(Slow, "one").wait(running)) == "work"


async def test_many_sessions_at_once(tmp_path: Path) -> None:
    async with Runtime(url_in(tmp_path), agents=[Greeter]) as rt:
        said = await asyncio.gather(
            *(rt.session(Greeter, f"s{n}").call(Greeter.greet, f"{n}") for n in range(200))
        )
    assert said == [f"hello {n}" for n in range(200)]


# --- how long results are kept


@pytest.fixture
async def keeping(timed: Lives) -> Any:
    timed.settings = Settings(lease_lives=1e9, keep_results=3600, keep_failures=7200, idle_after=1e9)
    timed.store.poll_every = 30.0
    return (await timed.begin(Greeter)).session(Greeter, "one")


async def test_a_result_is_kept_for_its_time_and_then_forgotten(clock: ManualClock, keeping: Any) -> None:
    running = await keeping.start_once("greet", Greeter.greet, "ada")
    assert await running == "hello ada"
    await clock.advance(3500)
    assert await keeping.wait(running.id) == "hello ada"
    await clock.advance(200)
    with pytest.raises(NotFound):
        await keeping.wait(running.id)
    assert await keeping.ended() == []
    again = await keeping.start_once("greet", Greeter.greet, "ada")
    assert await again.accepted() is True, "its key is free again"


async def test_a_failure_is_kept_longer(clock: ManualClock, keeping: Any) -> None:
    with pytest.raises(ValueError, match="no"):
        await keeping.call(Greeter.fail)
    await clock.advance(7000)
    assert [one.outcome for one in await keeping.ended()] == ["failed"]
    await clock.advance(400)
    assert await keeping.ended() == []


async def test_ops_are_forgotten_with_their_fiber_but_not_a_doubt(
    timed: Lives, clock: ManualClock, world: World, keeping: Any
) -> None:
    class Paying(Agent):
        @fiber
        async def pay(self, f: Fiber) -> None:
            await f.op("look", world.do, "look", effect="once")
            await f.op("pay", world.do_and_wait, "pay", effect="once")

    session = timed.here.session(Paying, "one")
    running = await session.start(Paying.pay)
    await until(lambda: world.did["pay"])
    await session.cancel(running.id)
    assert len(await session.ops()) == 2
    await clock.advance(3700)
    assert await session.ended() == []
    assert [op.kind for op in await session.doubts()] == ["pay"]
    (doubt,) = await session.doubts()
    await session.resolve(doubt.id, happened=True)
    assert await session.doubts() == []
