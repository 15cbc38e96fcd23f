"""Vision from end to end: a model behind a chat API sees marked screenshots; they are kept by hash and exported."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from aiohttp import web

from browsers import browser
from needs import need
from palestra.harness_proxy.engines.hosted import HostedEngine
from palestra.harness_proxy.server import Proxy
from palestra.rollouts.harnesses import ToolLoop
from palestra.rollouts.runner import Runner, RunSpec, group_jobs
from palestra.tasks.web.miniwob import make
from palestra.trajectories.exports.formats import export
from palestra.trajectories.store import Store

ENV_ID = "tests/Marked-v0"
INKS = {(20, 110, 200), (20, 140, 60)}
"""Of the marks 1 and 2."""


class Model:
    """A chat API that clicks ONE and then TWO by the marks that it sees."""

    def __init__(self) -> None:
        self.pictures: list[bytes] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        picture = _picture(messages[-1])
        self.pictures.append(picture)
        mark = 1 + sum(m["role"] == "assistant" for m in messages) if _colours(picture) >= INKS else 99
        function = {"name": "click", "arguments": json.dumps({"target": mark})}
        call = {"id": f"call_{mark}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return web.json_response(
            {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        )


def _picture(message: dict[str, Any]) -> bytes:
    (url,) = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    return base64.b64decode(url.removeprefix("data:image/png;base64,"))


def _colours(picture: bytes) -> set[Any]:
    from PIL import Image

    found = Image.open(io.BytesIO(picture)).convert("RGB").getcolors(1 << 20)
    return {colour for _, colour in found or []}


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    made, app = Model(), web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()


@pytest.fixture(autouse=True)
def marked() -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(
            ENV_ID,
            "palestra.envs.web.env:WebEnv",
            kwargs={"images": "marked", "header": False},
            disable_env_checker=True,
            order_enforce=False,
        )


async def test_what_a_model_saw_is_in_the_store_and_in_exports(model: Model, tmp_path: Path) -> None:
    task = make("click-button-sequence", "test", 1).model_copy(update={"env": ENV_ID})
    engine = HostedEngine(model.url, "eyes")
    proxy = Proxy(engine)
    await proxy.start()
    with Store.open(tmp_path / "store", write=True) as store:
        runner = Runner(proxy, ToolLoop(), store=store)
        (played,) = await runner.run(group_jobs([task], 1), RunSpec("eyes", "eval", 0))
        await runner.aclose()
        await proxy.aclose()
        await engine.aclose()
        assert played.rollout.failure is None and played.rollout.capture_level == "text"
        assert played.rollout.score is not None and played.rollout.score.value == 1.0
        names = [hashlib.sha256(picture).hexdigest() for picture in model.pictures]
        kept = store.get(played.rollout.rollout_id)
        assert [m.sha256 for node in kept.nodes for m in node.message.media] == names and len(set(names)) == 2
        assert [store.get_blob(name) for name in names] == model.pictures
        export(store, "atif", tmp_path / "atif")
    (document,) = [p for p in (tmp_path / "atif").rglob("*.json") if "steps" in p.read_text()]
    assert [f"blobs/{name[:2]}/{name}" in document.read_text() for name in names] == [True, True]
