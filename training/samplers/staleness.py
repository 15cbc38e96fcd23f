"""How many rollouts an asynchronous trainer may start without training on too old a policy."""

from __future__ import annotations


def rollout_capacity(
    *, version: int, batch: int, max_staleness: int, accepted: int, running: int, max_running: int
) -> int:
    """Rollouts that may start now: min(max_running - running, (max_staleness + version + 1) * batch - accepted -
    running), at least 0.

    `version` counts the updates so far, each on `batch` rollouts; `accepted` all rollouts that finished and were
    kept since version 0 (those rejected do not count), `running` those under way. Then no rollout is trained more
    than `max_staleness` versions after it began. On recovery set accepted = version * batch. Source: Fu et al. 2025
    (AReaL), arXiv:2505.24298; code areal/infra/staleness_manager.py.

    Departures: never negative.
    """
    fresh = (max_staleness + version + 1) * batch - accepted - running
    return max(0, min(max(1, max_running) - running, fresh))
