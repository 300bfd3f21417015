"""A session as callers see it: address it, call it, look into it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..core.errors import NotFound, OwnedElsewhere
from ..core.facts import AlarmRow, EndedRow, EventRow, FiberRow, InputRow, OpRow
from ..core.identity import session_id
from ..core.names import check_name
from ..core.status import Facts, Status, status, why
from ..ports import Store
from . import alarms
from .agent import Agent, FiberMethod
from .answers import answer, check_answer, resolve
from .fibers import Running
from .host import Host
from .lifecycle import cancel
from .topics import Subscription
from .values import decode

A = TypeVar("A", bound=Agent)
P = ParamSpec("P")
T = TypeVar("T")


class Session(Generic[A]):
    """Holds nothing but the address: keep it, pass it on, use it after a restart."""

    __slots__ = ("_agent", "_host", "id", "key")

    def __init__(self, host: Host, agent: type[A], key: str) -> None:
        self._host = host
        self._agent = agent
        self.key = check_name(key, "the key of a session")
        self.id = session_id(agent.__name__, key)

    @overload
    async def call(
        self, method: Callable[Concatenate[A, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def call(self, method: FiberMethod[A, P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any: ...

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the agent, in its turn, and return what it returns."""
        return await self._host.call(self._agent, self.key, _name(method), args, kwargs)

    async def start(self, method: FiberMethod[A, P, T], *args: P.args, **kwargs: P.kwargs) -> Running[T]:
        """Start a fiber. When this returns, the fiber survives (P1); await what it returns for the result."""
        return await self._start(method, None, *args, **kwargs)

    async def start_once(
        self, key: str, method: FiberMethod[A, P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Running[T]:
        """Start a fiber, or join the one that was started with the same key (`accepted()` tells)."""
        return await self._start(method, check_name(key, "the key of a fiber"), *args, **kwargs)

    async def wait(self, fiber: str) -> Any:
        """The result of a fiber, whoever started it, also after a restart."""
        if isinstance(await self.fiber(fiber), FiberRow):
            with suppress(OwnedElsewhere):
                await self._host.wake(self._agent, self.key)
        return await self._host.result(fiber, None)

    async def cancel(self, fiber: str) -> bool:
        """Cancelled stays cancelled. False if it had ended already."""
        live = await self._host.wake(self._agent, self.key)
        return await self._host.act(live, cancel(live, fiber))

    async def resolve(self, op: str, *, happened: bool, result: Any = None) -> None:
        """Settle an op that is in doubt. A fiber that waits for it goes on."""
        found = await self._host.store.open_op(op)
        if found is None or found.session != self.id or found.outcome != "doubt":
            raise NotFound(f"(no op {op} is in doubt in this session)")
        live = await self._host.wake(self._agent, self.key)
        await self._host.act(live, resolve(live, op, happened=happened, result=result))

    async def answer(self, fiber: str, said: str) -> None:
        """Answer a fiber that waits: `retry`, `continue` or `abandon`."""
        check_answer(said)
        row = await self._host.store.fiber(fiber)
        if row is None or row.session != self.id or row.parked is None:
            raise NotFound(f"(no fiber {fiber} waits for an answer in this session)")
        live = await self._host.wake(self._agent, self.key)
        await self._host.act(live, answer(live, fiber, said))

    async def run_alarm(self, alarm: str) -> Running[Any]:
        """Fire an alarm by hand."""
        live = await self._host.wake(self._agent, self.key)
        return await self._host.act(live, alarms.run_by_hand(live, alarm))

    async def cancel_alarm(self, alarm: str) -> bool:
        live = await self._host.wake(self._agent, self.key)
        return await self._host.act(live, alarms.cancel(live, alarm))

    def subscribe(self) -> AbstractContextManager[Subscription]:
        """Hear state changes and broadcasts, also while the session is evicted and woken."""
        return self._host.topics.subscribe(self.id)

    # --- looking: reads never wait for the session's turn

    async def state(self) -> Any:
        found = await self._host.store.state(self.id)
        return deepcopy(self._agent.initial_state) if found is None else decode(found[0])

    async def fibers(self) -> list[FiberRow]:
        return await self._host.store.fibers(self.id)

    async def fiber(self, fiber: str) -> FiberRow | EndedRow:
        """One fiber: its open row, or what became of it."""
        found = await self._host.store.fiber(fiber) or await self._host.store.ended_fiber(fiber)
        if found is None or found.session != self.id:
            raise NotFound(f"(fiber {fiber})")
        return found

    async def ended(self, limit: int = 100) -> list[EndedRow]:
        return await self._host.store.ended(self.id, limit=limit)

    async def ops(self, limit: int = 100) -> list[OpRow]:
        return await self._host.store.ops(self.id, limit=limit)

    async def doubts(self) -> list[OpRow]:
        return [op for op in await self._host.store.open_ops(self.id) if op.outcome == "doubt"]

    async def alarms(self) -> list[AlarmRow]:
        return await self._host.store.alarms(self.id)

    async def inbox(self) -> list[InputRow]:
        return await self._host.store.inputs(self.id)

    async def events(self, after: int = 0, limit: int = 1000) -> list[EventRow]:
        return await self._host.store.events(self.id, after=after, limit=limit)

    async def status(self) -> Status:
        facts = await facts_of(self._host.store, self.id)
        return Status.IDLE if facts is None else status(facts)

    async def why(self) -> str:
        """Why it has its status, in words."""
        facts = await facts_of(self._host.store, self.id)
        return "it does not exist yet" if facts is None else why(facts)

    async def _start(
        self, method: FiberMethod[A, P, T], key: str | None, *args: Any, **kwargs: Any
    ) -> Running[T]:
        fiber_method = self._agent.fiber_method(_name(method))
        live = await self._host.wake(self._agent, self.key)
        running = fiber_method.start(live.agent, key, *args, **kwargs)
        await running.started()
        return running


async def facts_of(store: Store, session: str) -> Facts | None:
    """What the status of a session is derived from."""
    row = await store.session(session)
    if row is None:
        return None
    fibers = tuple(await store.fibers(session))
    return Facts(row, fibers, tuple(await store.open_ops(session)), await store.owner_lives(session))


def _name(method: Any) -> str:
    if isinstance(method, str):
        return check_name(method, "a method")
    return (
        method.name
        if isinstance(method, FiberMethod)
        else check_name(getattr(method, "__name__", ""), "a method")
    )
