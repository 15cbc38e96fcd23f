"""A program that plays a world through the runner: what it does is recorded, what breaks has a boundary."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

import needs
from palestra.harness_proxy.continued import Continued, Observer
from palestra.harness_proxy.engines.base import EngineUnavailableError
from palestra.harness_proxy.engines.scripted import Script, ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.errors import NotInstalledError, PlaceError, RecipeError, RolloutError
from palestra.rollouts.harnesses import CommandLineHarness, Endpoint
from palestra.rollouts.harnesses.driver import Driver
from palestra.rollouts.harnesses.place import namespaces
from palestra.rollouts.harnesses.recipes import Address, HarnessRecipe, Installed, Launch, find_recipe
from palestra.rollouts.harnesses.recipes.install import Inside, Install
from palestra.rollouts.job import Job, RunSpec
from palestra.rollouts.runner import Runner
from palestra.rollouts.testing import puppet_task
from palestra.trajectories.model import Sampling, Trajectory

ASK = """
import json, os, sys, urllib.request as u
def ask(messages):
    body = json.dumps({"model": "m", "messages": messages, "tools": []}).encode()
    head = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
    reply = u.urlopen(u.Request(os.environ["URL"] + "/v1/chat/completions", body, head), timeout=30)
    return json.load(reply)["choices"][0]["message"]
user = [{"role": "user", "content": sys.argv[1]}]
"""
"""What every program below begins with."""


@dataclass(frozen=True)
class Present:
    """An install of something that is there."""

    def commands(self, folder: Path) -> list[list[str]]:
        return [["install", "it"]]

    def find(self, folder: Path) -> Installed | None:
        return Installed(sys.executable, "7")

    def inside(self, folder: Path) -> Inside:
        return Inside("python3")


@dataclass(frozen=True)
class Absent(Present):
    def find(self, folder: Path) -> Installed | None:
        return None


class Program(HarnessRecipe):
    """A few lines of Python as a harness."""

    name: ClassVar[str] = "program"
    dialects = ("chat",)
    install: ClassVar[Install] = Present()
    shell: ClassVar[str] = "shell"

    def __init__(self, source: str) -> None:
        self._source = ASK + source

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        env = {"URL": model.root_url, "KEY": model.key}
        return Launch((program, "-c", self._source, prompt), env)


@dataclass
class Bench:
    """Plays one rollout of a program."""

    rendering: Rendering
    isolated: bool
    proxies: list[Proxy] = field(default_factory=list)

    async def play(self, source: str, script: Script = ("Yes.",), **task: Any) -> Trajectory:
        proxy = Proxy(ScriptedEngine(self.rendering, script), self.rendering, retry_after_s=0.01)
        self.proxies.append(proxy)
        await proxy.start()
        runner = Runner(proxy, CommandLineHarness(Program(source), isolated=self.isolated))
        spec = RunSpec(run_id="r", mode="train", seed=0, sampling=Sampling(max_tokens=64), attempts=1)
        (trajectory,) = await runner.run([Job(puppet_task("t", **task), "g", 0)], spec)
        await runner.aclose()
        return trajectory


@pytest.fixture(params=[True, False], ids=["isolated", "bare"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param:
        try:
            namespaces()
        except PlaceError as error:
            needs.need(False, str(error))
    made = Bench(Rendering.load(make_tiny_tokenizer(tmp_path)), request.param)
    yield made
    for proxy in made.proxies:
        await proxy.aclose()


def failure(trajectory: Trajectory) -> tuple[str, str]:
    found = trajectory.rollout.failure
    assert found is not None and trajectory.rollout.reward is None
    return found.boundary, found.message


async def test_a_program_acts_on_the_world_and_steps_are_joined_to_calls(bench: Bench) -> None:
    source = """
import subprocess
first = ask(user)
said = subprocess.run(["world", "say", '{"text": "hi"}'], capture_output=True, text=True).stdout.strip()
ask([*user, first, {"role": "user", "content": said}])
subprocess.run(["world", "submit", '{"value": 0.5}'], check=True)
"""
    played = await bench.play(source, ["One.", "Two."])
    assert played.rollout.reward == 0.5
    assert (played.rollout.harness, played.rollout.harness_version) == ("program", "7")
    assert [(s.call, s.observation) for s in played.steps] == [(0, "heard hi"), (1, "submitted 0.5")]
    prompt = played.nodes[0].message.content
    assert "Do t." in prompt and '- say {"text"' in prompt and "Hand in the score." in prompt


async def test_what_the_agent_does_wrong_is_answered(bench: Bench) -> None:
    source = """
import subprocess
ask(user)
for words in (["world"], ["world", "dance"], ["world", "say", "not json"], ["world", "submit"], ["world", "say"]):
    print(subprocess.run(words, capture_output=True, text=True))
"""
    played = await bench.play(source)
    assert played.rollout.reward == 1.0
    assert [s.valid_action for s in played.steps] == [False, False, True]
    assert [s.terminated for s in played.steps] == [False, False, True]


@pytest.mark.parametrize(
    ("source", "boundary", "words"),
    [
        ("ask(user); sys.exit('the sky fell')", "harness", "exit code 1: the sky fell"),
        ("ask(user); os.kill(os.getpid(), 9)", "harness", "exit code"),
        ("print('no longer maintained')", "harness", "without asking the model once: no longer maintained"),
        ("ask(user); import time; time.sleep(60)", "budget", "took more than 2 s"),
    ],
    ids=["error", "killed", "stub", "hangs"],
)
async def test_a_program_that_breaks_has_no_reward(
    bench: Bench, source: str, boundary: str, words: str
) -> None:
    found, message = failure(await bench.play(source, wall_s=2.0 if boundary == "budget" else 60.0))
    assert found == boundary and words in message


async def test_a_model_out_of_reach_is_no_fault_of_the_program(bench: Bench) -> None:
    found, message = failure(await bench.play("ask(user)", [EngineUnavailableError("it sleeps")]))
    assert found == "provider" and "it sleeps" in message


async def test_a_world_that_breaks_is_no_fault_of_the_program(bench: Bench) -> None:
    source = "import subprocess; ask(user); subprocess.run(['world', 'say'], check=True)"
    found, message = failure(await bench.play(source, fault="step"))
    assert found == "env" and "the string snapped" in message


async def test_a_program_that_never_ends_is_ended_when_its_budget_is_spent(bench: Bench) -> None:
    """It is graded as it stands: that the tokens ran out is what the agent did."""
    played = await bench.play("while True: ask(user)", lambda prompt, name: "Again. " * 20, tokens=90)
    assert played.rollout.failure is None
    assert played.rollout.truncated


@dataclass(frozen=True)
class Dead:
    """The line to a proxy that has gone."""

    where: Path

    async def unix_socket(self) -> Path:
        return self.where / "nothing"

    def last_call(self) -> int | None:
        return None

    def watch(self, observer: Observer) -> None:
        raise AssertionError("there is nothing to watch")

    def replies(self) -> list[Continued]:
        return []

    def stops(self) -> tuple[str, ...]:
        return ()

    def failed(self) -> bool:
        return False


async def test_a_proxy_out_of_reach_is_no_fault_of_the_program(tmp_path: Path) -> None:
    endpoint = Endpoint("http://127.0.0.1:1/v1", "key", line=Dead(tmp_path))
    driver = Driver(Program("ask(user)"), isolated=False)
    async with driver.place(endpoint) as place:
        with pytest.raises(RolloutError, match="provider failed in connect: the proxy cannot be reached"):
            await driver.prompt(place, endpoint, "Go.", timeout_s=30)


async def test_a_proxy_elsewhere_has_no_line_into_an_isolated_place() -> None:
    with pytest.raises(RolloutError, match="the proxy is in another process"):
        async with Driver(Program("")).place(Endpoint("http://127.0.0.1:1/v1", "key")):
            pass


def test_a_harness_that_is_not_there_says_what_to_type() -> None:
    recipe = Program("")
    recipe.install = Absent()  # type: ignore[misc]
    with pytest.raises(NotInstalledError, match="palestra harness install program, which runs install it"):
        CommandLineHarness(recipe)


def test_a_dialect_that_it_does_not_speak_is_refused() -> None:
    with pytest.raises(RecipeError, match="codex speaks responses, not chat"):
        Driver(find_recipe("codex"), dialect="chat")
