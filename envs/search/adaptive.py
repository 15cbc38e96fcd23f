"""palestra/AdaptiveSearch-v0: the decision to search comes first, in the open, and is scored (AdaSearch).

The first tool is decide(search). Until it was called nothing else works; whoever decides against searching cannot
search any more. A task says how often the policy answers it without searching, {"solve_rate": 0.75}; grading is in
rewards/search_decision.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from palestra.envs.search.env import SearchEnv, call
from palestra.envs.tools import ToolError, tool
from palestra.rewards.score import Grader
from palestra.rewards.search_decision import DecisionGrader, needs_search


class AdaptiveSearchEnv(SearchEnv):
    """See the module."""

    family: ClassVar[str] = "search"

    @tool
    def decide(self, search: bool) -> str:
        """Say first whether you have to search, or know the answer."""
        if self._known.wants_search is not None:
            raise ToolError("this was decided already")
        self._known = replace(self._known, wants_search=search)
        return "search" if search else "answer from what you know"

    @tool
    def search(self, query: str) -> str:
        """Find passages. Each result shows its id in square brackets."""
        if not self._decided():
            raise ToolError("you decided to answer without searching")
        return super().search(query)

    @tool
    def answer(self, answer: str, citations: tuple[str, ...] = ()) -> str:
        """Hand in a short answer, or "unknown" if the passages lack it, and the ids that support it."""
        self._decided()
        return super().answer(answer, citations)

    def solution(self) -> Sequence[str]:
        """The right decision, then what it leads to."""
        found = super().solution()
        if not found or needs_search(self.task):
            return (call("decide", search=True), *found) if found else ()
        return (call("decide", search=False), call("answer", answer=self.task.data["answers"][0]))

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """The wrong decision with the right answer, and the cheats of searching after the right decision."""
        right = needs_search(self.task)
        known = {name: (call("decide", search=right), *actions) for name, actions in super().cheats().items()}
        answers = self.task.data.get("answers") or ("unknown",)
        wrong = call("decide", search=not right), call("answer", answer=answers[0])
        return {**known, "the wrong decision": wrong, "no decision": (call("answer", answer=answers[0]),)}

    @staticmethod
    def _default_grader() -> Grader:
        return DecisionGrader()

    def _decided(self) -> bool:
        """Whether to search. Raises ToolError before the decision."""
        if self._known.wants_search is None:
            raise ToolError("decide first: call decide with search true or false")
        return self._known.wants_search
