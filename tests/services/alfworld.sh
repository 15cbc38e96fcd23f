#!/usr/bin/env bash
# ALFWorld's rules and Fast Downward, which pip compiles (minutes, the first time; pip keeps the wheel).
set -euo pipefail
cd "$(dirname "$0")/../.."
.venv/bin/python -c "import alfworld, fast_downward" 2>/dev/null && exit 0
if ! command -v cmake >/dev/null || ! command -v g++ >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq &&
        apt-get install -y -qq cmake g++ make >/dev/null ||
        { echo "alfworld: cmake and g++ are missing; its tests are skipped"; exit 0; }
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[alfworld]' ||
    echo "alfworld: cannot be installed; its tests are skipped"
