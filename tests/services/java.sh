#!/usr/bin/env bash
# A Java runtime, which ScienceWorld's simulator needs.
set -euo pipefail
command -v java >/dev/null && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "java: install it for the tests of ScienceWorld"; exit 0; }
apt-get update -qq && apt-get install -y -qq default-jre-headless >/dev/null || echo "java: cannot be installed"
