"""Places: which scope a task is in, and which step of it comes next."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from ..core.errors import AmbiguousStep, OpenScopes
from ..core.identity import ROOT, branch_scope, child_scope


class Scope:
    """A branch of a fiber with its own step counter.

    `step` is the place of the op in flight, or of the next one: it moves on when an op ends.
    """

    __slots__ = ("busy", "name", "parent", "step")

    def __init__(self, name: str, parent: Scope | None, step: int) -> None:
        self.name = name
        self.parent = parent
        self.step = step
        self.busy = False


class Scopes:
    """All scopes of one fiber, counting on from where its stash left them."""

    __slots__ = ("_keys", "_open", "_steps", "root")

    def __init__(self, steps: dict[str, int] | None = None) -> None:
        self._steps = dict(steps or {})
        self.root = Scope(ROOT, None, self._steps.get(ROOT, 0))
        self._open: set[Scope] = set()
        self._keys: set[str] = set()

    def here(self) -> Scope:
        """The scope of the running task."""
        scope = _CURRENT.get(None)
        return scope if scope is not None and (scope is self.root or scope in self._open) else self.root

    def begin(self, scope: Scope) -> int:
        """Take the next step of `scope`; `finish` gives it back."""
        if scope.busy:
            raise AmbiguousStep(f"(scope {scope.name or 'of the fiber'}, step {scope.step})")
        scope.busy = True
        return scope.step

    def finish(self, scope: Scope) -> None:
        scope.step += 1
        scope.busy = False

    @contextmanager
    def key(self, key: str) -> Generator[None]:
        """The place of an op with an explicit key: taken by one task at a time."""
        if key in self._keys:
            raise AmbiguousStep(f"(the op with the key {key!r} is being performed)")
        self._keys.add(key)
        try:
            yield
        finally:
            self._keys.discard(key)

    @contextmanager
    def child(self, name: str) -> Generator[Scope]:
        """A named branch. Entered again later, it counts on."""
        parent = self.here()
        full = child_scope(parent.name, name)
        if any(one.name == full for one in self._open):
            raise AmbiguousStep(f"(scope {name!r} is open already)")
        with self._within(Scope(full, parent, self._steps.get(full, 0))) as scope:
            try:
                yield scope
            finally:
                self._steps[full] = scope.step

    @contextmanager
    def branch(self, parent: Scope, step: int, number: int) -> Generator[Scope]:
        """One branch of the `gather` that stands at `step` of `parent`."""
        full = branch_scope(parent.name, step, number)
        with self._within(Scope(full, parent, self._steps.get(full, 0))) as scope:
            yield scope

    def counters(self) -> dict[str, int]:
        """Every counter a stash must keep. Raises while sibling scopes are open."""
        chain: dict[str, int] = {}
        at: Scope | None = self.here()
        while at is not None:
            chain[at.name] = at.step
            at = at.parent
        beside = [one.name for one in self._open if one.name not in chain]
        if beside:
            raise OpenScopes(f"(open: {', '.join(sorted(beside))})")
        return {**self._steps, **chain}

    @contextmanager
    def _within(self, scope: Scope) -> Generator[Scope]:
        self._open.add(scope)
        token = _CURRENT.set(scope)
        try:
            yield scope
        finally:
            _CURRENT.reset(token)
            self._open.discard(scope)


_CURRENT: ContextVar[Scope] = ContextVar("perdure_scope")
