"""Graded credit for SQL that is not right yet, for shaping; none of it is a measure of success.

`paverl` is the reward of PaVeRL-SQL; `column_match` the same idea with a price for columns that nobody asked for.
`exploration` and `composite` are experimental: after the abstract of ReEx-SQL (Dai et al. 2025, arXiv:2505.12768, a
composite reward with credit for intermediate queries), which has no public code; the numbers are assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from palestra.rewards.table import Rows, cell_key


def column_match(gold: Rows, got: Rows) -> float:
    """The fraction of gold columns whose values, as multisets, are those of a submitted column; extra ones cost.

    In [0, 1]; 1 only where both have the same columns. Each submitted column serves one gold column.
    """
    wanted, given = _columns(gold), _columns(got)
    if not wanted:
        return 0.0
    common = (Counter(wanted) & Counter(given)).total()
    return common / max(len(wanted), len(given))


def paverl(gold: Rows, got: Rows | None) -> float:
    """PaVeRL-SQL's reward (Hao et al. 2025, arXiv:2509.07159) over its maximum of 10; `got` is None where SQL failed.

    The fraction of gold columns that are there, at no cost for others; 0.05 for SQL that runs and has none of them.
    Source: accuracy_reward.py of github.com/PaVeRL-SQL/PaVeRL-SQL at 5ce9a48, which compares numbers to 0.005 and
    forgives up to five rows too many or too few, by a key column that it guesses; here another number of rows has none.
    """
    if got is None:
        return 0.0
    wanted, given = _columns(gold), _columns(got)
    common = (Counter(wanted) & Counter(given)).total()
    return common / len(wanted) if common else 0.05


def exploration(outcomes: Sequence[bool], most: int = 3) -> float:
    """Of intermediate queries that ran (True) or failed (False): those that ran over `most`, less the failures; [0, 1].

    More than `most` queries earn nothing more, so that looking around never pays better than answering.
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    return max(0.0, min(sum(outcomes), most) - (len(outcomes) - sum(outcomes))) / most


def composite(correct: float, partial: float, explored: float, valid_form: bool) -> float:
    """0 without the form asked for; else mostly correctness: 0.8, 0.15 for parts and 0.05 for exploring. In [0, 1].

    A right answer without exploring (0.95) beats any wrong one (below 0.2).
    """
    return (0.8 * correct + 0.15 * partial + 0.05 * explored) if valid_form else 0.0


def _columns(rows: Rows) -> list[tuple[object, ...]]:
    return (
        [tuple(sorted((cell_key(v) for v in column), key=repr)) for column in zip(*rows, strict=True)]
        if rows
        else []
    )
