"""Values as text: JSON for programs, single safe lines for people."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import orjson

WIDEST = 160


def installed_version() -> str:
    return version("perdure")


def to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def from_json(data: bytes | None) -> Any:
    return None if data is None else orjson.loads(data)


def as_line(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey."""
    one_line = " ".join(text.split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in one_line)


def brief(value: Any) -> str:
    """A value as JSON, cut to what fits on a line."""
    text = as_line(to_json(value))
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}… ({len(text):,} characters)"


def moment(at: int, now: int) -> str:
    """A time and how far away it is."""
    stamp = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f"{stamp} ({distance(at - now)})"


def distance(ms: int) -> str:
    size = span(abs(ms))
    return f"in {size}" if ms > 0 else f"{size} ago"


def span(ms: int) -> str:
    """A duration in its largest sensible unit."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * length:
            return f"{ms // length} {unit}"
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms // 1000} s"


def count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
