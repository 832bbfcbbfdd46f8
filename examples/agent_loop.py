"""The loop of an agent with a memory: perceive, remember, ask, act. Needs a running server (`clag serve`).

python examples/agent_loop.py [SOCKET or HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient, ClagError, NewMemory

from clag_server.settings_sources import default_socket

NAMESPACE = "agent-loop"
PERCEIVED = (
    ("camera", "The red pallet stands across aisle 7."),
    ("Mira", "Please keep the fire door on the north side free, the inspector comes on Friday."),
    ("battery", "soc=18% at 14:02, falling faster than yesterday"),
)
QUESTIONS = ("What blocks the way?", "Which door matters for the inspection?", "Do I have to charge soon?")


async def perceive() -> AsyncIterator[NewMemory]:
    """What the agent sees and hears; in a robot this comes from its sensors and never ends."""
    for speaker, text in PERCEIVED:
        yield NewMemory(text, speaker=speaker, session_id="today", event_time=datetime.now(UTC))


async def main(target: str) -> None:
    """Remember everything that is perceived, then ask before acting."""
    async with AsyncClient(target) as client:
        async with client.ingest(NAMESPACE, perceive(), ack_level=pb.ACK_LEVEL_SEARCHABLE) as ingestion:
            async for outcome in ingestion:  # first when it is on disk, then when it is found by meaning
                print(f"{outcome.memory_id}: {pb.AckLevel.Name(outcome.level)}")
        for question in QUESTIONS:
            answer = await client.get_context(NAMESPACE, question, context_tokens=200, max_memories=3)
            print(f"\n{question}\n{answer.context.text}")  # ready to go into the prompt of the agent's model


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"unix:{default_socket()}"))
    except ClagError as error:
        sys.exit(f"agent_loop: {error}; is `clag serve` running?")
