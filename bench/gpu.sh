#!/usr/bin/env bash
# Runs the whole engine benchmark on a CUDA machine in under ten minutes: one JSON file and one table.
#   bench/gpu.sh MODEL_FOLDER [OUTPUT_FOLDER]
# MODEL_FOLDER holds config.json, tokenizer.json and safetensors weights; random weights of a shape serve for speed:
#   python -m bench.slm_random config.json tokenizer.json FOLDER
set -euo pipefail
model=${1:?usage: bench/gpu.sh MODEL_FOLDER [OUTPUT_FOLDER]}
out=${2:-.}
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no CUDA device here")'
mkdir -p "$out"
timeout 570 "$python" -m bench slm --slm "$model" --device cuda --report "$out/slm-gpu.json" | tee "$out/slm-gpu.txt"
