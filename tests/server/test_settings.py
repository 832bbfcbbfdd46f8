"""Settings: where they come from, what wins, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.settings import Settings, SettingsError, effective, load


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLAG_CONFIG", "CLAG_CACHE", "XDG_RUNTIME_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def origins(settings: Settings) -> dict[str, tuple[str, str]]:
    return {row.key: (row.value, row.origin) for row in effective(settings)}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_win_over_environment_over_file_over_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = write(
        tmp_path / "clag.toml",
        "[server]\ndrain_s = 1\nunary_deadline_s = 1\n[ingest]\nwindow_items = 300\n[log]\nlevel = 'error'\n",
    )
    monkeypatch.setenv("CLAG_SERVER__UNARY_DEADLINE_S", "2")
    monkeypatch.setenv("CLAG_INGEST__WINDOW_ITEMS", "400")
    shown = origins(load({"ingest.window_items": 500, "log.format": None}, config=config))
    assert shown["ingest.window_items"] == ("500", "flag")
    assert shown["server.unary_deadline_s"] == ("2.0", "environment CLAG_SERVER__UNARY_DEADLINE_S")
    assert shown["server.drain_s"] == ("1.0", f"file {config}")
    assert shown["log.level"] == ("error", f"file {config}")
    assert shown["log.format"] == ("auto", "default")


def test_the_file_named_by_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = write(tmp_path / "other.toml", "[log]\nlevel = 'debug'\n")
    monkeypatch.setenv("CLAG_CONFIG", str(config))
    assert load().log.level == "debug"


def test_the_users_file_is_read_when_it_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "clag").mkdir()
    config = write(tmp_path / "clag" / "config.toml", "[log]\nlevel = 'warning'\n")
    assert origins(load())["log.level"] == ("warning", f"file {config}")


def test_an_unknown_key_of_the_file_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    config = write(tmp_path / "clag.toml", "[server]\nsokcet = '/tmp/x'\n")
    with pytest.raises(SettingsError) as caught:
        load(config=config)
    (line,) = caught.value.lines
    assert '"server.sokcet"' in line
    assert str(config) in line
    assert '"server.socket"' in line


def test_an_unknown_variable_of_ours_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAG_SERVR__TCP", "127.0.0.1:1")
    with pytest.raises(SettingsError, match="environment CLAG_SERVR__TCP"):
        load()


def test_every_wrong_value_is_one_line_that_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAG_INGEST__WINDOW_ITEMS", "many")
    with pytest.raises(SettingsError) as caught:
        load({"log.level": "loud"})
    assert [line.partition(":")[0] for line in caught.value.lines] == ["ingest.window_items", "log.level"]
    assert "environment CLAG_INGEST__WINDOW_ITEMS" in caught.value.lines[0]
    assert all("\n" not in line for line in caught.value.lines)


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml"):
        load(config=tmp_path / "missing.toml")


def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path: Path) -> None:
    config = write(tmp_path / "broken.toml", "server = [")
    with pytest.raises(SettingsError, match=r"broken\.toml is not valid TOML"):
        load(config=config)


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "[::]:7070", "example.test:7070", "192.0.2.1:7070"])
def test_an_address_that_others_can_reach_is_refused_without_tls(address: str) -> None:
    with pytest.raises(SettingsError, match="refused without TLS"):
        load({"server.tcp": address})


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:7070", "[::1]:7070", "127.8.9.1:7070"])
def test_a_loopback_address_needs_no_tls(address: str) -> None:
    assert load({"server.tcp": address}).server.tcp == address


@pytest.mark.parametrize("address", ["7070", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70707", ":7070"])
def test_an_address_that_is_not_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        load({"server.tcp": address})


def test_a_socket_path_that_the_system_cannot_hold_is_refused_with_the_limit() -> None:
    with pytest.raises(SettingsError, match="allows 103"):
        load({"server.socket": "/tmp/" + "x" * 120})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"server.socket": ""}, "nothing to listen on"),
        ({"server.tls_cert": "/tmp/cert.pem"}, "must be set together"),
        ({"server.tls_client_ca": "/tmp/ca.pem"}, "needs server.tls_cert"),
        ({"models.backend": "scripted"}, "models.script must name a file"),
        ({"ingest.window_items": 10}, "at least ingest.max_batch_items"),
        ({"organize.episode_max": -1}, "must not be negative"),
        ({"organize.pull_cosine": "nan"}, "must be a finite number"),
        ({"organize.reorganize_every_s": "1e400"}, "must be a finite number"),
        ({"organize.archive_after_days": "1e300"}, "must be 0 to 36,525"),
        ({"organize.reorganize_contradictions": "2"}, "must be 0 to 1"),
        ({"retrieve.archived_cosine": "1.5"}, "must be 0 to 1"),
        ({"organize.archive_check_s": 0}, "must be above 0"),
        ({"organize.annotate": "poem"}, "organize.annotate"),
        ({"server.drain_s": 0}, "server.drain_s"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load(flags)


def test_a_rule_about_two_settings_says_where_the_one_that_somebody_set_came_from() -> None:
    with pytest.raises(SettingsError, match=r"models\.backend is from flag"):
        load({"models.backend": "scripted"})
    with pytest.raises(SettingsError, match=r"server\.tls_cert is from flag") as refused:
        load({"server.tls_cert": "/tmp/cert.pem"})
    assert "tls_key is from" not in str(refused.value)


def test_passwords_in_the_address_of_the_index_are_not_shown() -> None:
    shown = origins(load({"index.uri": "https://root:hunter2@milvus.example.test:19530"}))
    assert shown["index.uri"] == ("https://***@milvus.example.test:19530", "flag")


def test_every_setting_is_listed_once_with_its_section() -> None:
    keys = [row.key for row in effective(load())]
    assert len(keys) == len(set(keys))
    sections = {key.partition(".")[0] for key in keys}
    assert sections == {"server", "storage", "models", "index", "ingest", "organize", "retrieve", "log"}
