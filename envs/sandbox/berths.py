"""Processes for namespace sandboxes to come, started ahead in their control groups (native/porter.c).

What the kernel lets its callers wait for, a new network namespace and the way into a control group, has then
happened before a sandbox is asked for.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from dataclasses import dataclass

from palestra.envs.sandbox.base import Limits
from palestra.envs.sandbox.cgroups import Group, Groups
from palestra.envs.sandbox.supervisor import Supervisor

log = logging.getLogger(__name__)

SPARES = 2
"""As many as a fork needs."""


@dataclass(frozen=True, slots=True)
class Berth:
    """A process that waits for its room, under a name that the supervisor knows."""

    name: str
    group: Group | None
    has_cpu: bool
    """Whether its CPU time can be bounded."""


class Berths:
    """All berths of one supervisor; from any thread."""

    def __init__(self, supervisor: Supervisor, groups: Groups | None) -> None:
        self._supervisor, self._groups = supervisor, groups
        self._ready: list[Berth] = []
        self._spares: Counter[bool] = Counter()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        for _ in range(SPARES):
            self.refill(Limits())

    def take(self, limits: Limits) -> Berth:
        """One that nobody else gets, in a group that can be bound by `limits`."""
        return self._find(has_cpu=bool(limits.cpus)) or self._prepare(limits)

    def refill(self, limits: Limits) -> None:
        """Prepare one for the next sandbox with such limits, if there are too few."""
        kind = bool(limits.cpus)
        with self._lock:
            if self._spares[kind] >= SPARES:
                return
            self._spares[kind] += 1
        try:
            berth = self._prepare(limits)
        except OSError as error:  # who needs it now will be told
            log.warning("cannot prepare a sandbox: %s", error)
            with self._lock:
                self._spares[kind] -= 1
            return
        with self._lock:
            self._ready.append(berth)

    def _find(self, *, has_cpu: bool) -> Berth | None:
        with self._lock:
            fits = next((berth for berth in self._ready if berth.has_cpu == has_cpu), None)
            if fits:
                self._ready.remove(fits)
                self._spares[has_cpu] -= 1
        return fits

    def give_back(self, group: Group | None) -> None:
        """All processes of the group have ended."""
        if self._groups and group:
            self._groups.give_back(group)

    def close(self) -> None:
        """Remove the control groups, once the supervisor has ended."""
        for berth in self._ready:
            self.give_back(berth.group)
        if self._groups:
            self._groups.close()

    def _prepare(self, limits: Limits) -> Berth:
        group = self._groups.take(limits) if self._groups else None
        berth = Berth(str(next(self._numbers)), group, has_cpu=bool(limits.cpus))
        doors = group.doors(cpu=berth.has_cpu) if group else []
        try:
            self._supervisor.tell("prepare", [("id", berth.name), *(("cgroup", door) for door in doors)])
        except BaseException:
            self.give_back(group)
            raise
        return berth
