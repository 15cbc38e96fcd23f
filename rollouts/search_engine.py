"""A simulated search engine behind the proxy: its calls are recorded apart from every rollout, and never trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from palestra.envs.search.retriever import register_retriever
from palestra.envs.search.simulated import NoiseCurriculum, SimulatedEngine
from palestra.harness_proxy.server import Proxy
from palestra.trajectories.model import Sampling

_SAMPLING = Sampling(temperature=0.0, max_tokens=1024)


@contextmanager
def simulated_search(
    proxy: Proxy, curriculum: NoiseCurriculum, *, sampling: Sampling = _SAMPLING, seed: int = 0
) -> Iterator[SimulatedEngine]:
    """While it is open, tasks with the retriever "simulated" are answered by the model behind `proxy`.

    Its session is one of mode eval and its calls have the role auxiliary, which no sample contains. The proxy must
    listen (`Proxy.start`); environments must not run in its event loop's thread, as they never do in a Runner.
    """
    session = proxy.open("search-engine", mode="eval", sampling=sampling)
    engine = SimulatedEngine(session.base_url, session.key, curriculum, seed=seed)
    register_retriever("simulated", engine.open)
    try:
        yield engine
    finally:
        engine.close()
        proxy.close(session)
