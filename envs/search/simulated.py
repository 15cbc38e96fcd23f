"""A language model in place of a search engine (ZeroSearch, Sun et al. 2025, arXiv:2505.04588), with growing noise.

The model writes documents for a query; it is told the question and its answers, and asked either for documents that
help or for ones that do not. The share of the latter grows while the policy trains (`NoiseCurriculum`). Which queries
get noise is a fixed function of seed, question and query, so a rollout can be repeated.

    engine = SimulatedEngine(base_url, key, NoiseCurriculum(steps=200))
    register_retriever("simulated", engine.open)
    tasks = simulated(load_tasks("search-r1?path=nq.jsonl&corpus=none&retriever=remote"))
    engine.step = 17        # the training step

`palestra.rollouts.search_engine` runs one behind the proxy, in a session of its own that is never trained on.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from palestra.envs.errors import RetrieverError
from palestra.envs.search.retriever import Hit, Retriever, options_of
from palestra.tasks.search.corpus import Passage, Source
from palestra.tasks.sql.cache import ByteCache
from palestra.tasks.task import TaskSet

_RETRIED = frozenset({408, 409, 429, 502, 503, 504})
_TRIES = 8
_KEPT_BYTES = 64 << 20
_DOCUMENT = re.compile(r"^[ \t]*(?:Doc(?:ument)?[ \t]*)?\d{1,2}[.:)][ \t]*", re.MULTILINE | re.IGNORECASE)
_PROMPT = """You are a search engine. Write {count} short documents, numbered 1 to {count}, that a search for the \
query below might return. Write nothing else.
{guidance}
Question behind the query: {question}
Its answer: {answers}
Query: {query}"""
_USEFUL = "The documents contain what is needed to answer the query."
_NOISY = (
    "The documents look related to the query but do not contain what is needed to answer it, nor the answer."
)


@dataclass(frozen=True, slots=True)
class NoiseCurriculum:
    """The share of useless results at a training step: from `start` to `end` over `steps`, slowly at first.

    start + (base ** (step / steps) - 1) / (base - 1) * (end - start), where base is 4 and the published runs go from
    0 to 0.5 in 203 steps. Source: `dynamic_threshold` in llm_agent/generation.py of github.com/Alibaba-NLP/ZeroSearch
    at 2d4cdca.
    """

    start: float = 0.0
    end: float = 0.5
    steps: int = 200
    base: float = 4.0

    def __post_init__(self) -> None:
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1 and self.steps >= 1 and self.base > 1):
            raise ValueError(f"shares are from 0 to 1, steps at least 1, base above 1, got {self}")

    def noise(self, step: int) -> float:
        """The share at `step`; after the last step it stays."""
        done = min(max(step, 0) / self.steps, 1.0)
        grown = math.pow(self.base, done) - 1
        return self.start + grown / (self.base - 1) * (self.end - self.start)


class SimulatedEngine:
    """A model behind a Chat Completions address. Safe between threads."""

    def __init__(
        self,
        base_url: str,
        key: str,
        curriculum: NoiseCurriculum,
        *,
        seed: int = 0,
        model: str = "palestra",
        timeout_s: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`base_url` ends in /v1; `sleep` waits between tries."""
        self.step = 0
        self._url, self._model, self._sleep = f"{base_url.rstrip('/')}/chat/completions", model, sleep
        self._curriculum, self._seed = curriculum, seed
        headers = {"authorization": f"Bearer {key}", "x-palestra-role": "auxiliary"}
        self._http = httpx.Client(timeout=timeout_s, headers=headers)
        self._written = ByteCache[str](_KEPT_BYTES, lambda text: 200 + len(text))

    def open(self, _source: Source, options: Mapping[str, Any]) -> Retriever:
        """For register_retriever: what a task's data["retriever"] needs is its question and answers."""
        chosen = options_of("simulated", options, {"question": "", "answers": []})
        return _Simulated(self, str(chosen["question"]), tuple(map(str, chosen["answers"])))

    def noisy(self, question: str, query: str) -> bool:
        """Whether this query gets useless results at the present step; once it does, it does at every later one."""
        name = f"{self._seed}\n{question}\n{query}".encode("utf-8", "replace")
        draw = int.from_bytes(hashlib.sha256(name).digest()[:8]) / 2**64
        return draw < self._curriculum.noise(self.step)

    def write(self, question: str, answers: tuple[str, ...], query: str, k: int) -> str:
        """The model's documents, asked for once. Raises RetrieverError where it does not answer."""
        prompt = _PROMPT.format(
            count=k,
            guidance=_NOISY if self.noisy(question, query) else _USEFUL,
            question=question,
            answers=" or ".join(answers) or "(there is none)",
            query=query,
        )
        return self._written.get(prompt, lambda: self._ask(prompt))

    def close(self) -> None:
        """Close the connections. Calling it twice is fine."""
        self._http.close()

    def _ask(self, prompt: str) -> str:
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}]}
        problem = ""
        for attempt in range(_TRIES):
            self._sleep(min(0.1 * 2**attempt, 5.0) if attempt else 0.0)
            try:
                answer = self._http.post(self._url, json=body)
                if answer.status_code == 200:
                    return str(answer.json()["choices"][0]["message"]["content"] or "")
                problem = f"HTTP {answer.status_code}: {answer.text[:300]}"
                if answer.status_code not in _RETRIED:
                    break
            except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise RetrieverError(f"the simulated search engine at {self._url} did not answer: {problem}")


class _Simulated:
    def __init__(self, engine: SimulatedEngine, question: str, answers: tuple[str, ...]) -> None:
        self._engine, self._question, self._answers = engine, question, answers

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever."""
        texts = documents(self._engine.write(self._question, self._answers, query, k))[:k]
        return [Hit(_passage(text), 1 / rank) for rank, text in enumerate(texts, start=1)]


def documents(reply: str) -> list[str]:
    """The numbered documents in a model's reply; the whole reply where nothing is numbered."""
    return [text.strip() for text in _DOCUMENT.split(reply) if text.strip()]


def simulated(tasks: TaskSet) -> TaskSet:
    """The same questions with results that a registered simulated engine makes up; evidence no longer applies."""
    changed = []
    for task in tasks:
        spec = {"kind": "simulated", "question": task.instruction, "answers": task.data.get("answers", [])}
        kept = {k: v for k, v in task.data.items() if k not in ("evidence", "searches")}
        data = kept | {"corpus": {"url": "simulated"}, "retriever": spec}
        changed.append(task.model_copy(update={"data": data}))
    return TaskSet(tasks.name, changed)


def _passage(text: str) -> Passage:
    name = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return Passage(name, "", text)
