"""When a short answer is right: exact match and F1 of words, as the official scripts of SQuAD and HotpotQA count them.

Both compare normalised texts: lower case, no ASCII punctuation, no articles, single spaces, in that order. With several
gold answers (aliases) the best one counts. tests/rewards/test_qa.py explains the corner cases, case by case.

    exact_match   rajpurkar/SQuAD-explorer, evaluate-v1.1.py; Search-R1's qa_em.py is the same
    f1            the same words as often; HotpotQA's hotpot_evaluate_v1.py adds: yes, no and noanswer earn nothing
                  unless they are all of both answers
    contains      a gold answer occurs in the prediction (Search-R1's subem); listing many candidates games it
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize(text: str) -> str:
    """The text as the official scripts compare it."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 if the normalised prediction is one of the normalised golds, else 0.0."""
    return float(any(normalize(prediction) == normalize(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of normalised words, for the best gold; 0.0 without golds."""
    return max((_f1(normalize(prediction), normalize(gold)) for gold in golds), default=0.0)


def contains(prediction: str, golds: Sequence[str]) -> float:
    """1.0 if a normalised gold is part of the normalised prediction, else 0.0. An empty gold is part of nothing."""
    said = normalize(prediction)
    return float(any(normalize(gold) in said for gold in golds if normalize(gold)))


def _f1(said: str, gold: str) -> float:
    if said != gold and (said in _WHOLE_ANSWERS or gold in _WHOLE_ANSWERS):
        return 0.0
    words, wanted = said.split(), gold.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "em": exact_match,
    "f1": f1,
    "contains": contains,
}
"""By the name that a task's `rule` gives."""
