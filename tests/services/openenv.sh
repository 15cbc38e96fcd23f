#!/usr/bin/env bash
# OpenEnv's client in an environment of its own, without the server half of its requirements.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.cache/openenv/bin/python
[ -x "$python" ] && "$python" -c "import openenv.core.generic_client" 2>/dev/null && exit 0
"${PYTHON:-python3}" -m venv .cache/openenv || { echo "openenv: no venv module; its test is skipped"; exit 0; }
"$python" -m pip install --quiet --disable-pip-version-check --no-deps "openenv==0.10.0" &&
  "$python" -m pip install --quiet --disable-pip-version-check websockets requests pydantic pyyaml httpx fastapi packaging rich typer tomli tomli-w jsonschema "fastmcp>=3,<4" ||
  { echo "openenv: cannot be installed; its test is skipped"; exit 0; }
"$python" -c "import openenv.core.generic_client" || echo "openenv: its client does not import"
