"""Asking something of a session beside its host: put it into the inbox, and see what becomes of it."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any

from ..core.errors import BadInput, PerdureError
from ..core.facts import InputRow, SessionRow
from ..ports import Store
from .words import from_json, to_json

LOOK_EVERY = 0.05
EVENTS_PER_READ = 500


class Refused(PerdureError):
    """The session's host refused it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The input is durable (P1). `taken`: a host has acted on it."""

    input: str
    taken: bool
    host_lives: bool


async def ask(store: Store, session: SessionRow, kind: str, body: dict[str, Any], wait: float) -> Accepted:
    """Accept an input, and wait a while for a host to take it. `Refused` if it would not."""
    row = InputRow("i" + secrets.token_hex(12), session.id, kind, to_json(body).encode(), store.now())
    if not await store.put_input(row):
        raise BadInput(f"({session.agent}/{session.key} is terminated and takes no more inputs)")
    lives = await store.owner_lives(session.id)
    seconds = wait if lives else min(wait, 0.5 + 2 * store.poll_every)
    taken = await _wait_until_taken(store, row, seconds)
    if taken:
        await _check_not_refused(store, row, after=session.seq)
    return Accepted(row.id, taken, lives)


async def _wait_until_taken(store: Store, row: InputRow, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(one.id == row.id for one in await store.inputs(row.session)):
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(LOOK_EVERY)
    return True


async def _check_not_refused(store: Store, row: InputRow, after: int) -> None:
    while page := await store.events(row.session, after=after, limit=EVENTS_PER_READ):
        for one in page:
            if one.type == "input.refused" and (said := from_json(one.body))["input"] == row.id:
                raise Refused(f"({said['why']})")
        after = page[-1].seq
