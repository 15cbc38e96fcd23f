#!/usr/bin/env bash
# Chromium and the packages of the extras `web` and `oscar`, for the web world. Nothing has to run: tests start the browser.
set -eu
cd "$(dirname "$0")/../.."
if ! command -v chromium >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "chromium is missing: install it (Debian: apt-get install chromium); tests of the web world are skipped"
        exit 0
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
fi
python=.venv/bin/python
if [ -x $python ] && ! $python -c 'import playwright, starlette, multipart, a2wsgi, miniwob, PIL, oscar' 2>/dev/null; then
    $python -m pip install --quiet --disable-pip-version-check -e '.[web,oscar]'
fi
