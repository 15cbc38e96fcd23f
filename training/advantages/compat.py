"""Named differences between the authors' code and this library.

An estimator is right by default. `compat` reproduces what published code does instead: the name of a code base
("verl", "verl-agent", ...) for all of its quirks that the estimator knows, or a list of single quirks. Plain
strings, so that a recipe can name them. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

Quirk = Literal[
    "row-statistics",
    "token-statistics",
    "lone-raw",
    "std-floor",
    "nonzero-scores",
    "reset-at-gaps",
    "exact-zero",
    "tiny-scale",
    "difflib",
]
"""What published code does and this library does not, unless asked:

row-statistics    every step row enters the statistics: long rollouts weigh more
token-statistics  every token enters the statistics of a batch: long rollouts weigh more
lone-raw          a rollout alone in its group keeps its raw score instead of 0
std-floor         the deviation is sqrt(max(variance, eps)): small spreads are flattened
nonzero-scores    informative rollouts are counted by their score being nonzero, not by their gradient
reset-at-gaps     returns start anew before a gap in the turns: what came before an observation gets nothing
exact-zero        in float32, an advantage is left out only where it is exactly 0: rounding noise takes part
tiny-scale        a scale of 0 becomes 0.001: advantages of a thousand
difflib           similarity after difflib with its junk heuristic, texts taken in row order
"""

Compat = str | Collection[str] | None

BUNDLES: dict[str, frozenset[Quirk]] = {
    "verl": frozenset({"lone-raw", "token-statistics", "nonzero-scores", "reset-at-gaps"}),
    "verl-vectorized": frozenset({"std-floor", "lone-raw"}),
    "verl-agent": frozenset({"row-statistics", "token-statistics", "lone-raw", "exact-zero", "difflib"}),
    "treepo": frozenset({"lone-raw", "token-statistics"}),
    "mc-grpo": frozenset({"tiny-scale"}),
}
"""Quirks by code base."""


def quirks(compat: Compat, known: Collection[Quirk]) -> frozenset[str]:
    """The quirks to apply, of those `known` to the estimator.

    Raises ValueError for a name that is neither a code base nor one of `known`.
    """
    if compat is None:
        return frozenset()
    if isinstance(compat, str) and compat in BUNDLES:
        return BUNDLES[compat] & frozenset(known)
    asked = frozenset([compat] if isinstance(compat, str) else compat)
    if asked <= set(known):
        return asked
    raise ValueError(
        f"compat names {sorted(asked - set(known))}; this estimator knows the quirks {sorted(known)} "
        f"and the code bases {sorted(BUNDLES)}"
    )
