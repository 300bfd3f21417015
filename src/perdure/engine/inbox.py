"""Taking accepted inputs: what a person or another process asked of a session."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..core.errors import BadInput, NotFound, PerdureError
from ..core.facts import InputRow
from ..core.writes import Append, TakeInput
from . import alarms
from .answers import answer, resolve
from .lifecycle import cancel
from .values import decode, encode

if TYPE_CHECKING:
    from .live import Live

log = logging.getLogger("perdure")


async def drain(live: Live) -> None:
    """Take every waiting input, in order. One that no longer fits is recorded as refused.
    The caller holds `live.tending`."""
    for row in await live.host.store.inputs(live.id):
        try:
            await _take(live, row, decode(row.body))
        except (NotFound, BadInput) as refused:
            await _refuse(live, row, refused)
        except (KeyError, TypeError, AttributeError) as malformed:
            await _refuse(live, row, BadInput(f"(its body: {malformed!r})"))


async def _take(live: Live, row: InputRow, body: dict[str, Any]) -> None:
    taken = TakeInput(row.id)
    match row.kind:
        case "resolve":
            happened, result = body["happened"], body.get("result")
            await resolve(live, body["op"], happened=happened, result=result, with_it=(taken,))
        case "answer":
            await answer(live, body["fiber"], body["answer"], with_it=(taken,))
        case "cancel":
            if not await cancel(live, body["fiber"], taken):
                raise NotFound(f"(fiber {body['fiber']} has ended)")
        case "run_alarm":
            await alarms.fire_by_hand(live, body["alarm"], (taken,))
        case _:
            raise BadInput(f"(an input of kind {row.kind!r})")


async def _refuse(live: Live, row: InputRow, why: PerdureError) -> None:
    log.warning("session %s: an input was refused: %s", live.label, why)
    said = encode({"input": row.id, "kind": row.kind, "why": str(why)}, "an event")
    await live.commit(TakeInput(row.id), Append("input.refused", said, live.host.store.now()))
