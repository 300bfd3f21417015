"""Status is a pure function of rows (P4). Nothing stores it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .facts import FiberRow, OpRow, SessionRow


class Status(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    RESCHEDULING = "rescheduling"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a session when its status is asked for."""

    session: SessionRow
    fibers: tuple[FiberRow, ...] = ()
    open_ops: tuple[OpRow, ...] = ()
    owner_lives: bool = False


def orphans(facts: Facts) -> list[FiberRow]:
    """Fibers that nobody works on: an older epoch, a dead owner, or handed over."""
    return [one for one in _working(facts.fibers) if _orphaned(one, facts)]


def status(facts: Facts) -> Status:
    if facts.session.terminated_at is not None:
        return Status.TERMINATED
    working = _working(facts.fibers)
    if working:
        return Status.RESCHEDULING if len(orphans(facts)) == len(working) else Status.RUNNING
    return Status.INTERRUPTED if facts.fibers else Status.IDLE


def why(facts: Facts) -> str:
    """The rows that make the status what it is, in words."""
    working, cut = _working(facts.fibers), orphans(facts)
    parts = [
        _count(len(working) - len(cut), "fiber works", "fibers work"),
        _count(len(cut), "fiber waits to be recovered", "fibers wait to be recovered"),
        _count(len(facts.fibers) - len(working), "fiber waits for an answer", "fibers wait for an answer"),
        _count(sum(op.outcome == "doubt" for op in facts.open_ops), "op is in doubt", "ops are in doubt"),
    ]
    said = ", ".join(part for part in parts if part)
    if facts.session.terminated_at is not None:
        return "it was terminated"
    return said or "no fiber is open"


def _working(fibers: Iterable[FiberRow]) -> list[FiberRow]:
    return [one for one in fibers if one.parked is None]


def _orphaned(fiber: FiberRow, facts: Facts) -> bool:
    return fiber.host is None or fiber.epoch < facts.session.epoch or not facts.owner_lives


def _count(n: int, one: str, many: str) -> str:
    return "" if n == 0 else f"{n} {one if n == 1 else many}"
