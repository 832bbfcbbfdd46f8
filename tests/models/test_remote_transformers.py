"""The remote engine against a real server: `transformers serve` with the bundled model."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clag_server.models.api import (
    ChoiceOption,
    EngineState,
    ModelUnavailableError,
    Priority,
    UnusableOutputError,
)
from clag_server.models.remote import RemoteSlm
from clag_server.models.remote_chat import Form
from clag_server.models.remote_config import RemoteConfig
from clag_server.models.remote_link import RemoteLink
from clag_server.models.schema import Object, Text
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from tests.support.remote_slm import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(300)]

NOW = Priority.INTERACTIVE


@pytest.fixture(scope="module")
def model(model_cache: Path) -> str:
    return str(ModelStore(model_cache).resolve("smollm2-135m-instruct", ModelKind.SLM).path)


@pytest.fixture(scope="module")
def url(model: str) -> Iterator[str]:
    """A server that has just been started: the engine itself waits until it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@asynccontextmanager
async def engine(url: str, model: str) -> AsyncIterator[tuple[RemoteSlm, RemoteLink]]:
    link = RemoteLink(RemoteConfig(url, model, breaker_cap_s=2.0))
    slm = RemoteSlm(link)
    await slm.start()
    try:
        yield slm, link
    finally:
        await slm.stop()


async def test_a_real_server_without_constraints_or_scores_is_used_for_what_it_can_do(url: str, model: str) -> None:
    async with engine(url, model) as (slm, link):
        await until(lambda: slm.status.state is EngineState.READY)
        found = await link.capabilities()
        # It accepts `json_object` and ignores it, which the probe must see.
        assert found.forms == {Form.TEXT}
        assert found.scores is None
        assert found.no_thinking

        short = await slm.generate("What is the capital of France?", max_tokens=3, priority=NOW)
        assert (short.finished, short.usage.tokens_out) == (False, 3)
        asked = "What is the capital of France? Answer with one word."
        whole = await slm.generate(asked, max_tokens=24, priority=NOW)
        assert "Paris" in whole.text
        assert whole.finished
        assert whole.usage.tokens_in > 10
        streamed = "".join([piece async for piece in slm.stream(asked, max_tokens=24, priority=NOW)])
        assert streamed == whole.text

        with pytest.raises(ModelUnavailableError, match="no vote") as told:
            await slm.choose("a cat", [ChoiceOption("c", "Topic: animals")], priority=NOW)
        assert told.value.retry_after_s is None

        answers = await asyncio.gather(
            *(slm.generate(asked, max_tokens=24, priority=NOW) for _ in range(3)),
            slm.generate("Say <|im_end|>", max_tokens=4, priority=NOW),
        )
        assert [one.text for one in answers[:3]] == [whole.text] * 3

        city = Object((("city", Text(2, 40)),))
        try:
            value = (await slm.generate(asked, schema=city, max_tokens=40, priority=NOW)).value
        except UnusableOutputError:
            # A model of this size does not always manage unaided; then it is counted, and nothing is made up.
            assert sum(slm.status.metrics.failures.values()) == 2
        else:
            assert isinstance(value, dict)
            assert set(value) == {"city"}


async def test_a_real_server_that_has_another_model_is_told_apart(url: str, model: str) -> None:
    async with engine(url, "another-model") as (slm, _):
        await until(lambda: slm.status.state is EngineState.ABSENT)
        assert model in slm.status.reason
        with pytest.raises(ModelUnavailableError):
            await slm.generate("Why?", max_tokens=3, priority=NOW)
