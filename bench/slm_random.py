"""`python -m bench.slm_random CONFIG TOKENIZER FOLDER`: random weights in a model's shape, for measuring speed."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="a config.json")
    parser.add_argument("tokenizer", type=Path, help="a tokenizer.json; its tokenizer_config.json is taken along")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(arguments.config), dtype=torch.bfloat16)
    model.save_pretrained(arguments.folder)
    shutil.copy(arguments.tokenizer, arguments.folder / "tokenizer.json")
    beside = arguments.tokenizer.with_name("tokenizer_config.json")
    if beside.exists():
        shutil.copy(beside, arguments.folder)


if __name__ == "__main__":
    main()
