"""palestra/Search-v0: answer a question by searching a corpus, reading what was found, and citing it.

    {"corpus": {"path": "corpus.jsonl"}, "answers": ["Paris"], "evidence": ["France"], "retriever": {"kind": "bm25"}}

The first observation is the question alone. Tools search, open a passage, find text in it, and answer with citations;
the tags <search>...</search> and <answer>...</answer> of Search-R1 do so too, for models that write text. Only passages
that a search has brought can be opened and cited. Retrieved text is quoted (quoting.py). A task may bound its queries
("max_searches"). The anchor is what the agent has read so far, however it was found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError, RetrieverError
from palestra.envs.search.pieces import FIND_CHARS, heading, places, snippet_start, start_of
from palestra.envs.search.quoting import label, plain, quoted
from palestra.envs.search.retriever import DEFAULT, MAX_K, Hit, Retriever, open_retriever
from palestra.envs.tools import ToolError, tool
from palestra.rewards.score import Grader
from palestra.rewards.search import Searched, SearchGrader
from palestra.tasks.errors import CorpusError
from palestra.tasks.search.corpus import Passage, source_of
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

MAX_QUERY_CHARS = 500


@dataclass(frozen=True, slots=True)
class _Known:
    """What the agent has done and read, and its answer. `found` is replaced, never changed."""

    found: Mapping[str, Passage] = field(default_factory=dict)
    """By the label under which it was shown."""
    read: frozenset[tuple[str, int, int]] = frozenset()
    """(label, first character, end) of each text that was shown."""
    results: tuple[tuple[str, ...], ...] = ()
    """The labels that each query brought."""
    wants_search: bool | None = None
    answer: str | None = None
    citations: tuple[str, ...] = ()


class SearchEnv(TaskEnv):
    """Question answering over a corpus. See the module for the tools and the anchor."""

    family: ClassVar[str] = "search"

    def __init__(
        self,
        tasks: TaskSet | str | None = None,
        grader: Grader | None = None,
        top_k: int = 3,
        snippet_chars: int = 600,
        page_chars: int = 2000,
    ) -> None:
        """`top_k` results per query; `snippet_chars` of each are shown, `page_chars` of an opened passage.

        Without a `grader` the answer counts (rewards/search.py), by the rule of the task.
        """
        super().__init__(tasks)
        if not 1 <= top_k <= MAX_K or min(snippet_chars, page_chars) < 1:
            raise ValueError(f"top_k is from 1 to {MAX_K} and the sizes are positive, got {top_k=}")
        self._grader = grader or self._default_grader()
        self._top_k, self._snippet_chars, self._page_chars = top_k, snippet_chars, page_chars
        self._known = _Known()

    @tool
    def search(self, query: str) -> str:
        """Find passages. Each result shows its id in square brackets."""
        if not query.strip() or len(query) > MAX_QUERY_CHARS:
            raise ToolError(f"a query has 1 to {MAX_QUERY_CHARS} characters, this one has {len(query)}")
        if self._spent:
            raise ToolError("no searches are left: answer with what was found")
        hits = self._retriever.search(_sound(query), self._top_k)
        shown = [self._result(hit, query) for hit in hits]
        self._known = replace(self._known, results=(*self._known.results, tuple(name for name, _ in shown)))
        return "\n".join(text for _, text in shown) or "(no results)"

    @tool
    def open(self, id: str, page: int = 1) -> str:
        """Read a passage that was found, by its id."""
        name, passage = self._find(id)
        pages = max(-(-len(passage.text) // self._page_chars), 1)
        if not 1 <= page <= pages:
            raise ToolError(f"[{name}] has pages 1 to {pages}, there is no page {page}")
        start = (page - 1) * self._page_chars
        rest = f"\n(page {page} of {pages})" if pages > 1 else ""
        return f"{heading(name, passage)}\n{self._show(name, passage, start, self._page_chars)}{rest}"

    @tool
    def find_in_page(self, id: str, text: str) -> str:
        """Find a literal text in a passage, whatever its case."""
        name, passage = self._find(id)
        if not text.strip() or len(text) > MAX_QUERY_CHARS:
            raise ToolError(f"the text has 1 to {MAX_QUERY_CHARS} characters, this one has {len(text)}")
        matches = list(places(passage.text.lower(), text.lower()))
        if not matches:
            return f"(not in [{name}])"
        shown = [self._show(name, passage, p - FIND_CHARS, len(text) + 2 * FIND_CHARS) for p in matches]
        return "\n...\n".join(shown)

    @tool
    def answer(self, answer: str, citations: tuple[str, ...] = ()) -> str:
        """Hand in a short answer, or "unknown" if the passages lack it, and the ids that support it."""
        cited = tuple(dict.fromkeys(self._find(name)[0] for name in citations))
        self._known = replace(self._known, answer=answer, citations=cited)
        self.finish()
        return "submitted"

    def _on_text(self, text: str) -> str:
        for name in sorted(("search", "answer"), key=lambda name: start_of(text, name)):
            _, opened, rest = text.partition(f"<{name}>")
            inside, closed, _ = rest.partition(f"</{name}>")
            if opened and closed:
                return self.search(inside.strip()) if name == "search" else self.answer(inside.strip())
        raise ToolError(
            f"answer with a tool call; the tools are {', '.join(self.toolbox)}; or write <search>a query</search> "
            f"or <answer>your answer</answer>"
        )

    def _begin(self, task: Task) -> str:
        self._known = _Known()
        _retriever_of(task)
        return task.instruction

    def _anchor(self) -> str:
        known = self._known
        parts = [sorted(known.read), self._spent, known.wants_search, known.answer, known.citations]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _state(self) -> str:
        return f"{self._anchor()}\n{json.dumps([self._known.results, list(self._known.found)])}"

    def _score(self) -> Score:
        known = self._known
        done = Searched(
            known.answer,
            tuple(self._names(name) for name in known.citations),
            tuple(tuple(self._names(name) for name in names) for names in known.results),
            known.wants_search,
        )
        return self._grader(self.task, done)

    def _freeze(self) -> _Known:
        return self._known

    def _thaw(self, world: _Known) -> None:
        self._known = world

    def solution(self) -> Sequence[str]:
        """Searching for the evidence, then the first gold answer citing it; nothing where the task has no gold."""
        data = self.task.data
        answers = data.get("answers") or (() if data.get("answerable", True) else ("unknown",))
        if data.get("rule") == "citations":
            answers = ("see the citations",)
        if not answers:
            return ()
        queries = tuple(data.get("searches") or self._queries_for_evidence())
        wanted = frozenset(data.get("evidence", ()))
        found = [hit.passage for query in queries for hit in self._retriever.search(query, self._top_k)]
        cited = dict.fromkeys(label(p.id) for p in found if {p.id, p.title} & wanted)
        return (
            *(call("search", query=query) for query in queries),
            call("answer", answer=answers[0], citations=list(cited)),
        )

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """An empty answer, abstaining where there is an answer, inventing where there is none, handing in all text."""
        if self.task.data.get("rule") == "citations":
            return {"citing nothing": (call("answer", answer="none"),)}
        if not self.task.data.get("answerable", True):
            return {"inventing": (call("answer", answer="yes"),)}
        everything = " ".join(
            hit.passage.text for hit in self._retriever.search(self.task.instruction, MAX_K)
        )
        known = {"abstaining": "unknown", "empty": "", "a list of tags": "<answer></answer>"}
        return {
            **{name: (call("answer", answer=text),) for name, text in known.items()},
            "all that is found": (call("answer", answer=everything),),
        }

    @staticmethod
    def _default_grader() -> Grader:
        return SearchGrader()

    @property
    def _retriever(self) -> Retriever:
        return _retriever_of(self.task)

    @property
    def _spent(self) -> bool:
        limit = self.task.data.get("max_searches") if self._episode else None
        return limit is not None and len(self._known.results) >= int(limit)

    def _result(self, hit: Hit, query: str) -> tuple[str, str]:
        """(label, what is shown), and it is known from now on."""
        name = label(hit.passage.id)
        found = self._known.found
        if name not in found:
            self._known = replace(self._known, found={**found, name: hit.passage})
        start = snippet_start(hit.passage.text, query, self._snippet_chars)
        text = self._show(name, hit.passage, start, self._snippet_chars)
        return name, f"{heading(name, hit.passage)}\n{text}"

    def _show(self, name: str, passage: Passage, start: int, length: int) -> str:
        start = max(start, 0)
        end = min(start + length, len(passage.text))
        self._known = replace(self._known, read=self._known.read | {(name, start, end)})
        before, after = "... " if start else "", " ..." if end < len(passage.text) else ""
        return quoted(before + passage.text[start:end] + after)

    def _find(self, name: str) -> tuple[str, Passage]:
        """The label and passage that an agent means by `name`."""
        shown = label(name.strip().removeprefix("[").removesuffix("]"))
        if shown not in self._known.found:
            raise ToolError(
                f"no passage {shown[:100]!r} was found so far; ids are in square brackets in results"
            )
        return shown, self._known.found[shown]

    def _names(self, name: str) -> frozenset[str]:
        passage = self._known.found[name]
        return frozenset({passage.id, passage.title})

    def _queries_for_evidence(self) -> Iterator[str]:
        wanted = set(self.task.data.get("evidence", ()))
        for passage in source_of(self.task).passages() if wanted else ():
            if {passage.id, passage.title} & wanted:
                yield f"{passage.title} {' '.join(passage.text.split()[:12])}"[:MAX_QUERY_CHARS].strip()


def _retriever_of(task: Task) -> Retriever:
    spec = task.data.get("retriever", DEFAULT)
    try:
        return open_retriever(source_of(task), spec)
    except (CorpusError, RetrieverError) as error:
        raise EnvSetupError(f"task {task.id!r}: {error}") from error


def _sound(query: str) -> str:
    return plain(query).encode("utf-8", "replace").decode()


def call(name: str, **arguments: Any) -> str:
    """A tool call as JSON."""
    return json.dumps({"name": name, "arguments": arguments})
