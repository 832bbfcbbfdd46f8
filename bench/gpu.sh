#!/usr/bin/env bash
# Runs the engine benchmark on a CUDA machine in under ten minutes: one JSON file and one table.
#   bench/gpu.sh MODEL_FOLDER [OUTPUT_FOLDER]
# MODEL_FOLDER holds config.json, tokenizer.json and safetensors weights; random weights of a shape serve for speed:
#   python -m bench.slm_random config.json tokenizer.json FOLDER
# A dry run where there is no such machine:
#   DEVICE=cpu FLAGS=--quick bench/gpu.sh MODEL_FOLDER
# What was measured before the time is over is in the files; kills of the worker are left out, they are the same here.
set -euo pipefail
model=${1:?usage: bench/gpu.sh MODEL_FOLDER [OUTPUT_FOLDER]}
out=${2:-.}
device=${DEVICE:-cuda}
parts=${PARTS:-released,throughput,latency,embed,lag,validity,memory,prefixes,continuous}
mkdir -p "$out"
model=$(cd "$model" && pwd) out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
"$python" -c "import torch; torch.zeros(1, device='$device')"
timeout 590 "$python" -m bench slm --slm "$model" --device "$device" --only "$parts" ${FLAGS:-} \
  --report "$out/slm-$device.json" | tee "$out/slm-$device.txt"
