"""Runs that outlive us: followed by their handle from the cursor on, and answers cut in mid-stream."""

from typing import Any

import pytest

from perdure import Agent, Fiber, Gone, Interrupted, Session, current_op, fiber
from perdure.engine.values import decode

from .lives import Lives, World, soon, until


async def again(lives: Lives, agent: type[Agent]) -> Session[Any]:
    """The next life, after this one was killed."""
    rt = lives.here
    await lives.kill(rt)
    return (await lives.begin(agent)).session(agent, "one")


async def begun(lives: Lives, agent: type[Agent]) -> tuple[Session[Any], str]:
    rt = await lives.begin(agent)
    session = rt.session(agent, "one")
    running = await session.start(agent.work)  # type: ignore[attr-defined]
    return session, running.id


@pytest.mark.parametrize("effect", ["read", "keyed", "once"])
async def test_a_run_whose_handle_is_known_before_the_call_is_followed(
    lives: Lives, world: World, effect: Any
) -> None:
    class Following(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await f.op(
                "build", world.do_and_wait, "build", effect=effect, handle={"run": 7}, reattach=self.follow
            )

        async def follow(self, handle: Any, cursor: Any) -> Any:
            world.do("follow")
            return [handle, cursor]

    _, running = await begun(lives, Following)
    await until(lambda: world.did["build"] or world.did["follow"])
    session = await again(lives, Following)
    assert await soon(session.wait(running)) == [{"run": 7}, None]
    assert world.did["build"] <= 1
    assert world.did["follow"] == 1
    assert [op.outcome for op in await session.ops()] == ["done"]


@pytest.mark.not_evicted("evicted at every move of the cursor, it moves on for ever")
@pytest.mark.parametrize("effect", ["read", "keyed", "once"])
async def test_a_run_is_followed_from_the_cursor_on(lives: Lives, world: World, effect: Any) -> None:
    class Reading(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await f.op("build", self.build, effect=effect, reattach=self.follow)

        async def build(self) -> Any:
            await current_op().hold("run-7", 0)
            for line in (1, 2):
                await current_op().move(line)
            return await world.do_and_wait("build")

        async def follow(self, handle: Any, cursor: Any) -> Any:
            world.do(f"{handle} from {cursor}")
            await current_op().move(cursor + 1)
            await world.gate(f"line {cursor + 1}").wait()
            return "built"

    _, running = await begun(lives, Reading)
    await until(lambda: world.did["build"])
    session = await again(lives, Reading)
    await until(lambda: world.did["run-7 from 2"])

    async def moved() -> bool:
        return decode((await session.ops())[0].cursor) == 3

    await until(moved)
    session = await again(lives, Reading)
    world.open("line 4")
    assert await soon(session.wait(running)) == "built"
    assert world.did == {"build": 1, "run-7 from 2": 1, "run-7 from 3": 1}


@pytest.mark.parametrize(("effect", "begins", "doubts"), [("read", 2, 0), ("keyed", 2, 0), ("once", 1, 1)])
async def test_a_run_that_is_gone_is_decided_by_its_effect(
    lives: Lives, world: World, effect: Any, begins: int, doubts: int
) -> None:
    class Losing(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await f.op(
                "build", world.do_and_wait, "build", effect=effect, handle="run-7", reattach=self.follow
            )

        async def follow(self, handle: Any, cursor: Any) -> Any:
            world.do("follow")
            raise Gone

    _, running = await begun(lives, Losing)
    await until(lambda: world.did["build"])
    session = await again(lives, Losing)
    world.open("build")
    if doubts:
        with pytest.raises(Interrupted):
            await soon(session.wait(running))
    else:
        assert await soon(session.wait(running)) == "build"
    assert world.did["build"] == begins
    assert len(await session.doubts()) == doubts


async def test_a_handle_that_nobody_can_follow_does_not_help_a_once_op(lives: Lives, world: World) -> None:
    class Blind(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await f.op("build", world.do_and_wait, "build", effect="once", handle="run-7")

    _, running = await begun(lives, Blind)
    await until(lambda: world.did["build"])
    session = await again(lives, Blind)
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    assert world.did == {"build": 1}


@pytest.mark.not_evicted("evicted with its intent, it is followed before it is cut")
async def test_a_read_that_holds_a_handle_has_its_intent_committed_with_it(
    lives: Lives, world: World
) -> None:
    class Holding(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await f.op("look", self.look, effect="read", reattach=self.follow)

        async def look(self) -> Any:
            world.do("look")
            await current_op().hold("run-7")
            return await world.do_and_wait("hold")

        async def follow(self, handle: Any, cursor: Any) -> Any:
            return f"followed {handle}"

    _, running = await begun(lives, Holding)
    await until(lambda: world.did["hold"])
    session = await again(lives, Holding)
    assert await soon(session.wait(running)) == "followed run-7"
    assert world.did["look"] == 1


# --- answers in pieces


class Answer(Agent):
    """Streams the letters of a text. Cut, it goes on after the last committed one."""

    world: World
    text = "abcdef"

    @fiber
    async def work(self, f: Fiber) -> Any:
        return await f.op("ask", self.ask, effect="read", resume=self.resume)

    async def ask(self) -> str:
        self.world.do("ask")
        return await self.stream([])

    async def resume(self, partial: list[str]) -> str:
        self.world.do("resume after " + "".join(partial))
        return await self.stream(partial)

    async def stream(self, partial: list[str]) -> str:
        for letter in self.text[len(partial) :]:
            await self.world.gate(f"before {letter}").wait()
            await current_op().emit(letter)
        return self.text


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Answer.world = world


def let(world: World, letters: str) -> None:
    world.open(*(f"before {letter}" for letter in letters))


async def pieces(lives: Lives, session: Session[Any]) -> str:
    ops = sorted(await session.ops(), key=lambda op: op.step)
    return "".join([decode(one) for op in ops for one in await lives.store.chunks(op)])


@pytest.mark.not_evicted("evicted at every piece, it is cut at every piece")
async def test_an_answer_that_was_cut_goes_on_as_the_next_step_also_twice(lives: Lives, world: World) -> None:
    session, running = await begun(lives, Answer)
    let(world, "ab")
    await until(lambda: _reads(lives, session, "ab"))
    session = await again(lives, Answer)
    let(world, "cd")
    await until(lambda: _reads(lives, session, "abcd"))
    session = await again(lives, Answer)
    let(world, "ef")
    assert await soon(session.wait(running)) == "abcdef"
    assert world.order == ["ask", "resume after ab", "resume after abcd"]
    ops = sorted(await session.ops(), key=lambda op: op.step)
    assert [(op.step, op.outcome, op.chunks) for op in ops] == [(0, "cut", 2), (1, "cut", 2), (2, "done", 2)]
    assert [decode(op.result) for op in ops] == [["a", "b"], ["a", "b", "c", "d"], "abcdef"]


async def _reads(lives: Lives, session: Session[Any], text: str) -> bool:
    return await pieces(lives, session) == text


async def test_no_piece_is_lost_or_doubled_however_often_it_is_cut(lives: Lives, world: World) -> None:
    let(world, "abcdef")
    session, running = await begun(lives, Answer)
    assert await soon(session.wait(running)) == "abcdef"
    assert await pieces(lives, session) == "abcdef"


async def test_an_answer_without_a_committed_piece_is_asked_for_again(lives: Lives, world: World) -> None:
    _, running = await begun(lives, Answer)
    await until(lambda: world.did["ask"])
    session = await again(lives, Answer)
    let(world, "abcdef")
    assert await soon(session.wait(running)) == "abcdef"
    assert world.did["ask"] == 2


async def test_a_cut_answer_is_replayed_as_one(lives: Lives, world: World) -> None:
    class Twice(Answer):
        @fiber
        async def work(self, f: Fiber) -> Any:
            answer = await f.op("ask", self.ask, effect="read", resume=self.resume)
            after = await f.op("after", world.do, "after", effect="once")
            await world.gate("end").wait()
            return [answer, after]

    session, running = await begun(lives, Twice)
    let(world, "abc")
    await until(lambda: _reads(lives, session, "abc"))
    session = await again(lives, Twice)
    let(world, "def")
    await until(lambda: world.did["after"])
    await until(lambda: _after(session))
    asked = world.did["ask"]
    session = await again(lives, Twice)
    world.open("end")
    assert await soon(session.wait(running)) == ["abcdef", "after"]
    assert (world.did["ask"], world.did["after"]) == (asked, 1)


async def _after(session: Session[Any]) -> bool:
    return any(op.kind == "after" and op.outcome == "done" for op in await session.ops())


@pytest.mark.not_evicted("evicted at every piece, it begins anew for ever")
async def test_a_cut_answer_that_cannot_be_resumed_is_asked_for_anew(lives: Lives, world: World) -> None:
    class Anew(Answer):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await f.op("ask", self.ask, effect="read")

    session, running = await begun(lives, Anew)
    let(world, "ab")
    await until(lambda: _reads(lives, session, "ab"))
    session = await again(lives, Anew)
    let(world, "cdef")
    assert await soon(session.wait(running)) == "abcdef"
    assert world.did == {"ask": 2}
