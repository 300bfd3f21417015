"""For tests of agents, and of stores of your own."""

from __future__ import annotations

from .clock import ManualClock
from .conformance import STORE_CHECKS, check_store

__all__ = ["STORE_CHECKS", "ManualClock", "check_store"]
