#!/bin/bash
# The root file systems of the sandboxes (images "base" and "python"), built once into ~/.cache/palestra/images.
set -u
if [ "$(id -u)" = 0 ] && ! command -v debootstrap > /dev/null; then
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap; } \
        > /dev/null 2>&1 || { echo "sandbox: cannot install debootstrap"; exit 0; }
fi
cd "$(dirname "$0")/../.." || exit 0
for image in base python; do
    .venv/bin/python -m palestra.cli sandbox build "$image" || echo "sandbox: the image $image is missing, tests that need it are skipped"
done
