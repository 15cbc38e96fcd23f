"""SWE-RL's reward: 1 for the known patch, less the less alike, -1 for what is no patch."""

from __future__ import annotations

import pytest

from palestra.rewards.score import GraderError
from palestra.rewards.swe.similarity import PatchSimilarity, changes, similarity
from palestra.tasks.swe import tiny

A = "diff --git a/x.py b/x.py\nindex 1..2 100644\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
MOVED = A.replace("@@ -1,2 +1,2 @@", "@@ -9,2 +9,2 @@").replace("index 1..2", "index 3..4")
B = A.replace("+three", "+thrice")
OTHER = A.replace("x.py", "y.py")


def test_the_same_change_is_worth_one_wherever_it_is_in_the_file() -> None:
    assert similarity(A, A) == similarity(MOVED, A) == 1.0


def test_a_like_change_is_worth_less_and_an_unlike_one_less_still() -> None:
    assert 1 > similarity(B, A) > similarity(A.replace("+three", "+0"), A) > 0


def test_files_that_only_one_patch_touches_count_nothing() -> None:
    assert similarity(OTHER, A) == 0.0
    assert similarity(A + OTHER, A) == similarity(A, A + OTHER) == 0.5


@pytest.mark.parametrize("patch", ["", "I fixed it", "--- a/x\n+++ b/x\n"])
def test_what_is_no_git_diff_has_the_wrong_format(patch: str) -> None:
    assert similarity(patch, A) == -1.0


def test_removing_lines_that_look_like_headers_is_a_change() -> None:
    patch = "diff --git a/x.sql b/x.sql\n--- a/x.sql\n+++ b/x.sql\n@@ -1 +0,0 @@\n--- a comment\n"
    assert changes(patch) == {"x.sql": "--- a comment"}


def test_as_a_grader() -> None:
    task = tiny.load()[0]
    grader = PatchSimilarity()
    assert grader(task, task.data["patch"]).value == grader(task, task.data["patch"].encode()).value == 1.0
    assert grader(task, None).value == 0.0 and grader(task, "no diff").value == -1.0
    with pytest.raises(GraderError, match="no git diff"):
        grader(task.model_copy(update={"data": {}}), A)
