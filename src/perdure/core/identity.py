"""Identity is a pure function of place; content is compared, never looked up."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

ROOT = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an op stands in its fiber: the scope, and the step within it."""

    fiber: str
    scope: str
    step: int


def op_id(place: Place) -> str:
    return sha256(f"{place.fiber}\0{place.scope}\0{place.step}".encode()).hexdigest()[:32]


def session_id(agent: str, key: str) -> str:
    return "s" + sha256(f"{agent}\0{key}".encode()).hexdigest()[:31]


def keyed_place(fiber: str, key: str, step: int = 0) -> Place:
    """The place of an op with an explicit key: no counter, so it may be anywhere in the code.
    A step after the first continues an answer that was cut."""
    return Place(fiber, f"={key}", step)


def child_scope(scope: str, name: str) -> str:
    return f"{scope}/{len(name)}:{name}"


def branch_scope(scope: str, step: int, branch: int) -> str:
    return f"{scope}/{step}.{branch}"
