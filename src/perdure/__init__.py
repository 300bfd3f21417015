"""Perdure: a durable runtime for long-running AI agents."""

from .core.errors import (
    Abandoned,
    AmbiguousStep,
    BadInput,
    BadName,
    BadSchedule,
    BadStoreUrl,
    Conflict,
    Diverged,
    Draining,
    Exhausted,
    Fenced,
    FiberCancelled,
    FiberClosed,
    FiberFailed,
    InProgress,
    Interrupted,
    NoFiber,
    NotFound,
    OpenScopes,
    OpFailed,
    OwnedElsewhere,
    PerdureError,
    Reentrant,
    StoreInUse,
    StoreTooNew,
    StoreUnavailable,
    TooLarge,
    Uncertain,
    Unrecovered,
    Unserialisable,
)
from .core.recovery import Patience
from .core.status import Status
from .engine.agent import Agent, fiber
from .engine.fibers import Fiber, Running, current_fiber
from .engine.ops import DidNotHappen, Gone, Happened, Op, current_op
from .engine.recovery import Continue, Fail, FiberRecovery, Finish
from .engine.schedules import Cron, Every
from .engine.session import Session
from .engine.settings import Settings
from .engine.topics import Message, Subscription
from .runtime import Runtime

__version__ = "0.1.0"

__all__ = [
    "Abandoned",
    "Agent",
    "AmbiguousStep",
    "BadInput",
    "BadName",
    "BadSchedule",
    "BadStoreUrl",
    "Conflict",
    "Continue",
    "Cron",
    "DidNotHappen",
    "Diverged",
    "Draining",
    "Every",
    "Exhausted",
    "Fail",
    "Fenced",
    "Fiber",
    "FiberCancelled",
    "FiberClosed",
    "FiberFailed",
    "FiberRecovery",
    "Finish",
    "Gone",
    "Happened",
    "InProgress",
    "Interrupted",
    "Message",
    "NoFiber",
    "NotFound",
    "Op",
    "OpFailed",
    "OpenScopes",
    "OwnedElsewhere",
    "Patience",
    "PerdureError",
    "Reentrant",
    "Running",
    "Runtime",
    "Session",
    "Settings",
    "Status",
    "StoreInUse",
    "StoreTooNew",
    "StoreUnavailable",
    "Subscription",
    "TooLarge",
    "Uncertain",
    "Unrecovered",
    "Unserialisable",
    "current_fiber",
    "current_op",
    "fiber",
]
