import pytest
from graphs import (
    CycleError,
    components,
    distances,
    layers,
    reachable,
    reversed_graph,
    shortest_path,
    topological,
)

BUILD = {"b": ["d"], "a": ["d", "c"], "c": ["e"], "d": ["e"], "f": []}
ROADS = {
    "a": {"b": 1, "c": 5},
    "b": {"c": 1, "d": 7},
    "c": {"d": 2, "e": 2},
    "d": {"f": 1},
    "e": {"f": 1},
    "f": {},
}


def test_topological_order_is_the_first_by_name():
    assert topological(BUILD) == ["a", "b", "c", "d", "e", "f"]
    assert topological({"z": ["a"], "m": []}) == ["m", "z", "a"]


def test_nodes_that_are_only_led_to_count():
    assert topological({"a": ["x"]}) == ["a", "x"]


def test_cycles_are_named():
    with pytest.raises(CycleError, match="a cycle among b, c, d") as caught:
        topological({"a": ["b"], "b": ["c"], "c": ["b", "d"]})
    assert caught.value.nodes == ["b", "c", "d"]


def test_layers_by_the_longest_way():
    assert layers(BUILD) == [["a", "b", "f"], ["c", "d"], ["e"]]
    assert layers({"a": ["b", "c"], "b": ["c"]}) == [["a"], ["b"], ["c"]]


def test_layers_of_nothing():
    assert layers({}) == []


def test_distances():
    assert distances(ROADS, "a") == {"a": 0, "b": 1, "c": 2, "d": 4, "e": 4, "f": 5}


def test_distances_up_to_a_limit():
    assert distances(ROADS, "a", limit=4) == {"a": 0, "b": 1, "c": 2, "d": 4, "e": 4}


def test_negative_lengths_are_refused():
    with pytest.raises(ValueError, match="from a to b has a negative length"):
        distances({"a": {"b": -1}}, "a")


def test_edges_of_no_length():
    assert distances({"a": {"b": 0}, "b": {"c": 0}}, "a") == {"a": 0, "b": 0, "c": 0}


def test_shortest_path_prefers_first_names():
    assert shortest_path(ROADS, "a", "f") == ["a", "b", "c", "d", "f"]


def test_shortest_path_is_directed():
    assert shortest_path(ROADS, "f", "a") is None and shortest_path(ROADS, "c", "c") == ["c"]


def test_a_detour_may_be_shorter():
    assert shortest_path({"a": {"z": 5, "b": 1}, "b": {"c": 1}, "c": {"z": 1}}, "a", "z") == [
        "a",
        "b",
        "c",
        "z",
    ]


def test_reachable():
    assert reachable(BUILD, ["b"]) == {"b", "d", "e"} and reachable(BUILD, ["f", "c"]) == {"f", "c", "e"}
    assert reachable({"a": ["b"], "b": ["a"]}, ["a"]) == {"a", "b"}


def test_reversed_graph_keeps_lonely_nodes():
    assert reversed_graph({"a": ["b"], "c": []}) == {"a": set(), "b": {"a"}, "c": set()}


def test_components_ignore_directions():
    assert components({"a": ["b"], "c": ["b"], "x": ["y"], "q": []}) == [{"a", "b", "c"}, {"x", "y"}, {"q"}]


def test_strong_components():
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": ["d"], "f": ["a"]}
    assert components(graph, strong=True) == [{"a", "b", "c"}, {"d", "e"}, {"f"}]


def test_equal_components_are_sorted_by_name():
    assert components({"z": [], "m": [], "b": ["c"]}) == [{"b", "c"}, {"m"}, {"z"}]
