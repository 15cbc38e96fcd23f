"""Orders of graphs without cycles; graph[a] holds what must come after a."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush


class CycleError(ValueError):
    """Raised for a graph with a cycle; `nodes` are in it or behind it."""

    def __init__(self, nodes: list[str]) -> None:
        super().__init__(f"there is a cycle among {', '.join(nodes)}")
        self.nodes = nodes


def _incoming(graph: Mapping[str, Collection[str]]) -> dict[str, int]:
    counts = dict.fromkeys(graph, 0)
    for after in graph.values():
        for node in after:
            counts[node] = counts.get(node, 0) + 1
    return counts


def topological(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Every node after those that lead to it; of several orders the first by name. Raises CycleError."""
    counts = _incoming(graph)
    ready = [node for node, count in counts.items() if count == 0]
    heapify(ready)
    order = []
    while ready:
        node = heappop(ready)
        order.append(node)
        for after in graph.get(node, ()):
            counts[after] -= 1
            if counts[after] == 0:
                heappush(ready, after)
    if len(order) < len(counts):
        raise CycleError(sorted(n for n, c in counts.items() if c > 0))
    return order


def layers(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Nodes by the length of the longest way to them, each layer sorted. Raises CycleError."""
    depth = dict.fromkeys(topological(graph), 0)
    for node in depth:
        for after in graph.get(node, ()):
            depth[after] = max(depth[after], depth[node] + 1)
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node, level in depth.items():
        found[level].append(node)
    return [sorted(layer) for layer in found]
