"""`perdure resolve`, `answer`, `cancel` and `run-alarm`: beside a host, and without one."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure import FiberCancelled, FiberFailed, Runtime
from perdure.cli import run
from perdure.cli.inputs import Refused, ask
from tests.cli.conftest import Perdure, Shop, World, eventually, perdure_process


async def doubt_of(world: World, key: str = "ada") -> str:
    (op,) = await world.shop(key).doubts()
    return op.id


async def nothing_left(rt: Runtime) -> bool:
    return not await rt.session(Shop, "ada").inbox()


async def test_resolve_settles_a_doubt_and_the_fiber_goes_on(world: World, perdure: Perdure) -> None:
    fiber = await world.doubtful()
    op = await doubt_of(world)
    said = await perdure("resolve", op, "--happened", "--result", '"no. 7"', "--store", str(world.path))
    assert (said.code, said.out) == (0, f"op {op} is settled: it happened\n")
    assert await world.shop().wait(fiber) == "book: no. 7"
    assert await world.shop().doubts() == []


async def test_resolve_lets_the_op_run_that_did_not_happen(
    world: World, perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    fiber = await world.doubtful()

    async def charge(self: Shop, item: str) -> str:
        return "no. 8"

    monkeypatch.setattr(Shop, "charge", charge)
    said = await perdure(
        "resolve", await doubt_of(world), "--did-not-happen", "-s", str(world.path), "--json"
    )
    assert said.json["accepted"]
    assert said.json["taken"]
    assert await world.shop().wait(fiber) == "book: no. 8"


async def test_a_real_process_settles_beside_the_host(world: World) -> None:
    fiber = await world.doubtful()
    op = await doubt_of(world)
    said = await asyncio.to_thread(
        perdure_process, "resolve", op, "--happened", "--json", PERDURE_STORE=f"sqlite:///{world.path}"
    )
    assert (said.code, said.err) == (0, "")
    assert said.json["taken"]
    assert await world.shop().wait(fiber) == "book: None"


async def test_answer_abandon_ends_the_fiber(world: World, perdure: Perdure) -> None:
    fiber = await world.doubtful()
    said = await perdure("answer", fiber, "abandon", "-s", str(world.path))
    assert (said.code, said.out) == (0, f"fiber {fiber} has its answer: abandon\n")
    with pytest.raises(FiberFailed, match="gave this fiber up"):
        await world.shop().wait(fiber)


async def test_answer_continue_goes_on_as_if_it_had_happened(world: World, perdure: Perdure) -> None:
    fiber = await world.doubtful()
    assert (await perdure("answer", fiber, "continue", "-s", str(world.path))).code == 0
    assert await world.shop().wait(fiber) == "book: None"


async def test_cancel_ends_a_running_fiber_for_good(world: World, perdure: Perdure) -> None:
    running = await world.shop().start(Shop.watch)
    fiber = await running.started()
    said = await perdure("cancel", fiber, "-s", str(world.path))
    assert (said.code, said.out) == (0, f"fiber {fiber} is cancelled\n")
    with pytest.raises(FiberCancelled):
        await running
    again = await perdure("cancel", fiber, "-s", str(world.path))
    assert again.code == 2
    assert f"fiber {fiber} has ended already: cancelled" in again.err


async def test_run_alarm_fires_it_now_and_keeps_its_times(world: World, perdure: Perdure) -> None:
    alarm = await world.shop().call(Shop.remember, "stretch")
    due_at = (await world.shop().alarms())[0].due_at
    with world.shop().subscribe() as heard:
        for named in (alarm, "hourly"):
            said = await perdure("run-alarm", "Shop/ada", named, "-s", str(world.path))
            assert (said.code, said.out) == (0, f"alarm {named} was fired\n")
            assert (await asyncio.wait_for(heard.next(), 10)).body == {"reminded": "stretch"}
    assert [one.due_at for one in await world.shop().alarms()] == [due_at]


async def test_without_a_host_it_waits_in_the_inbox_for_the_next(left: World, perdure: Perdure) -> None:
    found = (await perdure("show", "Shop/ada", "-s", str(left.path), "--json")).json
    op, fiber = found["doubts"][0]["id"], found["doubts"][0]["fiber"]
    said = await perdure("resolve", op, "--happened", "--result", "9", "-s", str(left.path), "--wait", "0")
    assert said.code == 0
    assert "accepted, and durable: it waits in the inbox" in said.out
    assert "no live host has this session; the next one that starts takes it" in said.out
    shown = await perdure("show", "Shop/ada", "-s", str(left.path))
    assert "INBOX" in shown.out
    async with Runtime(f"sqlite:///{left.path}", agents=[Shop]) as rt:
        assert await rt.session(Shop, "ada").wait(fiber) == "book: 9"


async def test_a_host_that_is_too_slow_is_said_so(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    fiber = await world.doubtful()
    with ThreadPoolExecutor(1) as beside:
        command = ("answer", fiber, "abandon", "-s", str(world.path), "--wait", "0")
        assert beside.submit(run, command).result() == 0  # the host's event loop stands still here
    assert "its host has not taken it yet; it will, or the next one" in capsys.readouterr().out
    await eventually(world.shop().ended)
    assert [one.outcome for one in await world.shop().ended()] == ["failed"]


async def test_what_no_longer_fits_is_refused_with_the_reason(left: World, perdure: Perdure) -> None:
    found = (await perdure("show", "Shop/ada", "-s", str(left.path), "--json")).json
    op = found["doubts"][0]["id"]
    for _ in range(2):
        await perdure("resolve", op, "--happened", "-s", str(left.path), "--wait", "0")
    async with Runtime(f"sqlite:///{left.path}", agents=[Shop]) as rt:
        await eventually(lambda: nothing_left(rt))
    events = (await perdure("show", "Shop/ada", "-s", str(left.path), "--json")).json["events"]
    assert [one["type"] for one in events[-2:]] == ["op.resolved", "input.refused"]


async def test_a_refusal_is_an_error_with_the_hosts_reason(world: World) -> None:
    await world.doubtful()
    session = await world.rt.store.session(world.shop().id)
    assert session is not None
    with pytest.raises(Refused, match="no op nope is in doubt"):
        await ask(world.rt.store, session, "resolve", {"op": "nope", "happened": True}, wait=10)


# --- bad input


async def test_what_is_not_there_is_the_callers_fault(world: World, perdure: Perdure) -> None:
    running = await world.shop().start(Shop.watch)
    fiber = await running.started()
    for arguments, words in (
        (("resolve", "nope", "--happened"), "no op nope is in doubt"),
        (("resolve", "nope"), "--happened or --did-not-happen"),
        (("resolve", "nope", "--did-not-happen", "--result", "1"), "has no --result"),
        (("resolve", "nope", "--happened", "--result", "{"), "--result is not JSON"),
        (("answer", "nope", "retry"), "fiber nope"),
        (("answer", fiber, "retry"), "is not waiting for an answer"),
        (("cancel", "nope"), "fiber nope"),
        (("run-alarm", "Shop/ada", "nope"), "alarm nope of Shop/ada"),
        (("run-alarm", "Shop/nobody", "nope"), "session Shop/nobody"),
    ):
        said = await perdure(*arguments, "-s", str(world.path), "--json")
        assert said.code == 2
        assert words in said.error["message"]
    assert await world.shop().inbox() == []


async def test_an_op_in_flight_cannot_be_settled(world: World, perdure: Perdure) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    async def call() -> str:
        going.set()
        await go.wait()
        return "done"

    class Slow(Shop):
        async def work(self) -> str:
            return await self.run_fiber("slow", lambda f: f.op("pay", call, effect="once"))

    working = asyncio.ensure_future(world.rt.session(Slow, "x").call(Slow.work))
    await going.wait()
    (op,) = await world.rt.store.open_ops(world.rt.session(Slow, "x").id)
    said = await perdure("resolve", op.id, "--did-not-happen", "-s", str(world.path))
    assert said.code == 2
    assert "is in flight, not in doubt" in said.err
    go.set()
    assert await working == "done"
