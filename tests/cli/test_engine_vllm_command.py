"""`palestra engine vllm`: a server that is started as asked for, watched, and stopped."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVER = f"""#!{sys.executable}
import http.server, os, pathlib, sys, threading
if sys.argv[1] == "-c":
    print(True)
    sys.exit()
here = pathlib.Path(__file__).parent
here.joinpath("arguments").write_text(" ".join(sys.argv[1:]))
first = not here.joinpath("begun").exists()
here.joinpath("begun").touch()

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if first and self.path == "/die":
            os._exit(3)

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""


def test_it_is_started_with_what_was_given_and_again_when_it_dies(
    start: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(SERVER)
    python.chmod(0o755)
    command = start(
        *("engine", "vllm", "--python", python, "--port", "0", "--name", "mine", model),
        *("--", "--max-model-len", "512"),
    )
    url = command.read_until(r"serving mine at (http://127.0.0.1:\d+)/v1")[1]
    arguments = (tmp_path / "arguments").read_text()
    assert f"serve {model} " in arguments and "--served-model-name mine" in arguments
    assert "--logprobs-mode processed_logprobs --enable-scale-out --max-model-len 512" in arguments
    assert "--worker-extension-cls palestra_receiver.WeightReceiver" in arguments
    urllib.request.urlopen(url + "/die").close()
    command.read_until("vLLM ended, starting it again")
    ended = command.interrupt()
    assert (ended.status, ended.err) == (0, "")


def test_an_interpreter_without_vllm_is_named(palestra: Callable[..., Any], model: Path) -> None:
    ended = palestra("engine", "vllm", "--python", "/bin/false", model)
    assert ended.status == 2 and "/bin/false has no vLLM: pip install vllm there" in ended.err
