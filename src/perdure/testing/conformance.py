"""The exam of a store. Whoever brings a store of their own can run it:

    await check_store(lambda clock: MyStore(clock=clock))

Each check is a function whose name is the sentence that must hold, and gets a fresh, empty store.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..core.errors import Fenced
from ..ports import Clock, Store
from .clock import ManualClock
from .desk import Check, Desk, Failure
from .store_checks import STORE_CHECKS

MakeStore: TypeAlias = Callable[[Clock], Store | Awaitable[Store]]
"""Makes a fresh, empty store that takes its time from the given clock."""


async def check_store(make: MakeStore) -> None:
    """Return if the store passes. Else the error names every check that failed."""
    failed: list[Exception] = []
    for check in STORE_CHECKS:
        try:
            await run_check(check, make)
        except Exception as error:
            failed.append(error)
    if failed:
        said = "\n".join(f"- {error}" for error in failed)
        raise Failure(f"{len(failed)} of {len(STORE_CHECKS)} checks failed:\n{said}") from ExceptionGroup(
            "the checks that failed", failed
        )


async def run_check(check: Check, make: MakeStore) -> None:
    """One check on a store of its own. Its failure begins with its sentence."""
    clock = ManualClock()
    made = make(clock)
    store = await made if inspect.isawaitable(made) else made
    try:
        async with asyncio.timeout(60):
            await check(Desk(store, clock))
    except (Exception, Fenced) as error:
        raise Failure(f"{sentence(check)}: {type(error).__name__}: {error}") from error
    finally:
        await store.close()


def sentence(check: Check) -> str:
    return getattr(check, "__name__", repr(check)).replace("_", " ")
