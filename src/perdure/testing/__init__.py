"""For tests of agents, and of stores of your own."""

from __future__ import annotations

from .clock import ManualClock
from .conformance import STORE_CHECKS, check_store
from .crash import AT_ONCE, Cut, Scenario, Story, run, sweep

__all__ = [
    "AT_ONCE",
    "STORE_CHECKS",
    "Cut",
    "ManualClock",
    "Scenario",
    "Story",
    "check_store",
    "run",
    "sweep",
]
