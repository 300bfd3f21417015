"""What the reading commands show: rows of the store as plain values, status derived (P4)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from ..core.facts import AlarmRow, EndedRow, EventRow, FiberRow, InputRow, OpRow, SessionRow
from ..core.status import Facts, orphans, status, why
from ..engine.session import facts_of
from ..ports import Store
from .words import from_json

PAGE = 100
View = dict[str, Any]


async def overviews(store: Store, after: str) -> AsyncGenerator[View]:
    """One line per session, in the order of their ids."""
    while page := await store.sessions(after=after, limit=PAGE):
        for row in page:
            facts = await facts_of(store, row.id)
            if facts is not None:
                yield {**head(facts), "next_alarm_at": _next_alarm(await store.alarms(row.id))}
        after = page[-1].id


async def portrait(store: Store, row: SessionRow, limit: int) -> View:
    """Everything about one session; `limit` of what there may be much of."""
    facts = await facts_of(store, row.id) or Facts(row)
    state = await store.state(row.id)
    cut = {one.id for one in orphans(facts)}
    return {
        "session": {
            **head(facts),
            "created_at": row.created_at,
            "host": row.host,
            "host_lives": facts.owner_lives,
            "epoch": row.epoch,
            "seq": row.seq,
        },
        "state": None if state is None else {"value": from_json(state[0]), "version": state[1]},
        "fibers": [fiber(one, one.id in cut) for one in facts.fibers],
        "doubts": [op(one) for one in facts.open_ops if one.outcome == "doubt"],
        "alarms": [alarm(one) for one in await store.alarms(row.id)],
        "inbox": [waiting(one) for one in await store.inputs(row.id)],
        "ended": [ended(one) for one in await store.ended(row.id, limit=limit)],
        "ops": [op(one) for one in await store.ops(row.id, limit=limit)],
        "events": [event(one) for one in await _tail(store, facts.session, limit)],
        "now": store.now(),
    }


def head(facts: Facts) -> View:
    return {
        "id": facts.session.id,
        "agent": facts.session.agent,
        "key": facts.session.key,
        "status": status(facts).value,
        "why": why(facts),
        "fibers": len(facts.fibers),
        "doubts": sum(one.outcome == "doubt" for one in facts.open_ops),
    }


def fiber(row: FiberRow, orphaned: bool) -> View:
    question = from_json(row.parked)
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "key": row.key,
        "doing": "waiting" if question is not None else "orphaned" if orphaned else "working",
        "question": question,
        "attempt": row.attempt,
        "stalled": row.stalled,
        "started_at": row.started_at,
        "attempted_at": row.attempted_at,
        "args": from_json(row.args),
        "stash": from_json(row.stash),
    }


def ended(row: EndedRow) -> View:
    return {
        "id": row.id,
        "name": row.name,
        "key": row.key,
        "outcome": row.outcome,
        "value": from_json(row.value),
        "error": row.error,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
    }


def op(row: OpRow) -> View:
    return {
        "id": row.id,
        "fiber": row.fiber,
        "scope": row.scope,
        "step": row.step,
        "kind": row.kind,
        "effect": row.effect,
        "args": from_json(row.args),
        "outcome": row.outcome,
        "result": from_json(row.result),
        "handle": from_json(row.handle),
        "opened_at": row.opened_at,
        "settled_at": row.settled_at,
    }


def alarm(row: AlarmRow) -> View:
    return {
        "id": row.id,
        "key": row.key,
        "method": row.method,
        "args": from_json(row.args),
        "repeats": from_json(row.spec) or None,
        "due_at": row.due_at,
    }


def waiting(row: InputRow) -> View:
    return {"id": row.id, "kind": row.kind, "body": from_json(row.body), "at": row.at}


def event(row: EventRow) -> View:
    return {"seq": row.seq, "type": row.type, "body": from_json(row.body), "at": row.at}


async def _tail(store: Store, row: SessionRow, limit: int) -> list[EventRow]:
    return await store.events(row.id, after=max(0, row.seq - limit), limit=limit)


def _next_alarm(alarms: list[AlarmRow]) -> int | None:
    return min((one.due_at for one in alarms), default=None)
