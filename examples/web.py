"""Durable work behind a web application. FastAPI takes the same `lifespan`.

    uvicorn --app-dir examples web:app

POST /reports/tides starts the work, once, and answers at once; GET waits a moment for the result. The
process may be killed in between: the next one goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from perdure import Agent, Fiber, Runtime, fiber


class Reports(Agent):
    @fiber
    async def write(self, f: Fiber, topic: str) -> str:
        facts = [await f.op("look up", look_up, topic, page, effect="read") for page in range(3)]
        return f"{topic}: {', '.join(facts)}"


async def look_up(topic: str, page: int) -> str:
    await asyncio.sleep(0.05)
    return f"fact {page}"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    async with Runtime(os.environ.get("PERDURE_STORE", "sqlite:///reports.db"), agents=[Reports]) as rt:
        yield {"rt": rt}


async def start(request: Request) -> JSONResponse:
    """The topic is the key: a second request joins the first one's work."""
    topic = request.path_params["topic"]
    running = await request.state.rt.session(Reports, "all").start_once(topic, Reports.write, topic)
    return JSONResponse({"fiber": running.id, "new": await running.accepted()}, 202)


async def result(request: Request) -> JSONResponse:
    session = request.state.rt.session(Reports, "all")
    try:
        async with asyncio.timeout(5):
            return JSONResponse({"result": await session.wait(request.path_params["fiber"])})
    except TimeoutError:
        return JSONResponse({"result": None}, 202)


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/reports/{topic}", start, methods=["POST"]),
        Route("/results/{fiber}", result),
    ],
)
