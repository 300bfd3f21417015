"""Stores: where sessions live. `open_store` takes a URL; a third party may bring its own."""

from __future__ import annotations

import re

from ..core.errors import BadStoreUrl
from ..ports import Clock, Store
from .clock import SystemClock
from .sqlite import MEMORY, SqliteStore

__all__ = ["SqliteStore", "SystemClock", "open_store"]


def open_store(url: str, *, clock: Clock | None = None, host: bool = True) -> Store:
    """The store that `url` names, with its schema up to date."""
    if url in ("memory:", "sqlite://", f"sqlite:///{MEMORY}"):
        return SqliteStore(MEMORY, clock=clock, host=host)
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SqliteStore(url.removeprefix("sqlite:///"), clock=clock, host=host)
    if url.startswith(("postgresql://", "postgres://")):
        return _postgres(url, clock, host)
    raise BadStoreUrl(f"(got {_without_password(url)!r})")


def _without_password(url: str) -> str:
    return re.sub(r"(?<=password=)[^&]*", "***", re.sub(r"(?<=//)([^:/@]*):.*@", r"\1:***@", url))


def _postgres(url: str, clock: Clock | None, host: bool) -> Store:
    try:
        from .postgres import PostgresStore
    except ModuleNotFoundError as missing:
        raise BadStoreUrl("(Postgres needs an extra: pip install 'perdure[postgres]')") from missing
    return PostgresStore(url, clock=clock, host=host)
