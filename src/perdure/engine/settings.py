"""What an operator may choose. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.recovery import Patience

DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    idle_after: float = 100.0
    """A session without work is evicted from memory after this long."""

    lease_lives: float = 15.0
    """How long a host that has fallen silent still owns its sessions."""

    hold: float = 1.0
    """How long a host that took an idle session keeps it before another may take it."""

    loop_stalls: float = 30.0
    """A host whose event loop has not run for this long lets its lease expire."""

    slow_step: float = 2.0
    """A task that does not yield for this long is named in a warning."""

    grace: float = 25.0
    """How long a `once` op may still run after SIGTERM."""

    keepalive: float = 30.0
    """The heartbeat of a session that is kept alive."""

    key_lives: float = 3600.0
    """How long the other side remembers the key of a `keyed` op, unless the op says otherwise."""

    keep_results: float = 7 * DAY
    """How long the outcome of a fiber can be read after it ended."""

    keep_failures: float = 30 * DAY
    """The same for a fiber that failed."""

    tryout: float = 0.5
    """How long a fiber that may have killed its process is watched before the next one enters."""

    patience: Patience = field(default_factory=Patience)
    """Attempts of a cut fiber, and their spacing."""

    evict_after_commit: bool = False
    """For tests: every commit that leaves no op in flight evicts its session, so that each
    scenario becomes a recovery scenario."""
