"""Each real harness, in every dialect that it speaks, against a scripted and against a sampling engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer

from harness_stand import Played, Stand
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3Config
from palestra.harness_proxy.engines.embedded.testing import random_weights
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.harnesses.check import CONTEXT_TOKENS, FILE, LAST, WRITTEN, ScriptedSession
from palestra.rollouts.harnesses.recipes import find_recipe, recipes
from palestra.rollouts.harnesses.recipes.recipe import HarnessRecipe
from palestra.trajectories.graph import TokenGraph

torch.set_num_threads(1)

EVERYONE = [
    pytest.param(name, dialect, id=f"{name}-{dialect}", marks=pytest.mark.xdist_group(f"harness-{name}"))
    for name, recipe in recipes().items()
    for dialect in recipe.dialects
]


FORGETS = "mini-swe-agent"
"""Leaves out of its history what has no tool call, which is all that a random model says."""


@pytest.mark.parametrize(("name", "dialect"), EVERYONE)
async def test_a_session_is_recorded_token_by_token(
    name: str, dialect: str, stand: Stand, model_dir: Path, tmp_path: Path
) -> None:
    """The scripted session, and then one in which a random model samples whatever it likes."""
    recipe = find_recipe(name)
    scripted = await _scripted(recipe, dialect, stand)
    assert recipe.answer(scripted.ends[0]).endswith(LAST)
    await _sampled(recipe, dialect, stand, _tokenizer_of(scripted.prompts, model_dir, tmp_path))


async def _scripted(recipe: HarnessRecipe, dialect: str, stand: Stand) -> Played:
    script = ScriptedSession(recipe, stand.rendering)
    engine = ScriptedEngine(stand.rendering, script.reply, context_tokens=CONTEXT_TOKENS)
    played = (await stand.play(recipe, engine, dialect=dialect, begin=script.begin)).unbroken()
    calls = played.recording.calls
    assert played.roles == ["agent"] * 4
    assert [c.prompt_mode for c in calls] == ["render", "bridge", "bridge", "bridge"]
    assert {c.dialect for c in calls} == {dialect}
    assert played.files[FILE].strip() == WRITTEN
    _was_answered(played)
    return played


def _was_answered(played: Played) -> None:
    """The results of the shell came back: the first one odd, the two others in the order in which they ended."""
    last = TokenGraph(played.recording.nodes).path(played.recording.calls[-1].node_id)
    answers = [n.message.content for n in last if n.message.role == "tool"]
    assert any(f"caf{e} /" in answers[0] for e in ("é", "\\u00e9"))
    both = "".join(answers[1:3])
    assert "one" in both and "two" in both
    assert len(answers) == 4
    assert [len(n.message.tool_calls) for n in last if n.message.role == "assistant"][:3] == [1, 2, 1]


async def _sampled(recipe: HarnessRecipe, dialect: str, stand: Stand, model_dir: Path) -> None:
    """A conversation of two prompts where the harness can go on; of six calls where it does not end."""
    rendering = Rendering.load(model_dir, enable_thinking=True, keep_thinking=True)
    engine = _random_model(model_dir)
    try:
        played = await stand.play(
            recipe,
            engine,
            dialect=dialect,
            prompts=("How many are there?", "Are you sure?")[: 1 + recipe.resumes],
            rendering=rendering,
            max_tokens=24,
            max_calls=6,
        )
    finally:
        await engine.aclose()
    assert played.faithful().audit.calls >= 2
    if recipe.name == FORGETS:
        assert played.audit.branches > 1
    else:
        played.unbroken()


def _tokenizer_of(prompts: list[str], model_dir: Path, target: Path) -> Path:
    """A model directory whose tokens are the lines that this harness writes: its prompts become short."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    lines = {
        line for prompt in prompts for line in prompt.splitlines() if len(line) > 12 and "<|" not in line
    }
    tokenizer.add_tokens([AddedToken(line, normalized=False) for line in sorted(lines)])
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    return target


def _random_model(model_dir: Path) -> TorchEngine:
    size = Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab_size()
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=16_384,
        rope_theta=10_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    return TorchEngine(config, random_weights(config))
