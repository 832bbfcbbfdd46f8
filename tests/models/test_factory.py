"""The composition root gets models from a configuration, and the server stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clag_server.models.api import EngineState, ModelUnavailableError, Priority
from clag_server.models.config import Backend, ModelsConfig
from clag_server.models.factory import build_models
from clag_server.models.scripted import ScriptError
from clag_server.models.specs import ModelMissingError


def test_the_server_imports_no_torch() -> None:
    program = (
        "import sys, clag_server.models.factory, clag_server.models.store\n"
        "heavy = {'torch', 'transformers', 'xgrammar', 'gguf', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_an_empty_cache_is_reported_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match="clag models pull all-minilm-l6-v2"):
        build_models(ModelsConfig(cache=tmp_path))


async def test_scripted_models_are_built_from_their_file(tmp_path: Path) -> None:
    config = ModelsConfig(cache=tmp_path, backend=Backend.SCRIPTED, script=tmp_path / "script.json")
    with pytest.raises(ScriptError, match="no script"):
        build_models(config)
    (tmp_path / "script.json").write_text('{"generate": "unavailable"}')
    host = build_models(config)
    await host.start()
    vectors = await host.embedder.embed(["text"], priority=Priority.INTERACTIVE)
    assert vectors.shape == (1, host.embedder.dim)
    assert host.status().embedder.state is EngineState.READY
    assert host.status().slm.state is EngineState.DEGRADED
    with pytest.raises(ModelUnavailableError):
        await host.slm.generate("ask", grammar=None, max_tokens=5, priority=Priority.INTERACTIVE)
    assert host.token_counter.count(["four", "", "eight by"]) == [1, 0, 2]
    await host.stop()
