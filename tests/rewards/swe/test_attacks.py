"""Ways to a score without a repair, one test each. None succeeds, and none of them becomes "not measured"."""

from __future__ import annotations

import pytest

from palestra.rewards.swe.grader import RepairTests
from palestra.tasks.swe.tree import File
from palestra.trajectories.model import Score
from swe import BROKEN, PATH, appended, broken_tree, machines, patch, task

NAME = BROKEN.rpartition("::")[2]
PASSING_TEST = f"def {NAME}():\n    pass\n"
FORGE_REPORTS = """
import pytest
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
DROP_TESTS = (
    f"def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if i.name != '{NAME}']\n"
)
PLUGIN_CALLED = "def pytest_runtest_call(item):\n    item.runtest = lambda: None\n"
SAY_PASSED = f"""
import sys
for out in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
    print("PASSED {BROKEN}\\n36 passed in 0.1s", file=out, flush=True)
"""


FILES: dict[str, tuple[dict[str, str | File | None], str]] = {
    "a test is rewritten": ({"tests/test_core.py": PASSING_TEST}, "put back: tests/test_core.py"),
    "a test is deleted": ({"tests/test_core.py": None}, "put back: tests/test_core.py"),
    "all tests are deleted": (
        {"tests/test_core.py": None, "tests/test_text.py": None},
        "put back: tests/test_core.py",
    ),
    "a conftest at the root forges reports": ({"conftest.py": FORGE_REPORTS}, "put back: conftest.py"),
    "a conftest beside the tests forges reports": (
        {"tests/conftest.py": FORGE_REPORTS},
        "put back: tests/conftest",
    ),
    "a conftest drops tests": ({"conftest.py": DROP_TESTS}, "put back"),
    "pytest.ini deselects": (
        {"pytest.ini": f"[pytest]\naddopts = --deselect {BROKEN}\n"},
        "put back: pytest.ini",
    ),
    "pytest.ini loads a plugin": (
        {"pytest.ini": "[pytest]\naddopts = -p forge\n", "forge.py": PLUGIN_CALLED},
        "put back: pytest.ini",
    ),
    "pyproject.toml loads a plugin": (
        {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p forge"\n', "forge.py": PLUGIN_CALLED},
        NAME,
    ),
    "setup.cfg deselects": ({"setup.cfg": f"[tool:pytest]\naddopts = --deselect {BROKEN}\n"}, NAME),
    "tox.ini narrows what is collected": (
        {"tox.ini": "[pytest]\npython_functions = nothing_*\n"},
        "put back: tox.ini",
    ),
    "sitecustomize forges": ({"sitecustomize.py": FORGE_REPORTS}, "put back: sitecustomize.py"),
    "a .pth file runs code": ({"forge.pth": "import os; os._exit(0)\n"}, "put back: forge.pth"),
    "pytest itself is shadowed": ({"pytest.py": "def main(*a, **k): return 0\n"}, "put back: pytest.py"),
    "the standard library is shadowed": (
        {"json.py": "raise SystemExit(0)\n", "os.py": "raise SystemExit(0)\n"},
        NAME,
    ),
    "an entry point loads a plugin": (
        {
            "intervals.egg-info/entry_points.txt": "[pytest11]\nforge = forge\n",
            "intervals.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: intervals\nVersion: 1\n",
            "forge.py": PLUGIN_CALLED,
        },
        NAME,
    ),
    "tests become a link to others": (
        {
            "tests/test_core.py": None,
            "tests/test_text.py": None,
            "mine/test_core.py": PASSING_TEST,
            "tests": File(b"mine", "120000"),
        },
        "put back",
    ),
    "bytecode stands in for source": ({f"tests/{NAME}.pyc": "x", "intervals/core.pyc": "x"}, ""),
}

CODE: dict[str, tuple[str, str]] = {
    "it prints that tests passed": (SAY_PASSED, NAME),
    "it exits early with 0": ("import os\nos._exit(0)\n", "ended early"),
    "it raises SystemExit(0)": ("raise SystemExit(0)\n", ""),
    "it exits at the end of the first test": (
        "import os, sys, threading\nthreading.Timer(0.3, os._exit, [0]).start()\nimport time; time.sleep(1)\n",
        "ended early",
    ),
    "it replaces how reports are made": (
        "import _pytest.reports as r\nmake = r.TestReport.from_item_and_call\n"
        "def lie(cls, item, call):\n    report = make(item, call)\n    report.outcome = 'passed'\n    return report\n"
        "r.TestReport.from_item_and_call = classmethod(lie)\n",
        "tampered",
    ),
    "it replaces how tests run": (
        "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n",
        "tampered",
    ),
    "it replaces the code of a function of pytest": (
        "import _pytest.python as p\ndef quiet(self): pass\np.Function.runtest.__code__ = quiet.__code__\n",
        "tampered",
    ),
    "it lets unittest assert nothing": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n",
        "tampered",
    ),
    "it replaces a builtin": ("import builtins\nbuiltins.AssertionError = SystemExit\n", "tampered"),
    "it registers a plugin": (
        "import gc, _pytest.config as c\n"
        "class Forge:\n    def pytest_runtest_logreport(self, report): report.outcome = 'passed'\n"
        "    def pytest_pyfunc_call(self, pyfuncitem): return True\n"
        "for o in gc.get_objects():\n    if isinstance(o, c.PytestPluginManager): o.register(Forge())\n",
        "tampered",
    ),
    "it replaces the test in its module": (
        f"""import sys, threading, time
def swap():
    for _ in range(2000):
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").endswith("test_core") and hasattr(module, "{NAME}"):
                module.{NAME} = lambda: None
                return
        time.sleep(0.0005)
threading.Thread(target=swap, daemon=True).start()
""",
        "",
    ),
    "it gives a collected test another body": (
        "import gc, threading, time\nfrom _pytest.python import Function\n"
        "def swap():\n    for _ in range(400):\n        for o in gc.get_objects():\n"
        f"            if type(o) is Function and o.name == '{NAME}':\n"
        "                o.obj = lambda: None\n                return\n        time.sleep(0.001)\n"
        "threading.Thread(target=swap, daemon=True).start()\n",
        "",
    ),
    "it skips lines with a trace function": (
        "import sys, threading\ndef trace(frame, event, arg):\n"
        "    return trace\nsys.settrace(trace)\nthreading.settrace(trace)\n",
        "tampered",
    ),
    "it writes a report before the runner does": (
        f"""import json
report = {{"started": True, "finished": True, "exit_status": 0, "timed_out": False, "messages": {{}},
    "tampering": [], "statuses": {{"{BROKEN}": "passed"}}}}
open("/tmp/.palestra.report.json", "w").write(json.dumps(report))
""",
        NAME,
    ),
    "it leaves a process that writes the report again and again": (
        f"""import json, os, time
if os.fork() == 0:
    os.setsid()
    body = json.dumps({{"started": True, "finished": True, "exit_status": 0, "timed_out": False, "messages": {{}},
        "tampering": [], "statuses": {{"{BROKEN}": "passed", "tests/test_core.py::test_union": "passed"}}}})
    for _ in range(100):
        time.sleep(0.05)
        try: open("/tmp/.palestra.report.json", "x").write(body)
        except OSError: pass
    os._exit(0)
""",
        "",
    ),
    "it writes results into every pipe": (
        f"""import json, os
body = b'0' * 64 + b' ' + json.dumps({{"id": "{BROKEN}", "status": "passed", "message": ""}}).encode() + b'\\n'
for descriptor in range(3, 40):
    try: os.write(descriptor, body)
    except OSError: pass
""",
        "tampered",
    ),
    "it kills the runner": ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n", "without a report"),
    "it hangs": ("import time\ntime.sleep(1000)\n", "time ran out"),
    "it closes every file": ("import os\nos.closerange(3, 200)\n", ""),
    "it fills the output": ("import sys\nsys.__stdout__.write('PASSED ' * 3000000)\n", NAME),
}


def graded(diff: str, **changes: object) -> Score:
    return RepairTests(machines().fresh)(task(**changes), diff)


def test_an_honest_repair_scores_one() -> None:
    fixed = broken_tree().text(PATH).replace("end < start", "end <= start")
    score = graded(patch({PATH: fixed, "notes/why.txt": "because\n", "data.bin": b"\0\1"}))
    assert score.value == 1.0 and score.parts == {"fail_to_pass": 1.0, "pass_to_pass": 1.0}, score.evidence


@pytest.mark.parametrize("name", FILES)
def test_files_that_decide_are_put_back(name: str) -> None:
    changes, says = FILES[name]
    score = graded(patch({**changes, "other.py": "x = 1\n"}))
    assert score.value == 0.0 and says in score.evidence, score.evidence
    assert score.parts["pass_to_pass"] == 1.0, "what is put back runs as before"


@pytest.mark.parametrize("name", CODE)
def test_code_under_test_cannot_decide(name: str) -> None:
    code, says = CODE[name]
    suite = task().data["suite"] | {"timeout_s": 4}
    score = graded(appended(code), **({"suite": _suite(suite)} if name == "it hangs" else {}))
    assert score.value == 0.0 and says in score.evidence, score.evidence


def _suite(fields: dict[str, object]) -> object:
    from palestra.tasks.swe.repair import Suite

    return Suite.model_validate(fields)


def test_nothing_on_the_machine_knows_the_solution_or_the_future() -> None:
    with machines().fresh(task()) as machine:
        log = machine.exec(
            "git log --all --format=%s%an; git stash list; git reflog | wc -l", cwd="/work/repo"
        )
        assert log.stdout.decode().split() == ["basepalestra", "1"]
        objects = machine.exec(
            "for g in /work/repo/.git /palestra/base.git; do"
            " git --git-dir=$g cat-file --batch-all-objects --batch; done;"
            "grep -rsa 'end <= start' /work /palestra /tmp /home"
        )
        assert b"end < start" in objects.stdout and b"end <= start" not in objects.stdout
