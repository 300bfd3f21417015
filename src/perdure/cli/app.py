"""The commands. Each one reads what it needs, or leaves one input; none runs a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import orjson
import typer

from ..core.errors import BadInput, NotFound
from ..core.facts import SessionRow
from ..core.status import Status
from ..ports import Store
from . import addresses, views
from .addresses import beside_the_host
from .inputs import Accepted, ask
from .words import installed_version, to_json

T = TypeVar("T")

app = typer.Typer(
    help="Look into a store of durable agents, and settle what waits for a person.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StoreOption = Annotated[
    str | None,
    typer.Option("--store", "-s", metavar="URL", help="URL or SQLite file; default: $PERDURE_STORE."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, errors too.")]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait for a host to take it.")
]


class Answer(StrEnum):
    RETRY = "retry"
    CONTINUE = "continue"
    ABANDON = "abandon"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and do nothing else.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"perdure {installed_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def ls(
    store: StoreOption = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    status: Annotated[Status | None, typer.Option(help="Only sessions with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    after: Annotated[str, typer.Option(metavar="ID", help="Go on after this session.")] = "",
    as_json: JsonOption = False,
) -> None:
    """List the sessions. With each: status, open fibers, doubts, next alarm."""

    async def read(opened: Store) -> tuple[list[views.View], int]:
        found: list[views.View] = []
        async for one in views.overviews(opened, after):
            if agent in (None, one["agent"]) and status in (None, one["status"]):
                found.append(one)
            if len(found) > limit:
                break
        return found, opened.now()

    found, now = _with(store, read)
    shown, more = found[:limit], len(found) > limit
    if as_json:
        typer.echo(to_json({"sessions": shown, "after": shown[-1]["id"] if more else None}))
    else:
        from . import paint

        paint.overviews(shown, now, more=more)


@app.command()
def show(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="An id, or Agent/key.")],
    store: StoreOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Ended fibers, ops and events: the last so many.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show one session. Why it has its status, fibers, doubts, alarms, inbox, ops, events."""

    async def read(opened: Store) -> views.View:
        return await views.portrait(opened, await addresses.find_session(opened, session), limit)

    found = _with(store, read)
    if as_json:
        typer.echo(to_json(found))
    else:
        from . import paint

        paint.portrait(found)


@app.command()
def resolve(
    op: Annotated[str, typer.Argument(metavar="OP", help="The id of an op that is in doubt.")],
    happened: Annotated[
        bool | None, typer.Option("--happened/--did-not-happen", help="What you found out.")
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="What it returned, if it happened. Default: null.")
    ] = None,
    store: StoreOption = None,
    wait: WaitOption = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Settle an op that is in doubt. A fiber that waits for it goes on."""
    if happened is None:
        raise BadInput("(say what you found out: --happened or --did-not-happen)")
    if result is not None and not happened:
        raise BadInput("(an op that did not happen has no --result)")
    body = {"op": op, "happened": happened, "result": _parsed(result)}

    async def put(opened: Store) -> Accepted:
        row = await addresses.find_doubt(opened, op)
        return await ask(opened, await _session(opened, row.session), "resolve", body, wait)

    said = f"op {op} is settled: it {'happened' if happened else 'did not happen'}"
    _report(_with(store, put), said, as_json)


@app.command()
def answer(
    fiber: Annotated[str, typer.Argument(metavar="FIBER", help="The id of a fiber that waits.")],
    choice: Annotated[Answer, typer.Argument(metavar="retry|continue|abandon", help="What it shall do.")],
    store: StoreOption = None,
    wait: WaitOption = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Answer a fiber that waits. Run the op again, go on as if it had happened, or give up."""

    async def put(opened: Store) -> Accepted:
        row = await addresses.find_fiber(opened, fiber)
        if row.parked is None:
            raise BadInput(f"(fiber {fiber} is not waiting for an answer)")
        body = {"fiber": fiber, "answer": choice.value}
        return await ask(opened, await _session(opened, row.session), "answer", body, wait)

    _report(_with(store, put), f"fiber {fiber} has its answer: {choice.value}", as_json)


@app.command()
def cancel(
    fiber: Annotated[str, typer.Argument(metavar="FIBER", help="The id of an open fiber.")],
    store: StoreOption = None,
    wait: WaitOption = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Cancel a fiber. Cancelled stays cancelled, also after a restart."""

    async def put(opened: Store) -> Accepted:
        row = await addresses.find_fiber(opened, fiber)
        return await ask(opened, await _session(opened, row.session), "cancel", {"fiber": fiber}, wait)

    _report(_with(store, put), f"fiber {fiber} is cancelled", as_json)


@app.command("run-alarm")
def run_alarm(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="An id, or Agent/key.")],
    alarm: Annotated[str, typer.Argument(metavar="ALARM", help="The alarm's id or key.")],
    store: StoreOption = None,
    wait: WaitOption = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Fire an alarm now. A repeating one keeps its times; any other is used up."""

    async def put(opened: Store) -> Accepted:
        row = await addresses.find_session(opened, session)
        found = await addresses.find_alarm(opened, row, alarm)
        return await ask(opened, row, "run_alarm", {"alarm": found.id}, wait)

    _report(_with(store, put), f"alarm {alarm} was fired", as_json)


def _with(given: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """What `work` finds in the store; the store is closed afterwards."""

    async def within() -> T:
        async with beside_the_host(given) as opened:
            return await work(opened)

    return asyncio.run(within())


async def _session(store: Store, session: str) -> SessionRow:
    row = await store.session(session)
    if row is None:
        raise NotFound(f"(session {session})")
    return row


def _parsed(result: str | None) -> Any:
    try:
        return None if result is None else orjson.loads(result)
    except orjson.JSONDecodeError as error:
        raise BadInput(
            f"(--result is not JSON: {error}; a text is written with its quotes: '\"text\"')"
        ) from None


def _report(accepted: Accepted, done: str, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json({"input": accepted.input, "accepted": True, "taken": accepted.taken}))
    elif accepted.taken:
        typer.echo(done)
    else:
        typer.echo(f"accepted, and durable: it waits in the inbox ({accepted.input})")
        typer.echo(
            "its host has not taken it yet; it will, or the next one"
            if accepted.host_lives
            else "no live host has this session; the next one that starts takes it"
        )
