"""Sets of nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def reachable(graph: Mapping[str, Collection[str]], starts: Iterable[str]) -> set[str]:
    """All nodes that can be reached, the starts among them."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(graph.get(node, ()))
    return seen


def reversed_graph(graph: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Every edge turned round; nodes without edges stay."""
    turned: dict[str, set[str]] = {node: set() for node in graph}
    for node, after in graph.items():
        for other in after:
            turned.setdefault(other, set()).add(node)
    return turned


def components(graph: Mapping[str, Collection[str]], strong: bool = False) -> list[set[str]]:
    """Nodes that hang together, the largest sets first, then by their first name.

    Strong components: every node reaches every other along the edges.
    """
    turned = reversed_graph(graph)
    both = {node: set(graph.get(node, ())) | turned[node] for node in turned}
    left = set(turned)
    found = []
    while left:
        node = min(left)
        if strong:
            part = reachable(graph, [node]) & reachable(turned, [node])
        else:
            part = reachable(both, [node])
        found.append(part)
        left -= part
    return sorted(found, key=lambda part: (-len(part), min(part)))
