"""Records of question files as their benchmarks write them, and files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOTPOT = {
    "_id": "h1",
    "question": "Who?",
    "answer": "Ann",
    "supporting_facts": [["Ann", 0], ["Bo", 1], ["Ann", 1]],
    "context": [["Ann", ["Ann is one.", " She wrote."]], ["Bo", ["Bo is two."]]],
}
MUSIQUE = {
    "id": "2hop__1",
    "question": "Who?",
    "answer": "Ann",
    "answer_aliases": ["Anna"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Ann", "paragraph_text": "Ann is one.", "is_supporting": True},
        {"idx": 1, "title": "Ann", "paragraph_text": "Another Ann.", "is_supporting": False},
    ],
    "question_decomposition": [{}, {}],
}


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path
