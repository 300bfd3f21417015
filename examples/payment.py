"""An op that must not happen twice, and whose outcome nobody knows: the doubt is a value.

    python examples/payment.py

The provider takes the money and then hangs up. Nothing is repeated silently: the fiber waits, and a
person, or code as here, says what is true.
"""

from __future__ import annotations

import asyncio
import sys

from perdure import Agent, Fiber, Interrupted, Runtime, fiber

CHARGED: list[str] = []


async def charge(customer: str, cents: int) -> str:
    CHARGED.append(f"{customer} {cents}")
    raise TimeoutError("the provider hung up before it answered")


class Checkout(Agent):
    @fiber
    async def pay(self, f: Fiber, customer: str, cents: int) -> str:
        receipt = await f.op("charge", charge, customer, cents, effect="once", key="charge")
        return f"paid with receipt {receipt}"


async def main(store: str) -> None:
    async with Runtime(store, agents=[Checkout]) as rt:
        session = rt.session(Checkout, "order-7")
        running = await session.start(Checkout.pay, "ada", 1999)
        try:
            await running
        except Interrupted as waits:
            print(waits)
        print(f"status: {await session.status()}, because {await session.why()}")

        (doubt,) = await session.doubts()
        print(f"the customer was charged {len(CHARGED)} time(s)")
        await session.resolve(doubt.id, happened=True, result="no. 4711")
        print(await session.wait(running.id))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
