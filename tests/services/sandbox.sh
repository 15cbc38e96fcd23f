#!/bin/bash
for image in base python; do
    .venv/bin/palestra sandbox build "$image" \
        || echo "sandbox: the image $image is missing, tests that need it are skipped"
done
