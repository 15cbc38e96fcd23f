#!/usr/bin/env bash
# Installs the command-line agents that tests/harness drives, at the versions of their recipes, one folder each.
set -euo pipefail
cd "$(dirname "$0")/../.."
names=(codex claude-code pi gemini-cli mini-swe-agent)

node_is_there() {
    local version
    version="$(node --version 2>/dev/null || echo v0)"
    version="${version#v}"
    [ "${version%%.*}" -ge 20 ] && command -v npm >/dev/null
}

if ! node_is_there && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get install -y -qq nodejs npm || true
fi
if ! node_is_there; then
    echo "node 20 or newer with npm is missing: ${names[*]} are not installed (https://nodejs.org)"
    exit 0
fi
if ! command -v unshare >/dev/null; then
    [ "$(id -u)" = 0 ] && apt-get install -y -qq util-linux || echo "unshare (util-linux) is missing"
fi
.venv/bin/palestra harness install "${names[@]}" || echo "not all of ${names[*]} could be installed"
