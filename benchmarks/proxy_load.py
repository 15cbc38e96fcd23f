"""Loading a proxy: conversations as bytes, the client in C, server processes and the CPU time they use."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from proxy_servers import REPLY, TURNS

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"
GROUP = 4
"""Sessions that play the same conversation one after the other, as the attempts of a group do."""
KEY = "sk-" + "5eed" * 16
LITELLM_VERSION = "1.106.2"
TOOL = {
    "type": "function",
    "function": {
        "name": "query",
        "description": "Run one SQL query on the database and show the rows.",
        "parameters": {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]},
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """What the client saw, and the CPU time that the server spent on it."""

    p50_us: float
    p99_us: float
    rps: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Server:
    """One process under load."""

    process: subprocess.Popen[str]
    port: int

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Target:
    """A server, and the bytes that the client sends to it."""

    def __init__(self, server: Server, texts: Sequence[Sequence[dict[str, Any]]], slow: int = 1) -> None:
        """`slow`: so many times fewer requests."""
        self.server, self._texts, self.slow = server, texts, slow

    def talks(self, count: int, stream: bool) -> list[list[bytes]]:
        """`count` conversations as requests."""
        paths = self.paths(count)
        return [
            [_request(path, body, stream) for body in self._texts[i // GROUP % len(self._texts)]]
            for i, path in enumerate(paths)
        ]

    def paths(self, count: int) -> list[str]:
        """Where each conversation goes."""
        return ["/v1/chat/completions"] * count


class Recorded(Target):
    """The recording proxy, where each conversation has a session."""

    def paths(self, count: int) -> list[str]:
        pipes = self.server.process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(f"open {count}\n")
        pipes.stdin.flush()
        return [f"/s/{key}/v1/chat/completions" for key in pipes.stdout.readline().split()]


def conversations(reply: str, count: int) -> list[list[dict[str, Any]]]:
    """Bodies of `count` conversations, no two alike."""
    made = []
    for number in range(count):
        messages: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}]
        bodies = []
        for turn in range(TURNS):
            words = " ".join(
                WORDS[(number * 79 + turn * 41 + k * (number + 3)) % len(WORDS)] for k in range(12)
            )
            messages.append(
                {"role": "user", "content": f"Case {number}, part {turn}: {words}. How many rows?"}
            )
            bodies.append({"model": "bench", "messages": list(messages), "tools": [TOOL]})
            messages.append({"role": "assistant", "content": reply})
        made.append(bodies)
    return made


_NOUNS = ("table", "column", "index", "view", "row", "join")
WORDS = tuple(a + b for a in _NOUNS for b in ("", "s", " name", "d", " of"))


def corpus() -> list[str]:
    """What the tokenizer of the benchmark learns, so that its tokens are as long as those of real ones."""
    talks = conversations(REPLY, 100)
    return [orjson.dumps(talk[-1]).decode() for talk in talks] + [REPLY] * 20


_SYSTEM = "You are a careful assistant who answers questions about a database with SQL. Say what you did."


def _request(path: str, body: dict[str, Any], stream: bool) -> bytes:
    extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    data = orjson.dumps(body | extra)
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def run(client: Path, target: Target, connections: int, talks: int, stream: bool) -> Run:
    """Load one server. Raises RuntimeError for any answer that is not 200."""
    requests = target.talks(max(connections, talks // target.slow), stream)
    with tempfile.NamedTemporaryFile(prefix="palestra-") as file:
        file.write(struct.pack("<I", len(requests)))
        for talk in requests:
            file.write(struct.pack("<I", len(talk)))
            file.writelines(struct.pack("<I", len(r)) + r for r in talk)
        file.flush()
        before_s = target.server.cpu_s()
        command = [client, "127.0.0.1", str(target.server.port), str(connections), file.name]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    seen = orjson.loads(done.stdout)
    if seen["errors"]:
        raise RuntimeError(f"{seen['errors']} of {seen['requests']} requests failed: {done.stderr}")
    waits, number = seen["latencies_us"], seen["requests"]
    cpu_us = 1e6 * (target.server.cpu_s() - before_s) / number
    return Run(median(waits), waits[int(0.99 * number)], number / seen["seconds"], cpu_us)


def start(stack: ExitStack, command: Sequence[object]) -> Server:
    """A server process; it ends with `stack`."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    return Server(process, int(process.stdout.readline()))


def compiled() -> Path:
    """The client, compiled where it is not yet. Raises CalledProcessError, FileNotFoundError without a compiler."""
    source, made = HERE / "load.c", CACHE / "load"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-o", str(made), str(source)], check=True)
    return made


def litellm(stack: ExitStack, upstream: Server, directory: Path) -> Server:
    """litellm's proxy in a venv of its own, which is made the first time."""
    venv = CACHE / "litellm-venv"
    if not (venv / "bin" / "litellm").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        wanted = f"litellm[proxy]=={LITELLM_VERSION}"
        subprocess.run([str(venv / "bin" / "pip"), "install", "--quiet", wanted], check=True)
    config = directory / "litellm.yaml"
    config.write_text(_LITELLM.format(port=upstream.port))
    port = _free_port()
    log = directory / "litellm.log"
    command = [venv / "bin" / "litellm", "--config", config, "--port", port, "--num_workers", 1]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": KEY,
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
            env=environment,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    _wait_for(port, process, log)
    return Server(process, port)


_LITELLM = """\
model_list:
  - model_name: bench
    litellm_params: {{model: openai/bench, api_base: "http://127.0.0.1:{port}/v1", api_key: none}}
litellm_settings: {{telemetry: false, set_verbose: false, drop_params: true}}
general_settings: {{disable_spend_logs: true, disable_error_logs: true}}
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[str], log: Path) -> None:
    """Until somebody listens. Raises RuntimeError where the process ends or does not listen for minutes."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"litellm does not listen: {log.read_text()[-2000:]}")
