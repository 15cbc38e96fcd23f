#!/bin/bash
# The root file system of the sandboxes (image "base"), built once into ~/.cache/palestra/images.
set -u
if [ "$(id -u)" = 0 ] && ! command -v debootstrap > /dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap; } \
        > /dev/null 2>&1 || { echo "sandbox: cannot install debootstrap"; exit 0; }
fi
cd "$(dirname "$0")/../.." || exit 0
.venv/bin/palestra sandbox build base || echo "sandbox: the image is missing, tests that need it are skipped"
