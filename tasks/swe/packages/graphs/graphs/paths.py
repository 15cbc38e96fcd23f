"""Shortest ways; graph[a][b] is the length of the edge from a to b."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

Graph = Mapping[str, Mapping[str, float]]


def distances(graph: Graph, start: str, limit: float = float("inf")) -> dict[str, float]:
    """The length of the shortest way to each node that is at most `limit` away. Raises ValueError."""
    found: dict[str, float] = {}
    queue = [(0.0, start)]
    while queue:
        distance, node = heappop(queue)
        if node in found:
            continue
        found[node] = distance
        for after, length in graph.get(node, {}).items():
            if length < 0:
                raise ValueError(f"the edge from {node} to {after} has a negative length")
            if after not in found and distance + length <= limit:
                heappush(queue, (distance + length, after))
    return found


def shortest_path(graph: Graph, start: str, end: str) -> list[str] | None:
    """The nodes of a shortest way from start to end, the first by name of equally short ones; or None."""
    to_end = distances(_turned(graph), end)
    if start not in to_end:
        return None
    path = [start]
    while path[-1] != end:
        here = path[-1]
        steps = [n for n, length in graph[here].items() if n in to_end and to_end[here] == length + to_end[n]]
        path.append(min(n for n in steps if n not in path))
    return path


def _turned(graph: Graph) -> dict[str, dict[str, float]]:
    turned: dict[str, dict[str, float]] = {}
    for node, edges in graph.items():
        for after, length in edges.items():
            turned.setdefault(after, {})[node] = length
    return turned
