"""The command `perdure`: look into a store, and settle what waits for a person."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

__all__ = ["main", "run"]

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` say and return the exit code. An error is one line on stderr."""
    if list(arguments) == ["--version"]:
        from .words import installed_version

        print(f"perdure {installed_version()}")
        return 0
    from .app import app

    try:
        returned: object = app(list(arguments), prog_name="perdure", standalone_mode=False)
        return returned if isinstance(returned, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _tell(error, as_json="--json" in arguments)
        return code


@runtime_checkable
class UsageError(Protocol):
    """What the argument parser raises, whichever copy of click it comes from."""

    exit_code: int

    def format_message(self) -> str: ...


def _exit_code(error: Exception) -> int | None:
    """Whose fault it is; None for a bug, which deserves its traceback."""
    from ..core.errors import BadInput, NotFound, PerdureError

    if isinstance(error, BadInput | NotFound | UsageError):
        return BAD_INPUT
    return FAILED if isinstance(error, PerdureError | OSError) else None


def _tell(error: Exception, *, as_json: bool) -> None:
    from .words import as_line, to_json

    usage = isinstance(error, UsageError)
    kind = "Usage" if usage else type(error).__name__
    said = as_line(error.format_message() if usage else str(error))
    line = to_json({"error": {"type": kind, "message": said}}) if as_json else f"perdure: {said}"
    print(line, file=sys.stderr)
