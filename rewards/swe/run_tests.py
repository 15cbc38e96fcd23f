"""Run a pytest suite and report what happened. Copied into the sandbox; needs Python 3.8 and pytest 7 alone.

    python3 -S -s run_tests.py < job.json

The parent process starts the tests in a child and writes the report when the child and its process group are dead,
so nothing that the tests do can come after it. The child loads pytest before it looks at the tree under test (-S -s:
no .pth, no sitecustomize), reports each result over a pipe in a line that is signed, and looks out for signs that the
tree has its hands in the test machinery: canaries (tests of ours that must fail, and one that must pass), tests whose
code is not what their file compiles to, trace functions, and functions of pytest, pluggy, unittest and builtins that
are not what they were.

Job: workdir, report, python_path, config, arguments, plugins, changed (paths), timeout_s, test_timeout_s.
Report: started, finished, exit_status, timed_out, statuses {id: status}, messages {id: text}, tampering [text].
Status: passed, failed, error, skipped, xfailed, xpassed.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import signal
import sys
import time
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Job = dict[str, Any]
    Send = Callable[[dict[str, Any]], None]
    Canary = Callable[[], None]

MAX_MESSAGE_CHARS = 2000
MAX_LINE_BYTES = 1 << 20
MACHINERY = ("_pytest", "pluggy", "unittest")
WORST_LAST = ("passed", "xfailed", "xpassed", "skipped", "failed", "error")


def main() -> None:
    job = json.load(sys.stdin)
    report = supervise(job)
    path = job["report"]
    if os.path.lexists(path):
        os.remove(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(report, file)


# The parent.


def supervise(job: Job) -> dict[str, Any]:
    """Run the child and gather its lines; returns the report."""
    key = secrets.token_bytes(32)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        play(job, key, writing)
    os.close(writing)
    lines, timed_out = gather(reading, time.monotonic() + job["timeout_s"])
    end(child)
    return summary(lines, key, timed_out)


def gather(reading: int, deadline: float) -> tuple[list[bytes], bool]:
    """(lines, whether time ran out): everything until the child ends, or says that it is done."""
    buffer = b""
    lines: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return lines, True
        block = os.read(reading, 1 << 16)
        buffer += block
        *whole, buffer = buffer.split(b"\n")
        lines += whole
        if not block or (whole and b'"finished"' in whole[-1]) or len(buffer) > MAX_LINE_BYTES:
            return lines, False


def end(child: int) -> None:
    """Kill the child and everything in its process group."""
    for _ in range(50):
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def summary(lines: list[bytes], key: bytes, timed_out: bool) -> dict[str, Any]:
    """The report. A line with a wrong signature is a sign of tampering, and of several results the worst counts."""
    report: dict[str, Any] = {
        "started": False,
        "finished": False,
        "exit_status": None,
        "timed_out": timed_out,
    }
    statuses: dict[str, str] = {}
    messages: dict[str, str] = {}
    tampering: list[str] = []
    for number, line in enumerate(lines):
        record = verified(line, key, number)
        if record is None:
            tampering.append("a result that the test runner did not write")
            break
        if "id" in record:
            statuses[record["id"]] = worst(statuses.get(record["id"], "passed"), record["status"])
            messages.update({record["id"]: record["message"]} if record["message"] else {})
        tampering += record.get("tampering", [])
        report.update({k: record[k] for k in ("started", "finished", "exit_status") if k in record})
    return dict(report, statuses=statuses, messages=messages, tampering=sorted(set(tampering)))


def verified(line: bytes, key: bytes, number: int) -> dict[str, Any] | None:
    """The record of a line, or None where it is not signed with `key` as line `number`."""
    signature, _, body = line.partition(b" ")
    wanted = sign(key, number, body)
    if not hmac.compare_digest(signature, wanted):
        return None
    record: dict[str, Any] = json.loads(body.decode())
    return record


def sign(key: bytes, number: int, body: bytes) -> bytes:
    """The signature of a line, 64 hexadecimal digits."""
    return hmac.new(key, str(number).encode() + body, hashlib.sha256).hexdigest().encode()


def worst(first: str, second: str) -> str:
    """The worse of two statuses."""
    return max(first, second, key=WORST_LAST.index)


# The child.


def play(job: Job, key: bytes, writing: int) -> None:
    """Run the tests in this process; never returns."""
    os.setsid()
    send = sender(key, writing)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    os.chdir(job["workdir"])
    sys.path[:] = sys.path[1:] + site_packages()
    import pytest

    tampering: list[str] = []
    plugin = make_plugin(send, job, tampering)
    seen = fingerprints()
    send({"started": True})
    roots = [os.path.normpath(os.path.join(job["workdir"], p)) for p in job["python_path"]]
    sys.path[:0] = roots
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)
    sys.argv = ["pytest"]
    status = int(pytest.main(arguments(job), plugins=[plugin]))
    tampering += changed(seen) + (["the reporter was changed"] if vars(plugin) else [])
    send({"finished": True, "exit_status": status, "tampering": tampering})
    sys.stdout.flush()
    os._exit(0)


def site_packages() -> list[str]:
    """Where the packages of this interpreter are; its .pth files are not read."""
    import site

    root = os.path.dirname(os.path.dirname(sys.executable))
    prefixes = [root] if os.path.exists(os.path.join(root, "pyvenv.cfg")) else None
    return [p for p in site.getsitepackages(prefixes) if os.path.isdir(p)]


def arguments(job: Job) -> list[str]:
    """The command line of pytest: our choice of configuration first, and no addopts but those of the job."""
    config: list[str] = ["-c", job["config"], "-o", "addopts="]
    fixed = ["--rootdir", job["workdir"], "-p", "no:cacheprovider", "-rA", "--tb=short", "--color=no"]
    plugins = [a for name in job["plugins"] for a in ("-p", name)]
    return [*config, *fixed, *plugins, *job["arguments"]]


def sender(key: bytes, writing: int) -> Send:
    """A function that signs a record and writes it to the parent."""
    sent = [0]
    write, dumps = os.write, json.dumps

    def send(record: dict[str, Any]) -> None:
        body = dumps(record).encode()
        data = sign(key, sent[0], body) + b" " + body + b"\n"
        sent[0] += 1
        while data:
            data = data[write(writing, data) :]

    return send


def make_plugin(send: Send, job: Job, tampering: list[str]) -> object:
    """The pytest plugin that plants canaries and reports each test once its last phase is over.

    What it knows is in local variables: an attribute could be replaced by the code under test.
    """
    import pytest

    canaries: dict[str, str] = {}
    phases: dict[str, list[tuple[str, str]]] = {}
    compiled: dict[str, list[CodeType]] = {}
    changed_files = {os.path.join(job["workdir"], p) for p in job["changed"]}

    def plant(session: Any, function: Canary, wanted: str) -> object:
        module = pytest.Module.from_parent(session, path=session.path / "canary.py", nodeid="canary")
        module.obj = sys.modules[__name__]
        item = pytest.Function.from_parent(module, name="test_" + secrets.token_hex(8), callobj=function)
        canaries[item.nodeid] = wanted
        return item

    def tell(nodeid: str, done: list[tuple[str, str]]) -> None:
        status = max((s for s, _ in done), key=WORST_LAST.index)
        if nodeid not in canaries:
            send({"id": nodeid, "status": status, "message": "\n".join(filter(None, (m for _, m in done)))})
        elif canaries.pop(nodeid) != status:
            tampering.append("a test that must fail did not, or the other way round")

    def inspect_item(item: Any) -> None:
        function = getattr(item, "function", None)
        if item.nodeid in canaries or function is None:
            return
        code = getattr(unwrapped(function), "__code__", None)
        path = getattr(code, "co_filename", "")
        if path not in compiled:
            compiled[path] = [] if path in changed_files else codes_in(path, item.config)
        if code not in compiled[path] or "runtest" in vars(item):
            tampering.append(f"{item.nodeid} is not what its file says")
        if sys.gettrace() is not None or sys.getprofile() is not None:
            tampering.append("a trace function was set")

    class Reporter:
        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
            ends = [i for i in range(1, len(items)) if items[i].path != items[i - 1].path]
            middle = secrets.choice(ends) if ends else len(items)
            for place in (len(items), middle, 0):
                items[place:place] = [plant(session, f, wanted) for f, wanted in CANARIES]

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_call(self, item: Any) -> Iterator[None]:
            inspect_item(item)
            if job.get("test_timeout_s"):
                signal.signal(signal.SIGALRM, lambda *_: pytest.fail("test timeout"))
                signal.setitimer(signal.ITIMER_REAL, job["test_timeout_s"])
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            phases.setdefault(report.nodeid, []).append((status_of(report), message_of(report)))
            if report.when == "teardown":
                tell(report.nodeid, phases.pop(report.nodeid))

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tell(report.nodeid, [("error", message_of(report))])

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
            # 0 and 1 say that all tests ran; an error of collection or pytest.exit() has another status.
            if canaries and exitstatus in (0, 1) and not session.shouldstop and not session.shouldfail:
                tampering.append("tests that were collected did not run")

    return Reporter()


def unwrapped(function: Any) -> Any:
    """The function below its decorators, as inspect.unwrap finds it."""
    for _ in range(50):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return function


def codes_in(path: str, config: Any) -> list[CodeType]:
    """All code objects that a file compiles to, with pytest's rewriting of asserts and without."""
    from _pytest.assertion.rewrite import rewrite_asserts

    try:
        with open(path, "rb") as file:
            source = file.read()
        plain, rewritten = ast.parse(source, path), ast.parse(source, path)
    except (OSError, SyntaxError, ValueError):
        return []
    rewrite_asserts(rewritten, source, path, config)
    found: list[CodeType] = []
    waiting = [compile(t, path, "exec", dont_inherit=True) for t in (plain, rewritten)]
    while waiting:
        code = waiting.pop()
        found.append(code)
        waiting += [c for c in code.co_consts if isinstance(c, type(code))]
    return found


def status_of(report: Any) -> str:
    """The status of one phase."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return "skipped" if report.skipped else "passed"


def message_of(report: Any) -> str:
    """The last part of what a failure says; empty for a phase that did not fail."""
    return report.longreprtext[-MAX_MESSAGE_CHARS:] if report.failed else ""


def fingerprints() -> dict[tuple[str, str], object]:
    """What the functions of the test machinery are now: {(module, name): code or object}."""
    found: dict[tuple[str, str], object] = {
        ("builtins", n): o for n, o in vars(sys.modules["builtins"]).items() if n != "_"
    }
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in MACHINERY:
            for owner in [module] + [o for o in vars(module).values() if isinstance(o, type)]:
                found.update(functions(owner))
    return found


def functions(owner: Any) -> dict[tuple[str, str], object]:
    """{(owner, name): code} of the functions of a module or a class."""
    where = owner.__name__ if not isinstance(owner, type) else owner.__module__ + "." + owner.__qualname__
    members = ((n, getattr(m, "__func__", m)) for n, m in vars(owner).items())
    return {(where, n): m.__code__ for n, m in members if hasattr(m, "__code__")}


def changed(before: dict[tuple[str, str], object]) -> list[str]:
    """What of the machinery is not what it was, as sentences."""
    now = fingerprints()
    return [f"{key[0]}.{key[1]} was replaced" for key, what in before.items() if now.get(key) is not what]


def canary_false() -> None:
    assert [1] == [2]


def canary_raise() -> None:
    raise ValueError("canary")


def canary_unittest() -> None:
    import unittest

    unittest.TestCase().assertEqual(1, 2)


def canary_true() -> None:
    assert [1] == [1]


CANARIES: list[tuple[Canary, str]] = [
    (canary_false, "failed"),
    (canary_raise, "failed"),
    (canary_unittest, "failed"),
    (canary_true, "passed"),
]

if __name__ == "__main__":
    main()
