"""How a cut fiber is taken up again: at once, later, alone, or not any more (P10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .facts import FiberRow


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a fiber is recovered, and how its attempts are spaced (seconds)."""

    attempts: int = 5
    attempts_ever: int = 50
    spacing: tuple[float, ...] = (0, 1, 5, 25, 60)
    alone_from: int = 3


@dataclass(frozen=True, slots=True)
class Enter:
    """Re-enter `fiber` (with its attempt counted) at `at`; `alone` if it may kill its process."""

    fiber: FiberRow
    at: int
    alone: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    fiber: FiberRow
    why: str


Plan: TypeAlias = Enter | GiveUp


def blamed(fiber: FiberRow, *, here: str, suspect: str | None) -> bool:
    """Whether the end of the fiber's last life counts as an attempt.

    Not after a hand-over (`host` is None), nor after an eviction on this host; and when its
    host died while it tried out one `suspect`, the death counts only for that one.
    """
    if fiber.host is None or fiber.host == here:
        return False
    return suspect is None or suspect == fiber.id


def plan(fiber: FiberRow, *, here: str, suspect: str | None, now: int, patience: Patience) -> Plan:
    if not blamed(fiber, here=here, suspect=suspect):
        return Enter(fiber, now, alone=False)
    stalled, attempt = fiber.stalled + 1, fiber.attempt + 1
    if stalled > patience.attempts:
        return GiveUp(fiber, f"{patience.attempts} attempts without progress")
    if attempt > patience.attempts_ever:
        return GiveUp(fiber, f"{patience.attempts_ever} attempts in all")
    spacing = patience.spacing[min(stalled, len(patience.spacing)) - 1] if patience.spacing else 0
    due_at = max(now, fiber.attempted_at + int(spacing * 1000)) if spacing else now
    counted = fiber._replace(stalled=stalled, attempt=attempt)
    return Enter(counted, due_at, alone=stalled >= patience.alone_from)
