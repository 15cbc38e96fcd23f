"""Add a harness of your own: an agent in a dozen lines, its recipe, and the check that all of it is recorded.

    python examples/add_a_harness.py

A package would name the class in the entry point group "palestra.harnesses" instead of calling register().
"""

import asyncio

from palestra.rollouts.harnesses.check import check
from palestra.rollouts.harnesses.recipes import Address, Beside, HarnessRecipe, Launch, register

AGENT = """
import httpx, json, os, subprocess, sys
parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "bash", "description": "", "parameters": parameters}}]
history = [{"role": "user", "content": sys.argv[1]}]
while True:
    body = {"model": "any", "messages": history, "tools": tools}
    head = {"authorization": "Bearer " + os.environ["AGENT_KEY"]}
    reply = httpx.post(os.environ["AGENT_URL"] + "/chat/completions", json=body, headers=head, timeout=600)
    history.append(reply.raise_for_status().json()["choices"][0]["message"])
    for call in history[-1].get("tool_calls") or sys.exit(print(history[-1]["content"])):
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(command, shell=True, capture_output=True, text=True)
        history.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr})
"""


class TinyAgent(HarnessRecipe):
    name = "tiny-agent"
    dialects = ("chat",)
    install = Beside("httpx")  # or Npm("@you/agent", "1.0.0", "agent"), Venv(("your-agent==1.0.0",), "agent")
    shell = "bash"

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        env = {"AGENT_URL": f"{model.root_url}/v1", "AGENT_KEY": model.key}
        return Launch((program, "-c", AGENT, prompt), env)


if __name__ == "__main__":
    register(TinyAgent())
    verdict = asyncio.run(check(TinyAgent()))
    found = verdict.audit
    print(f"{found.calls} calls, {found.branches} branch, {found.mismatches} differ from what the engine saw")
    print("faithful" if verdict.good else verdict.faults)
