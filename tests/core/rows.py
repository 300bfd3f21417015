"""Facts to reason about: complete rows, of which a test names only what matters to it."""

from typing import Any

from perdure.core.facts import AlarmRow, EndedRow, FiberRow, OpRow, SessionRow

MINUTE = 60_000


def an_op(**said: Any) -> OpRow:
    known: dict[str, Any] = {
        "id": "op",
        "session": "s",
        "fiber": "f",
        "scope": "",
        "step": 0,
        "kind": "pay",
        "effect": "once",
        "args": b"[5]",
        "handle": None,
        "cursor": None,
        "opened_at": 1_000,
        "key_until": None,
        "chunks": 0,
        "outcome": None,
        "result": None,
        "settled_at": None,
    }
    return OpRow(**{**known, **said})


def a_fiber(**said: Any) -> FiberRow:
    known: dict[str, Any] = {
        "id": "f",
        "session": "s",
        "name": "work",
        "kind": "method",
        "version": 1,
        "args": None,
        "key": None,
        "host": "here",
        "epoch": 1,
        "steps": None,
        "stash": None,
        "attempt": 0,
        "stalled": 0,
        "attempted_at": 0,
        "started_at": 0,
        "parked": None,
    }
    return FiberRow(**{**known, **said})


def a_session(**said: Any) -> SessionRow:
    known: dict[str, Any] = {
        "id": "s",
        "agent": "Agent",
        "key": "one",
        "host": "here",
        "epoch": 1,
        "revision": 0,
        "seq": 0,
        "created_at": 0,
        "terminated_at": None,
    }
    return SessionRow(**{**known, **said})


def an_end(**said: Any) -> EndedRow:
    known: dict[str, Any] = {
        "id": "f",
        "session": "s",
        "name": "work",
        "key": None,
        "outcome": "done",
        "value": b"1",
        "error": None,
        "started_at": 0,
        "ended_at": 1,
        "expires_at": 2,
    }
    return EndedRow(**{**known, **said})


def an_alarm(**said: Any) -> AlarmRow:
    known: dict[str, Any] = {
        "id": "a",
        "session": "s",
        "kind": "user",
        "method": "ring",
        "args": b"[]",
        "spec": b"{}",
        "key": None,
        "due_at": 1,
        "created_at": 0,
    }
    return AlarmRow(**{**known, **said})
