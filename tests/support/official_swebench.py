"""Run with the Python that has swebench: grade what is on standard input as the official harness does, print JSON.

Input: log, fail_to_pass, pass_to_pass, and perhaps predictions (a path). Output: report, statuses, predictions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any


def main() -> None:
    from swebench.harness.constants import EvalType
    from swebench.harness.grading import get_eval_report, get_logs_eval
    from swebench.harness.utils import get_predictions_from_file
    from swebench.types import TestSpec

    asked: dict[str, Any] = json.load(sys.stdin)
    spec = TestSpec(
        instance_id="x",
        image="",
        eval_script_list=[],
        repo="",
        version="",
        FAIL_TO_PASS=asked["fail_to_pass"],
        PASS_TO_PASS=asked["pass_to_pass"],
        log_parser="parse_log_pytest",
        eval_type=EvalType.PASS_AND_FAIL.value,
    )
    prediction = {"instance_id": "x", "model_name_or_path": "m", "model_patch": "diff"}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(asked["log"])
        file.flush()
        statuses, found = get_logs_eval(spec, file.name)
        report = get_eval_report(spec, prediction, file.name, include_tests_status=True)["x"]
    path = asked.get("predictions")
    read = get_predictions_from_file(path, "none", "test") if path else []
    print(json.dumps({"report": report, "statuses": statuses, "found": found, "predictions": read}))


if __name__ == "__main__":
    main()
