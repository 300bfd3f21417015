"""What may be called what."""

from __future__ import annotations

from .errors import BadName

LONGEST_NAME = 512


def check_name(name: object, what: str) -> str:
    """Return `name` if it can name a `what`; raise `BadName` if not."""
    if not isinstance(name, str):
        raise BadName(f"({what}: got {type(name).__name__})")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadName(f"({what}: not UTF-8)") from None
    if "\0" in name or not 1 <= size <= LONGEST_NAME:
        raise BadName(f"({what}: {'has a NUL' if chr(0) in name else f'{size} bytes'})")
    return name
