"""Is a harness recorded faithfully? A scripted session with the real program, and an audit of the recording.

    verdict = await check(find_recipe("codex"))
    assert verdict.good, verdict.faults

The script: reasoning, text and a shell call with oddly spelt arguments; two shell calls at once; a file
written; the last words; and, where the harness can go on, another prompt. `Witness` keeps an account of its own
of what the engine was given and gave, and `audit` holds a recording against it.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palestra.harness_proxy.engines.base import Capability, Engine, Generation
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Recording
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses.base import Endpoint, ProxyLine
from palestra.rollouts.harnesses.driver import Driver
from palestra.rollouts.harnesses.place import Place
from palestra.rollouts.harnesses.recipes.recipe import DialectName, HarnessRecipe, ToolUse
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Call, Sampling

CONTEXT_TOKENS = 1_000_000
MAX_CALLS = 40
TIME_S = 120.0
FILE, WRITTEN, LAST = "made.txt", "by the harness", "There are 42."


class Witness:
    """An engine that passes everything on and writes down what went in and came out, by session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.seen: dict[str, list[tuple[list[int], list[int]]]] = {}

    async def probe(self) -> Capability:
        """The engine's."""
        return await self._engine.probe()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """The engine's."""
        given = list(prompt_ids)
        generation = await self._engine.generate(prompt_ids, sampling, session=session)
        self.seen.setdefault(session, []).append((given, list(generation.token_ids)))
        return generation

    async def aclose(self) -> None:
        """Close the engine."""
        await self._engine.aclose()


@dataclass(frozen=True, slots=True)
class Audit:
    """A recording held against the witness's account."""

    calls: int
    roles: Mapping[str, int]
    sampled: int
    """Tokens that the engine sampled."""
    recorded: int
    """Sampled tokens of the recording."""
    mismatches: int
    """Calls whose path is not what the engine was given and gave, and samples that no call records."""
    branches: int
    """Of the main thread: calls of role agent below which there is none."""
    drifts: Mapping[str, int]
    undelivered: int


def audit(recording: Recording, seen: Sequence[tuple[list[int], list[int]]]) -> Audit:
    """Compare token by token."""
    graph = TokenGraph(recording.nodes)
    account = Counter((tuple(given), tuple(gave)) for given, gave in seen)
    paths: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for call in recording.calls:
        ids, node = graph.path_ids(call.node_id).tolist(), graph.nodes[call.node_id]
        sampled = tuple(node.token_ids[node.sampled].tolist())
        paths[tuple(ids[: call.prompt_tokens]), tuple(ids[call.prompt_tokens :])] += 1
        if sampled != tuple(ids[call.prompt_tokens :]):
            paths[(), sampled] += 1
    return Audit(
        calls=len(recording.calls),
        roles=Counter(c.role for c in recording.calls),
        sampled=sum(len(gave) for _, gave in seen),
        recorded=sum(int(n.sampled.sum()) for n in recording.nodes),
        mismatches=(account - paths).total() + (paths - account).total(),
        branches=len(_ends(graph, [c for c in recording.calls if c.role == "agent"])),
        drifts=Counter(c.drift.kind for c in recording.calls if c.drift is not None),
        undelivered=sum(not c.delivered for c in recording.calls),
    )


def _ends(graph: TokenGraph, calls: Sequence[Call]) -> set[int]:
    above = {n.node_id for c in calls for n in graph.path(c.node_id)[:-1]}
    return {c.node_id for c in calls} - above


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a scripted session with a real harness showed."""

    harness: str
    version: str
    dialect: str
    audit: Audit
    answer: str
    findings: tuple[str, ...] = ()
    faults: tuple[str, ...] = field(default=())
    """What is not as it should be; a fork of the main thread is one."""

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not self.faults


class ScriptedSession:
    """What a scripted model says to a harness: `reply` is a script for ScriptedEngine.

    Which reply is due is read from the prompt, so that side calls, retries and sub-agents do not disturb it.
    """

    def __init__(self, recipe: HarnessRecipe, rendering: Rendering) -> None:
        self._recipe, self._rendering = recipe, rendering
        self._replies: list[str] = []

    def begin(self, work: str) -> None:
        """The harness works in directory `work`; to be called before the first reply."""
        recipe, path = self._recipe, f"{work}/{FILE}"
        look = odd(recipe.shell_use("printf 'caf\\303\\251 /'"))
        both = "\n".join(odd(recipe.shell_use(f"echo {word}")) for word in ("one", "two"))
        last = recipe.last_use(LAST)
        self._replies = [
            f"<think>\nFirst  look.\n</think>\n\nLet me look.  \n{look}",
            f"<think>\nBoth.\n</think>\n\n{both}",
            f"<think>\nWrite.\n</think>\n\n{odd(recipe.write_use(path, WRITTEN))}",
            f"<think>\nEnough.\n</think>\n\n{odd(last) if last is not None else LAST}",
        ]

    def reply(self, prompt_ids: list[int], session: str) -> str:
        """The reply after as many turns of the assistant as the prompt has."""
        prompt = self._rendering.decode(prompt_ids)
        if "# Tools" not in prompt:
            return '{"title": "A title"}'
        turns = prompt.count("<|im_start|>assistant\n") - 1
        return self._replies[min(turns, len(self._replies) - 1)]


def odd(use: ToolUse) -> str:
    """A tool call as a model may write it and nobody else would: two spaces, escaped letters and slashes."""
    name, arguments = use
    written = json.dumps(arguments, separators=(", ", ":  ")).replace("/", "\\/")
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


async def check(
    recipe: HarnessRecipe,
    *,
    dialect: DialectName | None = None,
    isolated: bool = True,
    go_on: bool = True,
) -> Verdict:
    """Play the scripted session with the real harness. `go_on`: also prompt a second time where it can.

    Raises RolloutError where it cannot be run at all.
    """
    driver = Driver(recipe, dialect=dialect, isolated=isolated, context_tokens=CONTEXT_TOKENS)
    with tempfile.TemporaryDirectory(prefix="palestra-check-") as directory:
        rendering = Rendering.load(make_tiny_tokenizer(directory), enable_thinking=True, keep_thinking=True)
        script = ScriptedSession(recipe, rendering)
        witness = Witness(ScriptedEngine(rendering, script.reply, context_tokens=CONTEXT_TOKENS))
        proxy = Proxy(witness, rendering)
        await proxy.start()
        try:
            return await _checked(driver, proxy, witness, script, go_on)
        finally:
            await proxy.aclose()


async def _checked(
    driver: Driver, proxy: Proxy, witness: Witness, script: ScriptedSession, go_on: bool
) -> Verdict:
    name = "check"
    session = proxy.open(name, mode="train", sampling=Sampling(max_tokens=4096), max_calls=MAX_CALLS)
    endpoint = Endpoint(session.base_url, session.key, name, line=ProxyLine(proxy, session))
    faults: list[str] = []
    answer = ""
    async with driver.place(endpoint) as place:
        script.begin(place.path("work"))
        try:
            answer = await _play(driver, place, endpoint, go_on)
        except RolloutError as error:
            faults.append(str(error))
        if _read(place) != WRITTEN:
            faults.append(f"{FILE} was not written")
    recording = proxy.close(session)
    found = audit(recording, witness.seen.get(name, []))
    faults += _faults(found, recording, 1 + driver.recipe.resumption_forks)
    about = driver.recipe.name, driver.installed().version, driver.dialect
    return Verdict(*about, found, answer, recording.findings, tuple(faults))


async def _play(driver: Driver, place: Place, endpoint: Endpoint, go_on: bool) -> str:
    ended = await driver.prompt(place, endpoint, "How many are there?", timeout_s=TIME_S)
    answer = driver.recipe.answer(ended)
    if go_on and driver.recipe.resumes:
        await driver.prompt(place, endpoint, "Are you sure?", timeout_s=TIME_S, again=True)
    return answer


def _read(place: Place) -> str | None:
    path = Path(place.path(f"work/{FILE}"))
    return path.read_text().strip() if path.is_file() else None


def _faults(found: Audit, recording: Recording, branches: int) -> list[str]:
    tests: list[tuple[Any, str]] = [
        (found.calls < 4, f"{found.calls} calls, the script has at least 4 turns"),
        (found.mismatches, f"{found.mismatches} calls differ from what the engine was given and gave"),
        (found.recorded != found.sampled, f"{found.sampled} tokens sampled, {found.recorded} recorded"),
        (found.branches > branches, f"the main thread has {found.branches} branches ({dict(found.drifts)})"),
        (found.undelivered, f"{found.undelivered} replies were not delivered"),
        (recording.failure, f"the session failed: {recording.failure}"),
        (recording.stops, f"it went on until the budget of {MAX_CALLS} calls was spent"),
    ]
    return [said for wrong, said in tests if wrong]
