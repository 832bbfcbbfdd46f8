"""Commands that need no server, and what the others say when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

import clag_server
from clag_server.cli.main import cli
from clag_server.cli.options import Seconds
from clag_server.cli.status import status_command
from clag_server.models.manifest import Manifest, hash_folder, write_manifest
from clag_server.models.specs import KNOWN_MODELS
from clag_server.models.store import ModelStore
from tests.cli.command import clag, environment


def imported_by(code: str, home: Path) -> set[str]:
    """Names of the top-level modules that are there after running some code."""
    program = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(home),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_help_names_every_command_and_every_exit_code(tmp_path: Path) -> None:
    done = clag("--help", home=tmp_path)
    assert done.code == 0
    for name in ("serve", "ingest", "retrieve", "clusters", "cluster", "memories", "memory", "delete", "status"):
        assert f"\n  {name} " in done.out
    for code in ("0 ok", "1 some", "2 usage", "3 server", "4 server", "5 model", "6 refused", "130 interrupted"):
        assert code in done.out


def test_help_needs_neither_grpc_nor_settings_and_no_command_needs_torch_or_pymilvus(tmp_path: Path) -> None:
    assert not imported_by("import clag_server.cli.main", tmp_path) & {"grpc", "pydantic", "rich", "torch"}
    every = "import click\nfrom clag_server.cli.main import cli\nfor name in cli.list_commands(None):\n"
    assert not imported_by(f"{every}    cli.get_command(None, name)", tmp_path) & {
        "torch",
        "pymilvus",
        "transformers",
    }


@pytest.mark.parametrize("arguments", [(), ("models",)])
def test_without_a_command_the_help_is_the_answer(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = clag(*arguments, home=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "\nCommands:\n" in done.out


def test_the_version_is_also_a_flag(tmp_path: Path) -> None:
    done = clag("--version", home=tmp_path)
    assert (done.code, done.out, done.err) == (0, f"clag {clag_server.__version__}\n", "")


@pytest.mark.parametrize("timeout", ["inf", "nan", "0", "-1", "1e300", "soon"])
def test_a_timeout_that_is_no_time_is_refused(timeout: str) -> None:
    with pytest.raises(click.BadParameter, match="seconds above 0"):
        Seconds().convert(timeout, None, None)


@pytest.mark.parametrize("address", ["host", "host:", ":7077", "host:70000", "host:0", "[::1]", "::1", "/run/s:1"])
def test_an_address_without_host_and_port_says_the_form(address: str) -> None:
    with pytest.raises(click.UsageError, match="HOST:PORT"):
        status_command.main(["--address", address], standalone_mode=False)


@pytest.mark.parametrize("name", cli.list_commands(None))  # type: ignore[arg-type]
def test_every_command_is_there_with_its_help(name: str) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    assert command.name == name
    assert command.help


def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    for arguments in (
        ["nope"],
        ["retrieve"],
        ["config", "--set", "nonsense"],
        ["config", "--set", "ingest.windwo_items=5"],
        ["config", "--tcp", "0.0.0.0:7070"],
        ["status", "--socket", "a", "--address", "b:1"],
        ["ingest", str(tmp_path / "missing.jsonl")],
        ["status", "--address", "127.0.0.1:1", "--token-file", str(tmp_path / "none")],
        ["status", "--timeout", "inf"],
        ["ingest", "-", "--reconnect", "nan"],
    ):
        done = clag(*arguments, home=tmp_path)
        assert (done.code, done.out) == (2, ""), arguments
        assert done.error().startswith("clag: ")


def test_config_says_of_a_script_that_is_missing_what_to_do_and_where_it_was_asked_for(tmp_path: Path) -> None:
    unset = clag("config", home=tmp_path, env={"CLAG_MODELS__BACKEND": "scripted"})
    assert (unset.code, unset.out) == (2, "")
    assert "models.script must name a file" in unset.error()
    assert "models.backend is from environment CLAG_MODELS__BACKEND" in unset.error()
    given = ["--set", "models.backend=scripted", "--set", f"models.script={tmp_path / 'none.json'}"]
    gone = clag("config", *given, home=tmp_path)
    assert gone.code == 2
    assert "models.script" in gone.out  # all is shown all the same
    assert f'models.script: there is no file "{tmp_path / "none.json"}" (from flag)' in gone.error()
    (tmp_path / "none.json").write_text("{}", encoding="utf-8")
    assert clag("config", *given, home=tmp_path).code == 0


def test_no_server_is_one_line_that_says_what_to_do_and_exit_code_3(tmp_path: Path) -> None:
    socket = tmp_path / "none.sock"
    done = clag("status", "--socket", socket, home=tmp_path)
    assert done.code == 3
    assert str(socket) in done.error()
    assert "clag serve" in done.error()


def test_debug_shows_the_traceback_too(tmp_path: Path) -> None:
    done = clag("status", "--socket", tmp_path / "none.sock", "--debug", home=tmp_path)
    assert done.code == 3
    assert "Traceback" in done.err


def test_config_says_where_each_setting_came_from(tmp_path: Path) -> None:
    file = tmp_path / "clag.toml"
    file.write_text('[server]\ntcp = "127.0.0.1:7070"\n[log]\nlevel = "warning"\n', encoding="utf-8")
    done = clag(
        "config",
        "--json",
        "--config",
        file,
        "--log-level",
        "error",
        "--set",
        "ingest.embed_batch=32",
        home=tmp_path,
        env={"CLAG_MODELS__THREADS": "2"},
    )
    rows = {row["key"]: (row["value"], row["origin"]) for row in done.lines()}
    assert done.code == 0
    assert rows["server.tcp"] == ("127.0.0.1:7070", f"file {file}")
    assert rows["models.threads"] == ("2", "environment CLAG_MODELS__THREADS")
    assert rows["log.level"] == ("error", "flag")
    assert rows["ingest.embed_batch"] == ("32", "flag")
    assert rows["server.drain_s"] == ("10.0", "default")


def test_a_dry_run_checks_the_rules_of_the_contract_and_stores_nothing(tmp_path: Path) -> None:
    lines = '{"text": "fine"}\n\n{"text": "x", "id": "a b"}\n{"text": "' + "x" * 40_000 + '"}\nnonsense\n'
    done = clag("ingest", "--dry-run", "--json", "-", home=tmp_path, stdin=lines)
    report = done.document()
    assert done.code == 1
    assert (report["items"], report["rejected"]) == (4, 3)
    assert [(error["line"], error["field"]) for error in report["errors"]] == [
        (3, "id"),
        (4, "text"),
        (5, ""),
    ]
    assert report["errors"][0]["message"] == "must be at most 128 of A-Z a-z 0-9 . _ : and -"


def test_nothing_to_store_is_said_and_needs_no_server(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n", encoding="utf-8")
    done = clag("ingest", empty, "--socket", tmp_path / "none.sock", home=tmp_path)
    assert (done.code, done.out, done.err) == (0, "no items: nothing was sent\n", "")


def fake_model(cache: Path) -> Path:
    """Put files and a manifest where the default embedder would be; the folder is returned."""
    folder = ModelStore(cache)._folder(KNOWN_MODELS[0])
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text(name, encoding="utf-8")
    write_manifest(folder, Manifest(KNOWN_MODELS[0].name, "test", hash_folder(folder)))
    return folder


def test_verify_finds_a_broken_and_a_missing_model_and_exits_with_5(tmp_path: Path) -> None:
    folder = fake_model(tmp_path / "cache")
    names = [spec.name for spec in KNOWN_MODELS]
    arguments = ("models", "verify", "--json", "--models-dir", tmp_path / "cache")
    whole = clag(*arguments, names[0], home=tmp_path)
    assert (whole.code, whole.lines()) == (0, [{"name": names[0], "ok": True, "faults": []}])
    (folder / "model.safetensors").write_text("changed", encoding="utf-8")
    broken = clag(*arguments, home=tmp_path)
    first, second = broken.lines()
    assert broken.code == 5
    assert first == {"name": names[0], "ok": False, "faults": ["model.safetensors was changed"]}
    assert (second["ok"], names[1] in second["faults"][0]) == (False, True)


def test_serving_offline_without_models_is_one_line_with_the_command_that_gets_them(tmp_path: Path) -> None:
    done = clag(
        "serve",
        "--offline",
        "--models-dir",
        tmp_path / "empty",
        "--data-dir",
        tmp_path / "data",
        "--socket",
        tmp_path / "s",
        home=tmp_path,
    )
    assert done.code == 5
    assert "all-minilm-l6-v2 is missing" in done.error()
    assert "clag models pull all-minilm-l6-v2" in done.error()
    assert not (tmp_path / "data").exists()
