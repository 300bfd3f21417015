"""What a store must do, one sentence per function. `conformance` runs them all."""

from __future__ import annotations

from ..desk import STORE_CHECKS
from . import commits, keeping, ledger, taking, waking

__all__ = ["STORE_CHECKS", "commits", "keeping", "ledger", "taking", "waking"]
