"""Cost of sandboxes: both backends beside the docker SDK's own calls and swe-rex, in one run.

    python benchmarks/sandbox.py --json
    python benchmarks/sandbox.py --swe-rex ~/swe-rex/bin/python     # a virtual environment that has swe-rex

`*_p50_ms` are medians of single calls, timed in turns with what they are compared with. A cycle makes a sandbox, runs
/bin/true in it and removes it; `rested` is one after 0.1 s without any, where the kernel takes longer to let a process
into control groups. The docker SDK's is `containers.run(remove=True)` of the same image with the same limits and no
network. swe-rex runs its LocalDeployment, so without any container: a lower bound of its cost.
`exec_per_host_spawn` is what a command costs in a live sandbox in units of the same program on the host, started and
awaited by posix_spawn: machines differ less in it than in milliseconds.
`idle_mb` is what a live, idle sandbox adds to the kernel's memory and tmpfs (/proc/meminfo), plus its processes. Needs
root, the image (`palestra sandbox build base`), and a Docker daemon for the comparison.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from measure import Bench, Measurement, measure
from palestra.envs.sandbox import images
from palestra.envs.sandbox.base import Image, Limits
from palestra.envs.sandbox.docker import DockerBackend
from palestra.envs.sandbox.errors import SandboxSetupError
from palestra.envs.sandbox.namespace import NamespaceBackend
from palestra.envs.sandbox.pool import Pool
from palestra.envs.sandbox.snippets import SnippetRunner

LIMITS = Limits()
TRUE = ["/bin/true"]

SWE_REX = """
import asyncio, json, sys, time
from statistics import median
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest

async def main(n):
    deployment = LocalDeployment()
    await deployment.start()
    runtime = deployment.runtime
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    calls = {
        "execute": lambda: runtime.execute(Command(command=["/bin/true"])),
        "run_in_session": lambda: runtime.run_in_session(BashAction(command="/bin/true")),
    }
    for name, call in calls.items():
        took = []
        for _ in range(n):
            began = time.perf_counter()
            await call()
            took.append(1000 * (time.perf_counter() - began))
        print(json.dumps([name, median(took)]))
    await deployment.stop()

asyncio.run(main(int(sys.argv[1])))
"""


class Calls:
    """A candidate that makes `count` calls per round and keeps how long each took."""

    def __init__(
        self, call: Callable[[], object], count: int, before: Callable[[], object] | None = None
    ) -> None:
        self._call, self._count, self._before = call, count, before
        self.took_ms: list[float] = []

    def __call__(self) -> None:
        for _ in range(self._count):
            if self._before:
                self._before()
            began = time.perf_counter()
            self._call()
            self.took_ms.append(1000 * (time.perf_counter() - began))

    @property
    def p50_ms(self) -> float:
        return round(median(self.took_ms), 4)


class Bencher:
    """The measurements, on backends that stay open."""

    def __init__(self, stack: ExitStack, image: Image, repeats: int, quick: bool) -> None:
        self.image, self.repeats, self.quick = image, repeats, quick
        self.namespace = stack.enter_context(NamespaceBackend())
        self.docker = _docker(stack)
        self.sandbox = stack.enter_context(self.namespace.create(image, LIMITS))
        self.cases: dict[str, Measurement] = {}
        self.facts: dict[str, Any] = {}

    def compare(self, case: str, candidates: dict[str, Calls]) -> dict[str, float]:
        """Time candidates in turns; the medians of single calls by name."""
        self.cases[case] = measure(candidates, repeats=self.repeats)
        return {name: calls.p50_ms for name, calls in candidates.items()}

    def cycle(self) -> None:
        candidates = {
            "namespace": Calls(self._cycle, 5),
            "namespace, after a rest": Calls(self._cycle, 2, before=lambda: time.sleep(0.1)),
        }
        if self.docker:
            run = self.docker.client.containers.run
            options = _docker_options(self.docker, self.image)
            candidates["docker SDK run"] = Calls(lambda: run(command=TRUE, remove=True, **options), 1)
        took = self.compare("create, run true, remove", candidates)
        self.facts["cycle_p50_ms"] = took["namespace"]
        self.facts["rested_cycle_p50_ms"] = took["namespace, after a rest"]
        if self.docker:
            self.facts["docker_sdk_cycle_p50_ms"] = took["docker SDK run"]
            self.facts["docker_cycle_ratio"] = round(took["docker SDK run"] / took["namespace"], 1)

    def _cycle(self) -> None:
        with self.namespace.create(self.image, LIMITS) as sandbox:
            sandbox.exec(TRUE)

    def exec(self, stack: ExitStack) -> None:
        snippets = stack.enter_context(SnippetRunner(self.sandbox))
        candidates = {
            "posix_spawn on the host": Calls(_spawn_on_host, 10),
            "namespace": Calls(lambda: self.sandbox.exec(TRUE), 10),
            "snippet, warm": Calls(lambda: snippets.run("pass"), 10),
            "python3 -c pass": Calls(lambda: self.sandbox.exec(["python3", "-c", "pass"]), 1),
        }
        if self.docker:
            inside = stack.enter_context(self.docker.create(self.image, LIMITS))
            container = self.docker.client.containers.run(
                command=["sleep", "1000"], detach=True, **_docker_options(self.docker, self.image)
            )
            stack.callback(lambda: container.remove(force=True))
            candidates["docker, through the agent"] = Calls(lambda: inside.exec(TRUE), 10)
            candidates["docker SDK exec_run"] = Calls(lambda: container.exec_run(TRUE), 2)
        took = self.compare("run true in a live sandbox", candidates)
        self.facts |= {"exec_p50_ms": took["namespace"], "snippet_p50_ms": took["snippet, warm"]}
        self.facts["host_spawn_p50_ms"] = host = took["posix_spawn on the host"]
        self.facts["exec_per_host_spawn"] = round(took["namespace"] / host, 2)
        if self.docker:
            sdk = took["docker SDK exec_run"]
            self.facts["docker_agent_exec_p50_ms"] = took["docker, through the agent"]
            self.facts["docker_sdk_exec_p50_ms"] = sdk
            self.facts["docker_exec_ratio"] = round(sdk / took["namespace"], 1)
            self.facts["docker_agent_exec_ratio"] = round(sdk / took["docker, through the agent"], 1)

    def acquire(self) -> None:
        with Pool(self.namespace, self.image, LIMITS, size=8) as pool:
            leases: list[Any] = []

            def refill() -> None:
                while leases:
                    leases.pop().close()
                pool.wait_until_full()

            calls = Calls(lambda: leases.append(pool.acquire()), 20, before=refill)
            self.facts["acquire_p50_ms"] = self.compare("acquire from a warm pool", {"pool": calls})["pool"]
            refill()

    def reset(self) -> None:
        def dirty() -> None:
            self.sandbox.exec(
                "mkdir -p d; for i in $(seq 20); do echo $i > d/$i; done; sleep 60 > /dev/null 2>&1 &"
            )

        calls = Calls(self.sandbox.reset, 5, before=dirty)
        self.facts["reset_p50_ms"] = self.compare("reset with 20 dirty files", {"namespace": calls})[
            "namespace"
        ]

    def fork(self) -> None:
        twins: list[Any] = []

        def forget() -> None:
            while twins:
                twins.pop().close()

        with self.namespace.create(self.image, LIMITS) as sandbox:
            sandbox.exec("head -c 50000000 /dev/urandom > big")
            source = sandbox.snapshot()

            def start_dirty() -> None:
                forget()
                sandbox.restore(source)
                sandbox.exec("head -c 50000000 /dev/zero > big")

            calls = Calls(lambda: twins.append(sandbox.fork()), 2, before=start_dirty)
            self.facts["fork_50mb_p50_ms"] = self.compare("fork with 50 MB dirty", {"namespace": calls})[
                "namespace"
            ]
            forget()
            source.close()

    def churn(self) -> None:
        """Made and removed per second by two threads."""
        count = 100 if self.quick else 1000

        def work() -> None:
            for _ in range(count // 2):
                self.namespace.create(self.image, LIMITS).close()

        threads = [threading.Thread(target=work) for _ in range(2)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.facts["churn_per_s"] = round(count / (time.perf_counter() - began))

    def idle(self) -> None:
        count = 100 if self.quick else 1000
        before = _kernel_mb()
        live = [self.namespace.create(self.image, LIMITS) for _ in range(count)]
        process_mb = median(sum(map(_process_mb, _family(sandbox.pid))) for sandbox in live[:20])
        self.facts["idle_mb"] = round((_kernel_mb() - before) / count + process_mb, 3)
        answered = sum(sandbox.exec(TRUE).exit_code == 0 for sandbox in live)
        self.facts["live_at_once"] = answered
        for sandbox in live:
            sandbox.close()


def _spawn_on_host() -> None:
    os.waitpid(os.posix_spawn(TRUE[0], TRUE, os.environ), 0)


def _docker(stack: ExitStack) -> DockerBackend | None:
    try:
        return stack.enter_context(DockerBackend())
    except SandboxSetupError as error:
        print(f"without Docker: {error}")
        return None


def _docker_options(backend: DockerBackend, image: Image) -> dict[str, Any]:
    """The same image and limits through the SDK alone."""
    return {
        "image": backend.tag_of(image),
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": LIMITS.pids,
        "mem_limit": LIMITS.memory_bytes,
        "user": "1000:1000",
    }


def _kernel_mb() -> float:
    """What the kernel holds for itself and in tmpfs."""
    sizes = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
    return sum(int(sizes[name]) for name in ("Slab", "KernelStack", "PageTables", "Percpu", "Shmem")) / 1024


def _family(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def _process_mb(pid: int) -> float:
    """Memory of one process, what it shares divided among those that share it."""
    found = re.search(r"Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found
    return int(found[1]) / 1024


def _swe_rex(python: str, count: int, attempts: int = 3) -> dict[str, Any]:
    """Its shell session does not always start; what it said is reported where it never did."""
    for _ in range(attempts):
        done = subprocess.run([python, "-c", SWE_REX, str(count)], capture_output=True, text=True)
        if done.returncode == 0:
            lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
            return {f"swe_rex_local_{name}_p50_ms": round(took, 3) for name, took in map(json.loads, lines)}
    return {"swe_rex_failed": done.stderr[-300:]}


def main() -> None:
    bench = Bench("Sandboxes", example="python benchmarks/sandbox.py --quick")
    bench.parser.add_argument("--swe-rex", metavar="PYTHON", help="interpreter that can import swerex")
    args = bench.parse()
    with ExitStack() as stack:
        bencher = Bencher(stack, images.build("base"), args.repeats, args.quick)
        bencher.cycle()
        bencher.exec(stack)
        bencher.acquire()
        bencher.reset()
        bencher.fork()
        bencher.churn()
        bencher.idle()
        if args.swe_rex:
            bencher.facts |= _swe_rex(args.swe_rex, 5 if args.quick else 30)
        bench.show(bencher.cases, **bencher.facts)


if __name__ == "__main__":
    main()
