"""What is measured, and what perdure has to reach. Tables only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Against(Enum):
    """What a target's number is multiplied with."""

    FIXED = ""
    FLOOR = " × floor"
    PEER = " × best peer"


@dataclass(frozen=True)
class Target:
    number: float
    against: Against = Against.FIXED


@dataclass(frozen=True)
class Line:
    """One line of the report: one metric of one scenario."""

    title: str
    metric: str
    targets: tuple[Target, ...] = ()
    more_is_better: bool = True


@dataclass(frozen=True)
class Scenario:
    """A load that every runner that knows it carries in a process of its own."""

    name: str
    module_scenario: str
    lines: tuple[Line, ...]
    params: dict[str, Any] = field(default_factory=dict)
    peers: bool = True
    floor: bool = True
    once: bool = False
    """Long and steady: run one time instead of in rounds."""


def _beside(name: str, of: str, effect: str, title: str) -> Scenario:
    """A scenario without targets, for us and the floor, with another effect."""
    lines = (Line(title, "per_s"),)
    return Scenario(name, of, lines, params={"effect": effect}, peers=False)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "steps",
        "steps",
        (
            Line("one session, steps/s", "per_s", (Target(0.5, Against.FLOOR), Target(2, Against.PEER))),
            Line("one session, p50 µs", "p50_us", more_is_better=False),
        ),
    ),
    _beside("steps-once", "steps", "once", "one session, `once` steps/s"),
    _beside("steps-keyed", "steps", "keyed", "one session, `keyed` steps/s"),
    Scenario(
        "crowd",
        "crowd",
        (
            Line("100 sessions, steps/s", "per_s", (Target(10_000), Target(10, Against.PEER))),
            Line("100 sessions, CPU µs/step", "cpu_us", (Target(100),), more_is_better=False),
        ),
    ),
    _beside("crowd-once", "crowd", "once", "100 sessions, `once` steps/s"),
    Scenario(
        "fibers",
        "fibers",
        (
            Line("empty units/s, 64 at once", "per_s", (Target(5_000), Target(20, Against.PEER))),
            Line(
                "empty unit alone, p50 µs", "alone_p50_us", (Target(2, Against.FLOOR),), more_is_better=False
            ),
        ),
    ),
    Scenario(
        "recovery",
        "recovery",
        (
            Line(
                "200 killed, all re-entered, s",
                "seconds",
                (Target(0.7), Target(1 / 3, Against.PEER)),
                more_is_better=False,
            ),
            Line("recorded steps run twice", "duplicates", (Target(0),), more_is_better=False),
        ),
    ),
    Scenario(
        "open",
        "open",
        (
            Line("open with 100 ops, ms", "few_ms", more_is_better=False),
            Line("open with 100,000 ops, ms", "many_ms", more_is_better=False),
            Line("append to 100,000 ops, ms", "append_ms", more_is_better=False),
            Line("100,000 ops ÷ 100 ops", "ops_ratio", (Target(2),), more_is_better=False),
            Line("100,000 events ÷ 100 events", "events_ratio", (Target(2),), more_is_better=False),
        ),
        peers=False,
        once=True,
    ),
    Scenario(
        "idle",
        "idle",
        (Line("10,000 idle sessions, KB each", "kb_each", (Target(25),), more_is_better=False),),
        peers=False,
        floor=False,
        once=True,
    ),
    Scenario(
        "stored",
        "stored",
        (
            # Sixteen bytes is measuring noise of a process; a session that costs memory costs far more.
            Line("1,000,000 stored, bytes each", "bytes_each", (Target(16),), more_is_better=False),
            Line("1,000,000 stored, sweep ms", "sweep_ms", more_is_better=False),
            Line("sweep, 1,000,000 ÷ 1,000", "sweep_ratio", (Target(2),), more_is_better=False),
        ),
        peers=False,
        floor=False,
        once=True,
    ),
)

QUICK: dict[str, Any] = {"seconds": 0.4, "many": 20_000, "idle": 2_000, "stored": 50_000}
"""Smaller loads for a first look; their verdicts are indications."""
