#!/usr/bin/env bash
# Wheels of harbor, verl and trl, whose declarations tell whether exports have the fields that these read. They
# are unpacked, not installed: nothing of them runs but data models.
set -eu
cd "$(dirname "$0")/../.."
target=.cache/peers
if [ -e "$target/done" ]; then exit 0; fi
mkdir -p "$target"
for wheel in harbor==0.25.0 verl==0.9.1 trl==1.16.0; do
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 --dest "$target" "$wheel" || { echo "missing: $wheel could not be downloaded"; exit 0; }
done
for wheel in "$target"/*.whl; do .venv/bin/python -m zipfile -e "$wheel" "$target"; done
touch "$target/done"
