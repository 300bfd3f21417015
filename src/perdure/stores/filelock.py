"""One host per SQLite file: an exclusive lock that dies with its process."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from ..core.errors import StoreInUse


class FileLock:
    """Held from construction to `release`; the operating system frees it when we die."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 4096)
            os.close(self._file)
            raise StoreInUse(_holder(holder)) from None
        os.truncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), "since": int(time.time())}).encode(), 0)

    def release(self) -> None:
        """Free for the next host; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def held(path: str) -> bool:
    """Whether a living process holds the lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def _holder(content: bytes) -> str:
    try:
        said = json.loads(content)
        pid, since = int(said["pid"]), time.strftime("%F %T", time.localtime(said["since"]))
    except (ValueError, KeyError, TypeError):
        return "(its process id is not known)"
    if _stopped(pid):
        how = f"`kill -CONT {pid}` lets it go on, `kill -9 {pid}` ends it"
        return f"(process {pid}, since {since}; it is stopped: {how})"
    return f"(process {pid}, since {since})"


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] in "Tt"
    except (OSError, IndexError):
        return False
