"""Cut every reference scenario at every durable write, and look at what is left."""

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.ports import Store
from perdure.stores import open_store
from perdure.testing.crash import Cut, Story, run, sweep

from . import scenarios
from .world import World

EFFECTS = {
    "skipping": {"search": 1, "analyse": 1, "publish": 1},
    "parallel": {"a1": 1, "a2": 1, "b1": 1, "b2": 1},
    "certain": {"charge": 1, "mail": 1, "name": 1},
    "hooked": {"n0": 1, "n1": 1, "n2": 1},
    "alarmed": {},
    "cancelled": {},
}
RESULTS = {
    "skipping": ["search", "analyse", "publish"],
    "parallel": [["a1", "a2"], ["b1", "b2"]],
    "certain": ["text", 5, "mail", [1, 2], "name"],
    "hooked": 3,
    "alarmed": [["done"], 1, [], []],
    "cancelled": ["cancelled"],
}
NO_DOUBT = ("certain", "alarmed", "cancelled")

MakeStore = Callable[[], Store]


def memory() -> Store:
    return open_store("memory:")


def on_disk(folder: Path) -> MakeStore:
    numbers = iter(range(1_000_000))
    return lambda: open_store(f"sqlite:///{folder}/{next(numbers)}.db")


def check(name: str, story: Story) -> None:
    """Safety: nothing lost, nothing twice. Liveness: it ended, and doubted only what it had to."""
    world = story.scenario
    assert isinstance(world, World)
    where = f"{story.cuts} in {story.writes}"
    assert world.result == RESULTS[name], where
    assert {kind: count for kind, count in world.effects.items() if kind != "begin"} == EFFECTS[name], where
    unknowable = {op.id for op in story.open_at_cut if op.effect == "once"}
    assert set(world.doubted) == (set() if name in NO_DOUBT else unknowable), where


async def check_all(name: str, make: MakeStore, *, pairs: bool = False, sample: int | None = None) -> int:
    stories = 0
    async for story in sweep(getattr(scenarios, name), make, pairs=pairs, sample=sample, seed=len(name)):
        check(name, story)
        stories += 1
    return stories


@pytest.mark.parametrize("name", EFFECTS)
async def test_nothing_is_lost_or_doubled_by_a_crash_at_any_write(name: str) -> None:
    assert await check_all(name, memory) >= 15


@pytest.mark.parametrize("name", EFFECTS)
async def test_nothing_is_lost_or_doubled_by_two_crashes(name: str) -> None:
    assert await check_all(name, memory, pairs=True, sample=60) >= 50


@pytest.mark.parametrize("name", EFFECTS)
async def test_it_holds_on_a_real_file(name: str, tmp_path: Path) -> None:
    make = on_disk(tmp_path)
    assert await check_all(name, make, sample=12) == 12
    assert await check_all(name, make, pairs=True, sample=6) == 6


@pytest.mark.parametrize("name", EFFECTS)
async def test_it_holds_on_postgres(name: str, fresh_postgres: MakeStore) -> None:
    assert await check_all(name, fresh_postgres, sample=12) == 12
    assert await check_all(name, fresh_postgres, pairs=True, sample=6) == 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", EFFECTS)
async def test_every_pair_of_crashes_on_a_real_file(name: str, tmp_path: Path) -> None:
    make = on_disk(tmp_path)
    assert await check_all(name, make)
    assert await check_all(name, memory, pairs=True)
    assert await check_all(name, make, pairs=True, sample=200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", EFFECTS)
async def test_every_crash_on_postgres(name: str, fresh_postgres: MakeStore) -> None:
    assert await check_all(name, fresh_postgres)
    assert await check_all(name, fresh_postgres, pairs=True, sample=200)


async def test_the_doubt_window_lies_between_the_intent_and_the_settlement() -> None:
    whole = await run(scenarios.skipping, (), memory)
    doubted: list[str] = []
    for at, written in enumerate(whole.writes, start=1):
        for how in ("before", "after", "lost"):
            story = await run(scenarios.skipping, (Cut(at, how),), memory)
            assert isinstance(story.scenario, World)
            doubted += [f"{how} {written}"] * bool(story.scenario.doubted)
    steps = ("search", "analyse", "publish")
    assert doubted == [f"{how} {step}" for step in steps for how in ("after OpenOp", "before SettleOp")]
