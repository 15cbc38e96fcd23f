"""Which model answers: files on this machine, servers that take token ids, or a hosted chat API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from palestra.cli import settings
from palestra.cli.errors import UsageError
from palestra.cli.options import checked_model, loading

if TYPE_CHECKING:
    from palestra.harness_proxy.engines.base import Engine
    from palestra.harness_proxy.rendering import Rendering


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and who samples from it. Make one with `of`."""

    name: str
    """A directory with the model's files, or what the hosted API calls it."""
    engine_url: str | None = None
    engine_model: str | None = None
    upstream: str | None = None
    key: str | None = None

    @classmethod
    def of(
        cls,
        name: str,
        engine_url: str | None,
        engine_model: str | None,
        upstream: str | None,
        upstream_key_env: str | None,
    ) -> ModelChoice:
        """What the options say. A name on the hub is fetched. Raises UsageError for what cannot be used."""
        if upstream is None:
            return cls(str(checked_model(Path(name))), engine_url, engine_model)
        if engine_url is not None:
            raise UsageError("--upstream and --engine-url are two places to sample from: choose one")
        return cls(name, upstream=completions_url(upstream), key=_key(upstream, upstream_key_env))

    @property
    def identity(self) -> str:
        """The same for the same model: a digest of its files, or its name and address."""
        return (
            settings.digest(Path(self.name)) if self.upstream is None else f"{self.name} at {self.upstream}"
        )

    async def start(self) -> tuple[Engine, Rendering | None]:
        """What answers, and how messages become its tokens; None where it takes messages. Raises UsageError."""
        if self.upstream is not None:
            from palestra.harness_proxy.engines.hosted import HostedEngine

            return HostedEngine(self.upstream, self.name, api_key=self.key), None
        from palestra.harness_proxy.rendering import Rendering

        rendering = Rendering.load(Path(self.name))
        return await start_engine(Path(self.name), self.engine_url, self.engine_model), rendering


async def start_engine(model: Path, url: str | None = None, name: str | None = None) -> Engine:
    """The embedded engine in a process of its own, or servers at `url`. Raises UsageError."""
    if url is not None:
        return _remote_engine(url.split(","), name or model.resolve().name)
    from palestra.rollouts.local import child_engine

    model = checked_model(model)
    with loading(model):
        return await child_engine(model)


def _remote_engine(urls: Sequence[str], name: str) -> Engine:
    from palestra.harness_proxy.engines.group import EngineGroup
    from palestra.harness_proxy.engines.remote import CompletionsEngine

    engines = [CompletionsEngine(completions_url(url), name) for url in urls]
    return engines[0] if len(engines) == 1 else EngineGroup(engines)


def completions_url(url: str) -> str:
    """`url` with /v1 where it names a server alone. Raises UsageError for what is no HTTP address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url!r} is no address of a server: write it as http://127.0.0.1:8000/v1")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _key(url: str, variable: str | None) -> str | None:
    key = os.environ.get(variable) if variable is not None else None
    if variable is not None and not key:
        raise UsageError(f"{variable} is not set: export {variable}=<the key of {url}>")
    return key
