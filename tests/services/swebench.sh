#!/bin/bash
# The official grader of SWE-bench in a virtual environment of its own, .cache/swebench: tests compare with it.
set -u
cd "$(dirname "$0")/../.." || exit 0
venv=.cache/swebench
grep -q . "$venv/complete" 2> /dev/null && exit 0
{ .venv/bin/python -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check "swebench>=5,<6" \
    && "$venv/bin/python" -c "import swebench.harness.grading, swebench.harness.utils" && echo yes > "$venv/complete"; } \
    > /dev/null 2>&1 || echo "swebench: it cannot be installed, tests that compare with it are skipped"
