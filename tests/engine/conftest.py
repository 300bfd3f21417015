"""The engine on an in-memory store. Most scenarios run twice: as they are, and evicted at every commit."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from perdure import Settings
from perdure.ports import Store
from perdure.stores import open_store
from perdure.testing.clock import ManualClock

from .lives import AT_ONCE, Lives, World

WAYS = {"normal": AT_ONCE, "evicting": replace(AT_ONCE, evict_after_commit=True)}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "not_evicted(reason): not run with a session evicted after every commit, and why"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that asks for `settings` is run with each of them, unless it says why not."""
    if "settings" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("not_evicted")
    assert marker is None or marker.args, "say why it cannot be evicted"
    ways = ["normal"] if marker else list(WAYS)
    metafunc.parametrize("settings", [pytest.param(WAYS[way], id=way) for way in ways])


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = open_store("memory:")
    made.poll_every = 0.005
    yield made
    await made.close()


@pytest.fixture
async def lives(store: Store, settings: Settings) -> AsyncIterator[Lives]:
    made = Lives(store, settings)
    yield made
    await made.end()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timed(clock: ManualClock) -> AsyncIterator[Lives]:
    """Lives in which time passes only when the test says so. Attempts are spaced as for a user; a
    lease is renewed by a thread that no manual clock waits for, so it lasts."""
    store = open_store("memory:", clock=clock)
    made = Lives(store, Settings(tryout=0.0, lease_lives=1e9), clock)
    yield made
    await made.end()
    await store.close()


@pytest.fixture
def world() -> World:
    return World()
