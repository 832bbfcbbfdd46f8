"""Settings of a remote language model: how they are checked, and what they make of the model host."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.cli.model_cache import configured
from clag_server.models.api import EngineState
from clag_server.models.config import ModelsConfig
from clag_server.models.factory import build_models, build_remote
from clag_server.models.remote import RemoteSlm
from clag_server.models.remote_config import RemoteConfigError
from clag_server.models.specs import ModelKind, ModelMissingError
from clag_server.settings import SettingsError, load, models_config

URL = "http://127.0.0.1:8000/v1"


def test_a_model_elsewhere_is_neither_looked_for_nor_fetched_here(tmp_path: Path) -> None:
    settings = load({"models.slm": "qwen", "models.slm_url": URL, "models.cache_dir": tmp_path})
    assert configured(settings) == [("all-minilm-l6-v2", ModelKind.EMBEDDER)]
    config = models_config(settings.models)
    assert (config.slm, config.slm_url) == ("qwen", URL)
    with pytest.raises(ModelMissingError, match="all-minilm"):  # and nothing is missing but the embedder
        build_models(config)


def test_the_engine_of_a_model_elsewhere_has_its_name_and_sends_nothing_before_its_start(tmp_path: Path) -> None:
    remote = build_remote(ModelsConfig(cache=tmp_path, slm="qwen", slm_url=URL))
    assert isinstance(remote, RemoteSlm)
    assert remote.name == "qwen"
    assert remote.status.state is EngineState.LOADING


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"models.slm_url": URL, "models.slm": ""}, "models.slm must name the model"),
        ({"models.slm_url": "localhost:8000"}, "must be like http://"),
        ({"models.slm_url": "http://me:secret@host"}, "API key file"),
        ({"models.slm_api_key_file": "key"}, "needs models.slm_url"),
        ({"models.slm_url": URL, "models.slm_concurrency": "0"}, "models.slm_concurrency"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_line_that_says_why(
    flags: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        load(flags)


def test_a_key_file_that_is_missing_refuses_the_start(tmp_path: Path) -> None:
    config = ModelsConfig(cache=tmp_path, slm="qwen", slm_url=URL, slm_api_key_file=tmp_path / "nowhere")
    with pytest.raises(RemoteConfigError, match="nowhere"):
        build_remote(config)
