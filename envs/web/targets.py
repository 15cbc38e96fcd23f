"""Which target plays a task: by the fields of its data."""

from __future__ import annotations

from palestra.envs.errors import EnvSetupError
from palestra.envs.web.miniwob import MiniWob
from palestra.envs.web.sites import SiteTarget
from palestra.envs.web.target import WebTarget
from palestra.envs.web.webarena import WebArena
from palestra.tasks.task import Task


def target_of(task: Task) -> WebTarget:
    """The target of `task`. Raises EnvSetupError where its data names none."""
    if "miniwob" in task.data:
        return MiniWob(task)
    if "site" in task.data or "app" in task.data:
        return SiteTarget(task)
    if "webarena" in task.data:
        return WebArena(task)
    raise EnvSetupError(
        f"task {task.id!r} names no miniwob, site, app or webarena in its data, but {', '.join(task.data) or 'nothing'}"
    )
