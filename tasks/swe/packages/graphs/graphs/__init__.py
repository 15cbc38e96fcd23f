"""Small algorithms on directed graphs."""

from graphs.order import CycleError, layers, topological
from graphs.paths import distances, shortest_path
from graphs.sets import components, reachable, reversed_graph

__all__ = [
    "CycleError",
    "components",
    "distances",
    "layers",
    "reachable",
    "reversed_graph",
    "shortest_path",
    "topological",
]
