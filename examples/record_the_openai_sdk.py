"""Record the unmodified OpenAI SDK through the proxy, and look at the token graph.

python examples/record_the_openai_sdk.py        (needs pip install openai)
"""

import asyncio
import tempfile

from openai import AsyncOpenAI

from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.trajectories.model import Sampling


async def main() -> None:
    """Two turns, then what was recorded."""
    rendering = Rendering.load(make_tiny_tokenizer(tempfile.mkdtemp()))
    proxy = Proxy(ScriptedEngine(rendering, ["Hello.", "42."]), rendering)
    await proxy.start()
    session = proxy.open("rollout-1", mode="train", sampling=Sampling(max_tokens=64))
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.key) as client:
        history = [{"role": "user", "content": "Hello?"}]
        for question in ("What is six times seven?", None):
            reply = await client.chat.completions.create(model="any", messages=history)  # type: ignore[arg-type]
            text = reply.choices[0].message.content or ""
            history += [{"role": "assistant", "content": text}]
            history += [{"role": "user", "content": question}] if question else []
    recording = proxy.close(session)
    await proxy.aclose()
    for node in recording.nodes:
        shown = rendering.decode(node.token_ids.tolist()).replace("\n", "\\n")
        print(f"node {node.node_id} after {node.parent}: {int(node.sampled.sum())} sampled  {shown}")
    for made in recording.calls:
        print(
            f"call {made.seq}: {made.prompt_mode}, {made.prompt_tokens} prompt tokens, ends in node {made.node_id}"
        )


if __name__ == "__main__":
    asyncio.run(main())
