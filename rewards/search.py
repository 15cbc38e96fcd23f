"""Grading an answer that was searched for: the answer itself, the evidence found, the sources cited, what it cost.

    answer          exact match, F1 or contains (rewards/qa.py); on an unanswerable question, whether it abstains
    evidence        the share of the supporting passages that were shown at all
    recall_at_k     the share that the best single query brought among its k results
    citation_precision, citation_recall    of the cited passages against the supporting ones
    searches        how many queries were made

By default the value is the answer's. Weights mix in the others, as Search-R1's successors do (StepSearch,
arXiv:2505.15107, for evidence; a price per query against searching too much); nothing is earned without an answer.
The rule "citations" grades retrieval itself: the value is the F1 of the cited passages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from palestra.rewards.qa import METRICS, normalize
from palestra.rewards.score import GraderError, nothing_submitted
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

ABSTENTIONS = frozenset(
    normalize(text)
    for text in (
        *("", "unknown", "unanswerable", "no answer", "noanswer", "not answerable", "I don't know"),
        *("I do not know", "cannot be determined", "not enough information", "insufficient information"),
    )
)
"""Normalised answers that say: the passages do not tell."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What an agent did and handed in. Passages go by their ids and titles: benchmarks name evidence by either."""

    answer: str | None = None
    """None where nothing was handed in."""
    citations: tuple[frozenset[str], ...] = ()
    """The names of each cited passage."""
    results: tuple[tuple[frozenset[str], ...], ...] = ()
    """For each query, the names of each passage that it brought."""
    wants_search: bool | None = None
    """The decision of an agent that has to make one (envs/search/adaptive.py)."""

    @property
    def searches(self) -> int:
        """Queries made."""
        return len(self.results)


class SearchGrader:
    """See the module. The rule is the task's (`data["rule"]`: em, f1, contains or citations), em by default."""

    name = "search"
    version = "1"

    def __init__(
        self,
        rule: str | None = None,
        evidence: float = 0.0,
        citations: float = 0.0,
        search_price: float = 0.0,
    ) -> None:
        """`evidence` and `citations` are shares of the value, the rest is the answer's; `search_price` per query.

        Raises ValueError for shares outside of 0..1 and for a negative price.
        """
        if min(evidence, citations, search_price) < 0 or evidence + citations > 1:
            raise ValueError(
                f"shares are at least 0 and add up to at most 1, got {evidence=}, {citations=}, {search_price=}"
            )
        self._rule, self._evidence, self._citations, self._price = rule, evidence, citations, search_price

    def __call__(self, task: Task, submission: Any) -> Score:
        """Score a `Searched`. Raises GraderError where the task says neither what is right nor that nothing is."""
        assert isinstance(submission, Searched)
        if submission.answer is None:
            return nothing_submitted(self)
        parts = self._parts(task, submission)
        rest = 1 - self._evidence - self._citations
        value = rest * parts["answer"] + self._evidence * parts["evidence"]
        value += self._citations * parts["citation_precision"] - self._price * submission.searches
        return Score(
            max(value, 0.0), True, parts, self.name, self.version, _evidence(task, submission, parts)
        )

    def _parts(self, task: Task, done: Searched) -> dict[str, float]:
        supporting = frozenset(_texts(task, "evidence"))
        shown = frozenset[str]().union(*(names for result in done.results for names in result))
        best = max((_recall(supporting, result) for result in done.results), default=_recall(supporting, ()))
        precision, recall = _precision(supporting, done.citations), _recall(supporting, done.citations)
        total = precision + recall
        both = 2 * precision * recall / total if supporting and total else 0.0
        return {
            "answer": self._answer(task, str(done.answer), both),
            "evidence": _recall(supporting, (shown,)),
            "recall_at_k": best,
            "citation_precision": precision,
            "citation_recall": recall,
            "searches": float(done.searches),
            "abstained": float(abstains(str(done.answer))),
        }

    def _answer(self, task: Task, answer: str, citations: float) -> float:
        rule = self._rule or task.data.get("rule", "em")
        if rule == "citations":
            return citations
        if rule not in METRICS:
            raise GraderError(f"there is no rule {rule!r}; the rules are {', '.join(METRICS)}, citations")
        if not answerable(task):
            return float(abstains(answer))
        return METRICS[rule](answer, _texts(task, "answers"))


def abstains(answer: str) -> bool:
    """Whether an answer says that there is none."""
    return normalize(answer) in ABSTENTIONS


def answerable(task: Task) -> bool:
    """Whether the corpus has an answer. Raises GraderError for a task that has neither answers nor says so."""
    told = task.data.get("answerable", True)
    if told and not _texts(task, "answers") and task.data.get("rule") != "citations":
        raise GraderError(f"task {task.id!r} has no answers: give data['answers'], or answerable=false")
    return bool(told)


def _texts(task: Task, name: str) -> Sequence[str]:
    found = task.data.get(name, ())
    if isinstance(found, str) or not all(isinstance(text, str) for text in found):
        raise GraderError(f"task {task.id!r}: data[{name!r}] must be a list of texts, got {found!r}")
    return list(found)


def _recall(supporting: Collection[str], passages: Sequence[frozenset[str]]) -> float:
    """The share of `supporting` among the names of `passages`; 1 where nothing is needed."""
    hit = sum(any(name in names for names in passages) for name in supporting)
    return hit / len(supporting) if supporting else 1.0


def _precision(supporting: frozenset[str], passages: Sequence[frozenset[str]]) -> float:
    """The share of `passages` that support; citing nothing is right only where nothing supports."""
    if not passages:
        return float(not supporting)
    return sum(bool(names & supporting) for names in passages) / len(passages)


def _evidence(task: Task, done: Searched, parts: dict[str, float]) -> str:
    gold = " | ".join(_texts(task, "answers")) if task.data.get("answerable", True) else "(unanswerable)"
    said = str(done.answer)[:200]
    return f"answered {said!r}, gold {gold[:200]!r}; {parts['evidence']:.0%} of the evidence was found"
