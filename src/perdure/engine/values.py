"""Values on their way into the store and back: JSON and pydantic models, nothing else."""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson

from ..core.errors import TooLarge, Unserialisable

LARGEST = 1_000_000
LONGEST_ERROR = 10_000
EMPTY_ARGS = b"[]"

_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def encode(value: Any, what: str) -> bytes:
    """`value` as JSON, so that `decode` gives an equal one; `what` names it in errors."""
    try:
        data = orjson.dumps(value, _plain, _OPTIONS)
    except TypeError as error:
        raise Unserialisable(f"({what}: {error.__cause__ or error})") from None
    if len(data) > LARGEST:
        raise TooLarge(f"({what}: {len(data):,} bytes, the limit is {LARGEST:,})")
    if b"null" in data:
        _refuse_nan(value, what)
    return data


def decode(data: bytes | None) -> Any:
    return None if data is None else orjson.loads(data)


def revive(data: bytes | None, shape: type[Any] | None) -> Any:
    """The value, as an instance of the pydantic model `shape` if there is one."""
    if shape is None or data is None or data == b"null":
        return decode(data)
    return shape.model_validate_json(data)


@lru_cache(maxsize=4096)
def shape_of(call: Callable[..., Any]) -> type[Any] | None:
    """The pydantic model that `call` says it returns, if it says so."""
    if "pydantic" not in sys.modules:
        return None
    try:
        said = typing.get_type_hints(call).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return said if isinstance(said, type) and hasattr(said, "model_validate_json") else None


def in_words(error: BaseException) -> str:
    """The error as a text that every store can keep."""
    return writable(f"{type(error).__name__}: {error}")


def writable(said: str) -> str:
    """`said` without what a store cannot keep: NUL, half characters, megabytes."""
    return said[:LONGEST_ERROR].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__module__}.{type(value).__qualname__} is not JSON")


def _refuse_nan(value: Any, what: str) -> None:
    """JSON has no NaN, and the encoder would quietly write null."""
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise Unserialisable(f"({what}: {one} is not JSON)")
        if isinstance(one, dict):
            todo.extend(typing.cast("dict[Any, Any]", one).values())
        elif isinstance(one, list | tuple):
            todo.extend(typing.cast("list[Any]", one))
        elif (dump := getattr(one, "model_dump", None)) is not None:
            todo.append(dump(mode="json"))
