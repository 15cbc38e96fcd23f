#!/bin/bash
# The official grader of SWE-bench in a virtual environment of its own, .cache/swebench: tests compare with it.
set -u
cd "$(dirname "$0")/../.." || exit 0
venv=.cache/swebench
[ -x "$venv/bin/python" ] && "$venv/bin/python" -c "import swebench.harness.grading, swebench.harness.utils" 2> /dev/null && exit 0
# Only what its grading and its reading of predictions need: all of it is half a gigabyte.
{ .venv/bin/python -m venv "$venv" \
    && "$venv/bin/pip" install -q --disable-pip-version-check --no-deps "swebench>=5,<6" \
    && "$venv/bin/pip" install -q --disable-pip-version-check docker requests unidiff tqdm python-dotenv datasets; } \
    > /dev/null 2>&1 || echo "swebench: it cannot be installed, tests that compare with it are skipped"
