"""Output that cannot be written: one line and an exit code, never a fault."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, TIMEOUT_S, Ended, environment

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")


def redirected(command: str, home: Path) -> Ended:
    """Run `clag` with a redirection of the shell."""
    script = command.replace("clag", '"$0" -m clag_server', 1)
    done = subprocess.run(
        ["sh", "-c", script, COMMAND[0]],
        capture_output=True,
        text=True,
        env=environment(home),
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("command", ["version", "config", "config --json", "--help", "--version"])
def test_a_full_disk_is_one_line_and_exit_code_4(tmp_path: Path, command: str) -> None:
    done = redirected(f"clag {command} >/dev/full", tmp_path)
    assert done.code == 4
    assert done.error() == "clag: cannot write the output: No space left on device"


@pytest.mark.parametrize("command", ["version", "config"])
def test_a_closed_standard_output_is_one_line_and_exit_code_4(tmp_path: Path, command: str) -> None:
    done = redirected(f"clag {command} >&-", tmp_path)
    assert done.code == 4
    assert done.error() == "clag: cannot write the output: standard output is closed"


def test_a_closed_standard_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = redirected("clag ingest --dry-run - <&-", tmp_path)
    assert done.code == 2
    assert "standard input" in done.error()


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_without_a_place_for_errors_the_exit_code_still_tells(tmp_path: Path, where: str) -> None:
    done = redirected(f"clag nope {where}", tmp_path)
    assert (done.code, done.out) == (2, "")
