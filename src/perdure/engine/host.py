"""A host: a process that runs sessions. It wakes them, sweeps for work, evicts and hands over."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ..core.errors import (
    Draining,
    Fenced,
    Interrupted,
    NotFound,
    OwnedElsewhere,
    PerdureError,
    StoreUnavailable,
)
from ..core.facts import Due, EndedRow, FiberRow, Taken
from ..core.identity import session_id
from ..ports import Clock, Store
from . import alarms, inbox
from .agent import Agent, BoundFiber, FiberMethod
from .fibers import Fiber, leave_fiber
from .lifecycle import Body
from .live import Live
from .outcomes import Outcomes
from .recovery import Recovery
from .settings import Settings
from .tenure import Tenure
from .topics import Topics
from .values import decode, encode

log = logging.getLogger("perdure")

PRUNE_EVERY = 60.0

T = TypeVar("T")


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


async def _value(returned: Any) -> Any:
    return await returned if inspect.isawaitable(returned) else returned


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Host:
    """Everything in memory here can be lost at any moment; the store holds what counts."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        agents: Iterable[type[Agent]] = (),
        settings: Settings | None = None,
        new_id: Callable[[str], str] = new_id,
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings or Settings()
        self.new_id = new_id
        self.id = new_id("h")
        self.label = f"{socket.gethostname()} process {os.getpid()}"
        self.tenure = Tenure(store, clock, self.settings, self.id, self.label)
        self.topics = Topics()
        self.draining = False
        self._agents: dict[str, type[Agent]] = {}
        self._live: dict[str, Live] = {}
        self._waking: dict[str, asyncio.Future[Live]] = {}
        self._unwinding: dict[str, asyncio.Future[Any]] = {}
        self._outcomes = Outcomes(store, clock)
        self._recovery = Recovery()
        self._poked = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[Any]] = set()
        self._tending: set[str] = set()
        self._unknown: set[str] = set()
        self._swept_at = 0
        self._pruned_at = 0.0
        self._hurried = asyncio.Event()
        for agent in agents:
            self.register(agent)

    # --- life

    async def begin(self) -> None:
        """Own a lease, take up what others left, and keep looking."""
        await asyncio.to_thread(self.tenure.renew)
        self.tenure.begin()
        loop = asyncio.get_running_loop()
        self.store.on_change(self._hear(loop))
        await self.sweep()
        self._sweeping = loop.create_task(self._keep_sweeping())

    async def end(self) -> None:
        """Forget everything. What is not handed over is found by the next host."""
        self.draining = True
        tasks: list[asyncio.Future[Any]] = [] if self._sweeping is None else [self._sweeping]
        tasks += [task for live in self._live.values() for task in live.stop()]
        tasks += self._aside
        tasks += self._waking.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._unwinding.values(), return_exceptions=True)
        self._live.clear()
        self._outcomes.unknown_all(Draining("(the fiber goes on at the next host)"))
        self.tenure.end()

    def register(self, agent: type[Agent]) -> None:
        known = self._agents.setdefault(agent.__name__, agent)
        if known is not agent:
            raise ValueError(f"two agents are called {agent.__name__}")

    def _hear(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._poked.set)

        return notify

    # --- waking

    async def wake(self, agent: type[Agent], key: str) -> Live:
        """The session, in memory and owned by this host. Its recovery has been started."""
        if self.draining:
            raise Draining
        if self._agents.get(agent.__name__) is not agent:
            self.register(agent)
        session = session_id(agent.__name__, key)
        live = self._live.get(session)
        if live is not None and not live.lost:
            if self.clock.monotonic() - live.checked_at < self.settings.hold / 2 or await live.still_ours():
                live.touch()
                if not live.started:
                    await self._start(live)
                return live
            self.replaced(live)
        waking = self._waking.get(session)
        if waking is None:
            waking = asyncio.ensure_future(self._wake(agent, key, session))
            self._waking[session] = waking
            waking.add_done_callback(lambda _: self._waking.pop(session, None))
        return await asyncio.shield(waking)

    async def _wake(self, agent: type[Agent], key: str, session: str) -> Live:
        leave_fiber()
        while (unwinding := self._unwinding.get(session)) is not None and not unwinding.done():
            await asyncio.shield(unwinding)
        taken = await self._take(agent.__name__, key)
        live = Live(self, taken, agent)
        self._live[session] = live
        log.info("session %s is awake, epoch %d", live.label, taken.lease.epoch)
        for row in taken.fibers:
            if row.parked is None:
                self.recover(live, row, taken.suspects.get(row.host or ""))
        await self._take_inputs(live)
        await self._start(live)
        return live

    async def _take_inputs(self, live: Live) -> None:
        """What was accepted while the session slept comes before the request that woke it."""
        try:
            async with live.tending:
                await inbox.drain(live)
        except PerdureError as later:
            log.warning("session %s takes its inputs later: %s", live.label, later)

    async def _start(self, live: Live) -> None:
        """Let the agent prepare itself. If it fails, the next request tries again."""
        if type(live.agent).on_start is not Agent.on_start:
            async with live.turnstile.turn():
                if not live.started:
                    await live.agent.on_start()
        live.started = True

    async def _take(self, agent: str, key: str) -> Taken:
        """Take the session; wait out a host that took it a moment ago and has no work in it."""
        hold = int(self.settings.hold * 1000)
        for _ in range(4):
            try:
                return await self.store.take(agent, key, host=self.id, hold=hold, lenient=self.tenure.lenient)
            except OwnedElsewhere:
                await self.clock.sleep(self.settings.hold / 3)
        return await self.store.take(agent, key, host=self.id, hold=hold, lenient=self.tenure.lenient)

    # --- calling

    async def call(self, agent: type[Agent], key: str, method: str, args: Any, kwargs: Any) -> Any:
        """Run a method of the session, in its turn."""
        live = await self.wake(agent, key)
        target: Any = getattr(live.agent, method, None)
        if method.startswith("_") or not callable(target):
            raise NotFound(f"({agent.__name__} has no method {method!r})")
        if isinstance(target, BoundFiber):
            return await live.agent.fiber_method(method).start(live.agent, None, *args, **kwargs)
        return await self.act(live, self._in_turn(live, target, args, kwargs))

    async def act(self, live: Live, work: Coroutine[Any, Any, T]) -> T:
        """Do what a caller asks of a session. The caller may go away; the work goes on."""
        live.calls += 1
        task = live.spawn(work)
        task.add_done_callback(live.called)
        try:
            return await asyncio.shield(task)
        except Fenced:
            raise OwnedElsewhere(f"({live.label} was taken over during the call)") from None
        except asyncio.CancelledError:
            if not task.cancelled() or _being_cancelled():
                raise
            if self.draining:
                raise Draining(f"({live.label} goes on at the next host)") from None
            raise OwnedElsewhere(f"({live.label} was taken over during the call)") from None

    async def _in_turn(self, live: Live, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        leave_fiber()
        async with live.turnstile.turn():
            return await _value(target(*args, **kwargs))

    def alarm_body(self, live: Live, method: str, args: bytes) -> Body:
        """What an alarm does: call the method in its turn, within the alarm's fiber."""
        target: Any = getattr(type(live.agent), method, None)
        if isinstance(target, FiberMethod):
            return live.agent.fiber_method(method).bound(
                live.agent, encode({"args": decode(args), "kwargs": {}}, "an alarm")
            )

        async def body(_: Fiber) -> Any:
            if target is None:
                raise NotFound(f"({type(live.agent).__name__} has no method {method!r})")
            async with live.turnstile.turn():
                return await _value(getattr(live.agent, method)(*decode(args)))

        return body

    # --- fibers

    def recover(self, live: Live, row: FiberRow, suspect: str | None = None) -> None:
        self._recovery.recover(live, row, suspect)

    def expect(self, fiber: str) -> None:
        self._outcomes.expect(fiber)

    def finished(self, ended: EndedRow, cause: BaseException | None) -> None:
        self._outcomes.finished(ended, cause)

    def parked(self, fiber: str, question: dict[str, Any]) -> None:
        self._outcomes.unknown(fiber, Interrupted(f"({question['message']})"))

    async def result(self, fiber: str, shape: type[Any] | None) -> Any:
        return await self._outcomes.result(fiber, shape)

    # --- losing a session

    def replaced(self, live: Live) -> None:
        """Another host owns the session: cancel its tasks, and let them end before it is woken here."""
        if live.lost:
            return
        log.warning("session %s was taken over by another host; this one writes nothing more", live.label)
        for fiber in live.fibers:
            self._outcomes.unknown(fiber, OwnedElsewhere(f"({live.label})"))
        self._unwind(live)

    def evict_in_mid_work(self, live: Live) -> None:
        """Drop the session from memory right now, in mid-work, and take it up again."""
        if live.lost or live.calls or live.launching or live.turnstile.taken or live.pending or self.draining:
            return
        for fiber in live.fibers:
            self._outcomes.moved(fiber)
        working = bool(live.fibers)
        unwinding = self._unwind(live)
        if working:
            self.aside(self._wake_after(unwinding, type(live.agent), live.row.key))

    async def _wake_after(self, unwinding: asyncio.Future[Any], agent: type[Agent], key: str) -> None:
        await unwinding
        await self.wake(agent, key)

    def _unwind(self, live: Live) -> asyncio.Future[Any]:
        session = live.id
        self._live.pop(session, None)
        unwinding = asyncio.gather(*live.stop(), return_exceptions=True)
        self._unwinding[session] = unwinding
        unwinding.add_done_callback(lambda done: self._unwound(session, done))
        return unwinding

    def _unwound(self, session: str, done: asyncio.Future[Any]) -> None:
        """Forget it, unless the session was woken and is unwinding again."""
        if self._unwinding.get(session) is done:
            del self._unwinding[session]

    def _evict_idle(self) -> None:
        now = self.clock.monotonic()
        for live in list(self._live.values()):
            if not live.busy and now - live.used_at >= self.settings.idle_after:
                del self._live[live.id]
                live.lost = True
                log.info("session %s is evicted", live.label)

    # --- the loop

    def poke(self) -> None:
        """Something is due earlier than the loop may think."""
        self._poked.set()

    async def sweep(self) -> None:
        """Wake every session that wants it and that nobody else has. Never does the work itself."""
        self._swept_at = self.store.now()
        for due in await self.store.due(self.id, lenient=self.tenure.lenient):
            self._mind_unknown(due.agent)
            if due.agent in self._agents and due.session not in self._tending and not self.draining:
                self._tending.add(due.session)
                self.aside(self._tend(due))

    def _mind_unknown(self, agent: str) -> None:
        if agent not in self._agents and agent not in self._unknown:
            self._unknown.add(agent)
            log.warning(
                "there is work for agent %s, which this host does not know: Runtime(…, agents=[…])", agent
            )

    async def _tend(self, due: Due) -> None:
        try:
            live = await self.wake(self._agents[due.agent], due.key)
            async with live.tending:
                await inbox.drain(live)
                await alarms.fire_due(live)
        except (OwnedElsewhere, Draining, StoreUnavailable) as later:
            log.debug("session %s %r is left for later: %s", due.agent, due.key, later)
        except Fenced:
            return
        finally:
            self._tending.discard(due.session)

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                await self._wait_for_work()
                await self.sweep()
                self._evict_idle()
                await self._prune()
            except PerdureError as error:
                log.warning("the sweep is tried again: %s", error)
                await self.clock.sleep(self.store.poll_every)

    async def _wait_for_work(self) -> None:
        self._poked.clear()
        next_due_at = await self.store.next_due_at(self._swept_at)
        wait = self.store.poll_every
        if next_due_at is not None:
            wait = min(wait, max(0.001, (next_due_at - self.store.now()) / 1000))
        sleeping = asyncio.ensure_future(self.clock.sleep(wait))
        poked = asyncio.ensure_future(self._poked.wait())
        try:
            await asyncio.wait((sleeping, poked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            poked.cancel()

    async def _prune(self) -> None:
        now = self.clock.monotonic()
        if now - self._pruned_at >= PRUNE_EVERY:
            self._pruned_at = now
            while await self.store.prune():
                await self.clock.sleep(0)

    def aside(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._set_aside)
        return task

    def _set_aside(self, task: asyncio.Task[Any]) -> None:
        self._aside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a session could not be tended", exc_info=error)

    # --- handing over

    async def drain(self, grace: float | None = None) -> None:
        """Stop claiming, and hand every session over as soon as that loses nothing."""
        self.draining = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*self._waking.values(), return_exceptions=True)
        deadline = self.clock.monotonic() + (self.settings.grace if grace is None else grace)
        await asyncio.gather(*(self._hand_over(live, deadline) for live in list(self._live.values())))

    def hurry(self) -> None:
        """End the grace period."""
        self._hurried.set()

    async def _hand_over(self, live: Live, deadline: float) -> None:
        """Cancel what can be taken up elsewhere; let a `once` op finish while there is time."""
        for fiber in live.fibers.values():
            fiber.stopping = True
        never_called = [op for fiber in live.fibers.values() for op in fiber.never_called]
        while live.fibers and self.clock.monotonic() < deadline and not self._hurried.is_set():
            for fiber in list(live.fibers.values()):
                if fiber.task is not None and all(op.safe_to_cut for op in fiber.in_flight):
                    fiber.task.cancel()
            await self.clock.sleep(0.01)
        try:
            if not live.lost:
                await live.hand_over(*never_called)
        except (Fenced, StoreUnavailable) as failed:
            log.warning("session %s could not be handed over: %s", live.label, failed)
