"""Random programs of ops, branches, scopes and stashes, cut at random, against what must be true of any."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from perdure import Agent, Fiber, OpFailed, Runtime, current_op, fiber
from perdure.ports import Store
from perdure.stores import open_store
from perdure.testing.crash import AT_ONCE, HOWS, Cut, run
from tests.crash.world import World

EVICTING = replace(AT_ONCE, evict_after_commit=True)


@dataclass(frozen=True)
class Do:
    """One op. Its name is given by its place in the program."""

    effect: Literal["read", "keyed", "once"]
    with_key: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Together:
    branches: tuple[tuple["Step", ...], ...]


@dataclass(frozen=True)
class Within:
    steps: tuple["Step", ...]


@dataclass(frozen=True)
class Checkpoint:
    """Only between the steps of the whole program: what stands before it is skipped afterwards."""


Step = Do | Together | Within | Checkpoint

ops = st.builds(Do, st.sampled_from(["read", "keyed", "once"]), st.booleans()) | st.builds(
    Do, st.sampled_from(["keyed", "once"]), st.booleans(), st.just(True)
)
nested = st.recursive(
    ops,
    lambda inner: (
        st.builds(
            Together, st.lists(st.lists(inner, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
        )
        | st.builds(Within, st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=5,
)
programs = st.lists(nested | st.just(Checkpoint()), min_size=1, max_size=6).map(tuple)
cuts = st.lists(
    st.builds(Cut, st.integers(1, 40), st.sampled_from(HOWS)), max_size=3, unique_by=lambda cut: cut.at
)


def memory() -> Store:
    store = open_store("memory:")
    store.poll_every = 0.002
    return store


class Play(World):
    """A program as an agent, a client that settles doubts truthfully, and an outside that counts."""

    def __init__(self, program: tuple[Step, ...]) -> None:
        super().__init__()
        self.program = program
        self.keys: dict[str, set[str]] = {}
        world = self

        class Player(Agent):
            @fiber
            async def play(self, f: Fiber) -> list[Any]:
                stashed = f.stashed or {"next": 0, "results": []}
                results: list[Any] = stashed["results"]
                for number in range(stashed["next"], len(world.program)):
                    step = world.program[number]
                    if isinstance(step, Checkpoint):
                        await f.stash({"next": number + 1, "results": results})
                    else:
                        results.append(await world.play(f, step, str(number)))
                return results

        self.agents = [Player]
        self.client = self.ask

    async def ask(self, rt: Runtime) -> Any:
        session = rt.session(self.agents[0], "one")
        running = await session.start_once("play", self.agents[0].play)  # type: ignore[attr-defined]
        return await self.settled(session, lambda: session.wait(running.id))

    async def play(self, f: Fiber, step: Step, name: str) -> Any:
        match step:
            case Do():
                return await self.do(f, step, name)
            case Together(branches):
                return await f.gather(*(self.all(f, one, f"{name}.{n}") for n, one in enumerate(branches)))
            case Within(steps):
                async with f.scope(name):
                    return await self.all(f, steps, name)
            case Checkpoint():
                raise AssertionError("a checkpoint stands between the steps of the whole program")

    async def all(self, f: Fiber, steps: tuple[Step, ...], name: str) -> list[Any]:
        return [await self.play(f, one, f"{name}.{n}") for n, one in enumerate(steps)]

    async def do(self, f: Fiber, step: Do, name: str) -> Any:
        key = f"key of {name}" if step.with_key else None
        try:
            return await f.op(name, self.act, step.effect, name, step.fails, effect=step.effect, key=key)
        except OpFailed:
            return f"{name} failed"

    async def act(self, effect: str, name: str, fails: bool) -> str:
        """The other side of a `keyed` op knows which keys it has seen."""
        seen = self.keys.setdefault(name, set())
        if self.alive and not (effect == "keyed" and current_op().id in seen):
            self.effect(name)
        if self.alive:
            seen.add(current_op().id)
        if fails:
            raise ValueError(name)
        return name


def leaves(steps: tuple[Step, ...], name: str = "") -> dict[str, Do]:
    """Every op of a program, by its name."""
    found: dict[str, Do] = {}
    for number, step in enumerate(steps):
        here = f"{name}.{number}" if name else str(number)
        match step:
            case Do():
                found[here] = step
            case Together(branches):
                for branch, inner in enumerate(branches):
                    found |= leaves(inner, f"{here}.{branch}")
            case Within(inner):
                found |= leaves(inner, here)
            case Checkpoint():
                pass
    return found


def flat(value: Any) -> list[str]:
    return [one for inner in value for one in flat(inner)] if isinstance(value, list) else [value]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs, cuts, st.booleans())
async def test_no_random_program_loses_or_doubles_anything(
    program: tuple[Step, ...], cut: list[Cut], evicting: bool
) -> None:
    story = await run(lambda: Play(program), cut, memory, settings=EVICTING if evicting else AT_ONCE)
    play = story.scenario
    assert isinstance(play, Play)
    note(f"writes: {story.writes}")
    wanted = leaves(program)

    once = {name: 1 for name, step in wanted.items() if step.effect != "read"}
    did = Counter({name: count for name, count in play.effects.items() if name in once})
    assert did == once, "every irreversible op was done exactly once"
    assert all(len(play.keys[name]) == 1 for name in once), "and had one id in all lives"
    assert all(play.effects[name] >= 1 for name in wanted), "every read was made"

    said = flat(play.result)
    assert [one.removesuffix(" failed") for one in said] == list(wanted), "every result is there, in order"
    failed = {one.removesuffix(" failed") for one in said if one.endswith(" failed")}
    settled_by_hand = {op.kind for op in story.open_at_cut}
    assert failed <= {name for name, step in wanted.items() if step.fails}
    assert {name for name, step in wanted.items() if step.fails} - failed <= settled_by_hand

    unknowable = {op.id for op in story.open_at_cut if op.effect == "once"}
    assert set(play.doubted) == unknowable, "doubted is exactly what nobody can know"
