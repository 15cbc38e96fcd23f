"""An agent of twenty lines with a shell tool, which needs nothing but Python: stands in for a command-line harness."""

from __future__ import annotations

from typing import ClassVar

from palestra.rollouts.harnesses.recipes import Address, HarnessRecipe, Launch
from palestra.rollouts.harnesses.recipes.install import Install, OnPath
from palestra.rollouts.harnesses.recipes.recipe import DialectName

_AGENT = """
import json, os, subprocess, sys, urllib.request as u
def ask(messages, tools):
    body = json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()
    head = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
    reply = u.urlopen(u.Request(os.environ["URL"] + "/v1/chat/completions", body, head), timeout=60)
    return json.load(reply)["choices"][0]["message"]
text = {"type": "string"}
function = {"name": "bash", "parameters": {"type": "object", "properties": {"command": text}}}
tools = [{"type": "function", "function": function}]
ask([{"role": "system", "content": "You are a title generator"}, {"role": "user", "content": "Name it."}], [])
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    reply = ask(messages, tools)
    messages.append(reply)
    for call in reply.get("tool_calls") or []:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        said = ran.stdout + ran.stderr
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": said or "nothing was said"})
    if not reply.get("tool_calls"):
        break
print(reply["content"])
"""


class SmallAgent(HarnessRecipe):
    """Asks for a title first, as others do."""

    name: ClassVar[str] = "small-agent"
    dialects: ClassVar[tuple[DialectName, ...]] = ("chat",)
    install: ClassVar[Install] = OnPath("python3", ("apt", "install", "python3"))
    shell: ClassVar[str] = "bash"

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """Python runs the text above."""
        return Launch((program, "-c", _AGENT, prompt), {"URL": model.root_url, "KEY": model.key})
