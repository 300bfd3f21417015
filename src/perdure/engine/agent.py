"""What a developer writes: a class whose sessions survive."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from ..core.errors import BadInput, NotFound, Unserialisable
from ..core.facts import AlarmRow, FiberRow
from ..core.names import check_name
from . import alarms
from .fibers import Fiber, Running, current_fiber
from .lifecycle import cancel, start, take_over
from .recovery import Continue, Fail, FiberRecovery, Finish, to_take_over
from .schedules import Missed, When
from .values import decode, encode, shape_of

if TYPE_CHECKING:
    from .lifecycle import Body
    from .live import Live

A = TypeVar("A", bound="Agent")
P = ParamSpec("P")
T = TypeVar("T")

NO_ARGUMENTS = b'{"args":[],"kwargs":{}}'

Upgrade = Callable[[int, dict[str, Any]], dict[str, Any]]
"""Takes the old version and {"args", "kwargs", "stash"}; returns the same for this version."""


class FiberMethod(Generic[A, P, T]):
    """A method that runs as a fiber. Cut, it is entered again with its arguments and its stash."""

    def __init__(
        self, body: Callable[Concatenate[A, Fiber, P], Awaitable[T]], version: int, upgrade: Upgrade | None
    ) -> None:
        self.body = body
        self.version = version
        self.upgrade = upgrade
        self.name = self.__name__ = body.__name__
        self._signature = inspect.signature(body)
        self.__doc__ = body.__doc__

    @overload
    def __get__(self, agent: None, owner: type[A]) -> FiberMethod[A, P, T]: ...

    @overload
    def __get__(self, agent: A, owner: type[A]) -> BoundFiber[P, T]: ...

    def __get__(self, agent: A | None, owner: type[A]) -> FiberMethod[A, P, T] | BoundFiber[P, T]:
        return self if agent is None else BoundFiber(self, agent)

    def start(self, agent: A, key: str | None, *args: P.args, **kwargs: P.kwargs) -> Running[T]:
        """Start it on `agent`; its arguments are stored in its row."""
        self._signature.bind(agent, None, *args, **kwargs)
        stored = encode({"args": args, "kwargs": kwargs}, f"the arguments of {self.name}")
        body, shape = self.bound(agent, stored), shape_of(self.body)
        if (cut := _taken_over(agent.live)) is not None:
            row = cut._replace(kind="method", version=self.version, args=stored)
            return take_over(agent.live, row, self.name, body, shape)
        return start(
            agent.live,
            self.name,
            body,
            kind="method",
            version=self.version,
            args=stored,
            key=key,
            shape=shape,
        )

    def check_fits(self, stored: bytes) -> None:
        """Raise `BadInput` if the code no longer takes these arguments."""
        given = decode(stored)
        try:
            self._signature.bind(None, None, *given["args"], **given["kwargs"])
        except TypeError as error:
            raise BadInput(f"({self.name}: {error})") from None

    def bound(self, agent: A, stored: bytes) -> Body:
        """The body with its stored arguments, so that every life gets the same ones."""
        given = decode(stored)
        body: Callable[..., Awaitable[T]] = self.body

        def enter(fiber: Fiber) -> Awaitable[T]:
            return body(agent, fiber, *given["args"], **given["kwargs"])

        return enter


class BoundFiber(Generic[P, T]):
    """A fiber method of one agent. Calling it starts the fiber."""

    def __init__(self, method: FiberMethod[Any, P, T], agent: Agent) -> None:
        self._method = method
        self._agent = agent
        self.__name__ = method.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Running[T]:
        return self._method.start(self._agent, None, *args, **kwargs)

    def with_key(self, key: str, *args: P.args, **kwargs: P.kwargs) -> Running[T]:
        """Start it, or join the fiber that was started with the same key."""
        return self._method.start(self._agent, check_name(key, "the key of a fiber"), *args, **kwargs)


@overload
def fiber(body: Callable[Concatenate[A, Fiber, P], Coroutine[Any, Any, T]]) -> FiberMethod[A, P, T]: ...


@overload
def fiber(
    *, version: int = 1, upgrade: Upgrade | None = None
) -> Callable[[Callable[Concatenate[A, Fiber, P], Coroutine[Any, Any, T]]], FiberMethod[A, P, T]]: ...


def fiber(body: Any = None, *, version: int = 1, upgrade: Upgrade | None = None) -> Any:
    """Make a method a fiber: `async def work(self, f: Fiber, …)`. Calling it starts it.

    `version` names the shape of its arguments and stash; `upgrade` takes up those of older ones.
    """

    def decorate(method: Callable[..., Any]) -> FiberMethod[Any, ..., Any]:
        return FiberMethod(method, version, upgrade)

    return decorate if body is None else decorate(body)


class Agent:
    """Subclass it. One instance is one session in memory; what must survive goes through it."""

    initial_state: ClassVar[Any] = None
    """The state of a session that never set one."""

    def __init__(self, live: Live) -> None:
        self.live = live

    # --- to override

    async def on_start(self) -> None:
        """The session was woken on this host."""

    async def on_fiber_recovered(self, cut: FiberRecovery) -> Finish | Fail | Continue | None:
        """A fiber that was started with `run_fiber` was cut. Start it again here with
        `run_fiber`, or return what becomes of it; None means it is finished."""

    async def on_state_changed(self, state: Any, version: int) -> None:
        """The state was replaced, and the new one is on disk."""

    # --- to use

    @property
    def session_id(self) -> str:
        return self.live.id

    @property
    def key(self) -> str:
        return self.live.row.key

    def run_fiber(
        self, name: str, body: Callable[[Fiber], Coroutine[Any, Any, T]], *, key: str | None = None
    ) -> Running[T]:
        """Start a fiber. Await the result for what `body` returns, or leave it running.

        The same `key` joins the fiber that was started with it, running or ended.
        """
        check_name(name, "a fiber")
        if key is not None:
            check_name(key, "the key of a fiber")
        if (cut := _taken_over(self.live)) is not None:
            return take_over(self.live, cut, name, body, shape_of(body))
        return start(self.live, name, body, key=key, shape=shape_of(body))

    def stash(self, data: Any) -> Awaitable[None]:
        """`Fiber.stash` of the fiber that is running here."""
        return current_fiber().stash(data)

    def stash_now(self, data: Any) -> None:
        """`Fiber.stash_now` of the fiber that is running here."""
        current_fiber().stash_now(data)

    def keep_alive(self) -> AbstractAsyncContextManager[None]:
        """While entered, the session is not evicted, and is woken again if its host dies."""
        return self.live.keep_alive()

    async def keep_alive_while(self, work: Awaitable[T]) -> T:
        async with self.live.keep_alive():
            return await work

    async def schedule(
        self,
        when: When,
        method: Callable[..., Any] | str,
        *args: Any,
        key: str | None = None,
        missed: Missed = "collapse",
    ) -> AlarmRow:
        """Call `method(*args)` at `when`: a datetime, a delay, `Every` or `Cron`."""
        return await alarms.schedule(self.live, when, self._alarm_target(method), args, key, missed)

    async def alarms(self) -> list[AlarmRow]:
        return await self.live.host.store.alarms(self.live.id)

    async def cancel_alarm(self, alarm: str) -> bool:
        """False if there was no such alarm any more."""
        return await alarms.cancel(self.live, alarm)

    @property
    def state(self) -> Any:
        """A copy of the state."""
        return deepcopy(self.initial_state) if self.live.state is None else decode(self.live.state)

    async def set_state(self, value: Any) -> int:
        """Replace the state. Once awaited it is on disk, and subscribers have been told."""
        version = await self.live.set_state(value)
        await self.on_state_changed(self.state, version)
        return version

    def broadcast(self, body: Any) -> None:
        """Tell all subscribers, after the commits made so far. It is not stored."""
        self.live.broadcast(body)

    async def cancel_fiber(self, fiber: str) -> bool:
        """Cancelled stays cancelled, also after a restart. False if it had ended already."""
        return await cancel(self.live, fiber)

    # --- what the engine uses

    @classmethod
    def fiber_method(cls, name: str) -> FiberMethod[Any, ..., Any]:
        found = getattr(cls, name, None)
        if not isinstance(found, FiberMethod):
            raise NotFound(f"({cls.__name__} has no fiber {name!r})")
        return cast("FiberMethod[Any, ..., Any]", found)

    @classmethod
    def fiber_again(cls, agent: Agent, row: FiberRow) -> tuple[FiberRow, Body]:
        """The row and the body to go on with. Raises if the code no longer understands it."""
        method = cls.fiber_method(row.name)
        upgraded = _upgraded(method, row)
        stored = upgraded.args or NO_ARGUMENTS
        method.check_fits(stored)
        return upgraded, method.bound(agent, stored)

    def _alarm_target(self, method: Callable[..., Any] | str) -> str:
        name = check_name(method if isinstance(method, str) else getattr(method, "__name__", ""), "a method")
        target = getattr(type(self), name, None)
        if name.startswith("_") or not (callable(target) or isinstance(target, FiberMethod)):
            raise NotFound(f"({type(self).__name__} has no method {name!r})")
        return name


def _taken_over(live: Live) -> FiberRow | None:
    """The cut fiber of this session whose hook is running, if nothing has taken it over yet."""
    taking = to_take_over()
    if taking is None or taking.row.session != live.id:
        return None
    taking.done = True
    return taking.row


def _upgraded(method: FiberMethod[Any, ..., Any], row: FiberRow) -> FiberRow:
    if row.version == method.version:
        return row
    if row.version > method.version or method.upgrade is None:
        raise BadInput(f"({method.name} is version {method.version}, the fiber was started by {row.version})")
    given: dict[str, Any] = decode(row.args or NO_ARGUMENTS)
    try:
        new = method.upgrade(row.version, {**given, "stash": decode(row.stash)})
        args = encode({"args": new["args"], "kwargs": new["kwargs"]}, f"the arguments of {method.name}")
        stash = None if new.get("stash") is None else encode(new["stash"], "a stash")
    except Unserialisable:
        raise
    except Exception as error:
        raise BadInput(f"(the upgrade of {method.name} failed: {type(error).__name__}: {error})") from error
    return row._replace(version=method.version, args=args, stash=stash)
