"""Record the OpenAI SDK: every token that the engine saw and sampled, although the SDK only sees text.

    pip install openai
    python examples/record_openai.py

`palestra proxy` does the same before a model of yours, for a harness in another process.
"""

import asyncio
import tempfile

from openai import AsyncOpenAI

from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Sampling


async def main() -> None:
    """Three calls: a question, another try at it, and one more turn after the second reply."""
    with tempfile.TemporaryDirectory() as directory:
        rendering = Rendering.load(make_tiny_tokenizer(directory))
    proxy = Proxy(ScriptedEngine(rendering, ["Rome.", "Paris.", "About two million."]), rendering)
    await proxy.start()
    session = proxy.open("capital", mode="train", sampling=Sampling(max_tokens=32))

    async with AsyncOpenAI(base_url=session.base_url, api_key=session.key) as client:
        question = {"role": "user", "content": "What is the capital of France?"}
        for messages in (
            [question],
            [question],
            [question, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "How large?"}],
        ):
            reply = await client.chat.completions.create(model="palestra", messages=messages)  # type: ignore[arg-type]
            print(f"the SDK sees:  {reply.choices[0].message.content}")

    recording = proxy.close(session)
    await proxy.aclose()
    graph = TokenGraph(recording.nodes)
    for leaf in graph.leaves():
        print(f"\na branch of {graph.path_length(leaf)} tokens:")
        for node in graph.path(leaf):
            text = rendering.decode(node.token_ids.tolist())
            print(f"  node {node.node_id}  {int(node.sampled.sum()):>2} sampled  {text!r}")


asyncio.run(main())
