"""Alarms of one session: set, listed, cancelled, fired. Firing opens a fiber; the loop never works."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..core.errors import NotFound
from ..core.facts import AlarmRow
from ..core.names import check_name
from ..core.writes import DropAlarm, PutAlarm, Write
from .fibers import Running, fiber_here
from .lifecycle import start
from .ops import within_op, write_once
from .schedules import Missed, When, is_missed, next_due, spec_of
from .values import decode, encode

if TYPE_CHECKING:
    from .live import Live

log = logging.getLogger("perdure")


async def schedule(
    live: Live, when: When, method: str, args: tuple[Any, ...], key: str | None, missed: Missed
) -> AlarmRow:
    """Set an alarm. The same key names the same alarm: unchanged it stays, changed it moves."""
    now = live.host.store.now()
    spec, due_at = spec_of(when, missed, now)
    if key is not None:
        check_name(key, "the key of an alarm")
    row = AlarmRow(
        id=live.host.new_id("a") if key is None else _keyed_id(live.id, key),
        session=live.id,
        kind="user",
        method=method,
        args=encode(args, f"the arguments of {method}"),
        spec=encode(spec, "a schedule"),
        key=key,
        due_at=due_at,
        created_at=now,
    )
    async with live.tending:
        standing = await _find(live, row.id) if key is not None and spec else None
        if standing is not None and _same(standing, row):
            return await _set(live, standing)
        set_row = await _set(live, row, PutAlarm(row))
    live.host.poke()
    return set_row


async def _set(live: Live, row: AlarmRow, *writes: Write) -> AlarmRow:
    """Within a fiber the alarm is set once, however often the fiber is entered again, and takes
    a step in every life, also when there was nothing to write."""
    fiber = fiber_here()
    if fiber is None or fiber.session != live.id or within_op():
        if writes:
            await live.commit(*writes)
        return row
    asked = encode([row.method, decode(row.args), decode(row.spec), row.key], "an alarm")
    recorded = encode([row.id, row.due_at, row.created_at], "an alarm")
    identity, due_at, created_at = decode(await write_once(fiber, "schedule", asked, recorded, *writes))
    return row._replace(id=identity, due_at=due_at, created_at=created_at)


async def cancel(live: Live, alarm: str) -> bool:
    """False if there was no such alarm any more."""
    async with live.tending:
        found = await _find(live, alarm)
        if found is not None:
            await live.commit(DropAlarm(alarm))
        return found is not None


async def run_by_hand(live: Live, alarm: str) -> Running[Any]:
    """Fire it now, as `fire_by_hand`, whatever else is going on."""
    async with live.tending:
        return await fire_by_hand(live, alarm)


async def fire_by_hand(live: Live, alarm: str, with_it: tuple[Write, ...] = ()) -> Running[Any]:
    """Fire it now. A one-time alarm is used up by that; others keep their times.
    The caller holds `live.tending`."""
    row = await _find(live, alarm)
    if row is None:
        raise NotFound(f"(alarm {alarm})")
    spent = () if decode(row.spec) else (DropAlarm(row.id),)
    running = _fire(live, row, (*spent, *with_it))
    await running.started()
    return running


async def fire_due(live: Live) -> None:
    """Fire what is due. The alarm moves or leaves in the commit that opens its fiber.
    The caller holds `live.tending`."""
    for row in await live.host.store.due_alarms(live.id):
        if row.kind == "keepalive":
            await live.beat()
            continue
        now = live.host.store.now()
        spec = decode(row.spec)
        due_at = next_due(spec, row.due_at, now)
        move = DropAlarm(row.id) if due_at is None else PutAlarm(row._replace(due_at=due_at))
        if is_missed(spec, row.due_at, now) or (spec.get("missed") != "each" and _still_runs(live, row)):
            await live.commit(move)
        else:
            await _fire(live, row, (move,)).started()
        if due_at is not None:
            live.host.poke()


def _fire(live: Live, row: AlarmRow, with_it: tuple[Write, ...]) -> Running[Any]:
    log.info("session %s: alarm %s fires %s", live.label, row.id, row.method)
    method, args = row.method, row.args
    return start(
        live,
        f"alarm:{method}",
        live.host.alarm_body(live, method, args),
        kind="alarm",
        args=encode({"alarm": row.id, "method": method, "args": decode(args)}, "an alarm"),
        with_it=with_it,
        insist=True,
    )


def _same(one: AlarmRow, other: AlarmRow) -> bool:
    return (one.method, one.args, one.spec) == (other.method, other.args, other.spec)


def _still_runs(live: Live, row: AlarmRow) -> bool:
    return any(
        one.row.kind == "alarm" and decode(one.row.args)["alarm"] == row.id for one in live.fibers.values()
    )


async def _find(live: Live, alarm: str) -> AlarmRow | None:
    return next((one for one in await live.host.store.alarms(live.id) if one.id == alarm), None)


def _keyed_id(session: str, key: str) -> str:
    return "a" + sha256(f"{session}\0{key}".encode()).hexdigest()[:31]
