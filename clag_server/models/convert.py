"""GGUF to safetensors, once: a GGUF load took 16 s, the same weights in bfloat16 safetensors 0.06 s.

Runs in a process of its own (`python -m clag_server.models.convert SOURCE TARGET`), because it imports torch and
takes memory that the server must not keep. It prints one JSON object a line: `{"done": 2, "total": 4}`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.models.specs import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONVERTER_VERSION", "convert_gguf"]

CONVERTER_VERSION = 1
"""Part of the key of a converted folder: a new version converts again."""

_STEPS = 4


def convert_gguf(source: Path, target: Path, on_progress: Callable[[int, int], None]) -> None:
    """Convert a GGUF file.

    Args:
        source: The file.
        target: Folder that gets `model.safetensors` (bfloat16), configuration, tokenizer and chat template.
        on_progress: Hears steps done and their number.

    Raises:
        StoreError: The file cannot be converted, with the converter's last line.
    """
    command = [sys.executable, "-m", "clag_server.models.convert", str(source), str(target)]
    # The parent's environment is inherited; nothing may be fetched during a conversion.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    errors = target.with_name(target.name + ".log")
    with (
        errors.open("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
    ):
        if process.stdout is not None:
            for line in process.stdout:
                _report(line, on_progress)
        code = process.wait()
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    errors.unlink(missing_ok=True)
    if code != 0:
        raise StoreError(f"{source.name} cannot be converted: {lines[-1][:300] if lines else f'status {code}'}")


def _report(line: str, on_progress: Callable[[int, int], None]) -> None:
    try:
        message = json.loads(line)
    except ValueError:
        return  # a library's own print
    if isinstance(message, dict) and "done" in message:
        on_progress(int(message["done"]), int(message["total"]))


def _main(source: Path, target: Path) -> None:
    _say(0)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    _say(1)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        # Otherwise the weights stay packed, which can neither be saved nor run at full speed.
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    _say(2)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    _say(3)
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    _say(_STEPS)


def _say(done: int) -> None:
    sys.stdout.write(json.dumps({"done": done, "total": _STEPS}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
