"""A retriever that asks a server with Search-R1's /retrieve, ours (service.py) or theirs (retrieval_server.py).

POST /retrieve  {"queries": ["..."], "topk": 3, "return_scores": true}
answer          {"result": [[{"document": {"id": "...", "contents": "\\"Title\\"\\ntext"}, "score": 1.5}]]}
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import httpx

from palestra.envs.errors import RetrieverError
from palestra.envs.search.retriever import Hit, options_of
from palestra.tasks.search.corpus import Passage, Source
from palestra.tasks.search.formats import passage_of_contents


class Remote:
    """See the module. Raises RetrieverError where the server does not answer, or answers otherwise."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        """`url` with or without /retrieve at its end."""
        self._url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self._http = httpx.Client(timeout=timeout_s)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever."""
        body = {"queries": [query], "topk": k, "return_scores": True}
        try:
            answer = self._http.post(self._url, json=body)
            answer.raise_for_status()
            return [_hit(item) for item in answer.json()["result"][0]]
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:
            raise RetrieverError(
                f"{self._url} did not answer like a retrieval server: {type(error).__name__}: {error}"
            ) from error

    def __del__(self) -> None:
        self._http.close()


def open_remote(_source: Source, options: Mapping[str, Any]) -> Remote:
    """The server at `url`. Raises RetrieverError without one."""
    chosen = options_of("remote", options, {"url": "", "timeout_s": 30.0})
    if not str(chosen["url"]).startswith(("http://", "https://")):
        raise RetrieverError(f"remote needs a url like http://127.0.0.1:8000/retrieve, got {chosen['url']!r}")
    return Remote(str(chosen["url"]), float(chosen["timeout_s"]))


def _hit(item: Mapping[str, Any]) -> Hit:
    document = item["document"]
    return Hit(_passage(document), float(item.get("score", 0.0)))


def _passage(document: Mapping[str, Any]) -> Passage:
    """Servers differ in the id: where there is none, the contents name themselves."""
    contents = str(document["contents"])
    identity = document.get("id", document.get("_id"))
    if identity is None:
        identity = hashlib.sha256(contents.encode("utf-8", "replace")).hexdigest()[:12]
    return passage_of_contents(str(identity), contents)
