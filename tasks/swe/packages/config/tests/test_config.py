import pytest
from config import ConfigError, flatten, merge, parse, parse_value, resolve

TEXT = """
name = demo            # a comment
[server]
port = 8080
hosts = [a, b,
    c]
# a whole line
[ paths ]
root = /srv
"""


def test_sections_and_values():
    assert parse(TEXT) == {
        "main": {"name": "demo"},
        "server": {"port": 8080, "hosts": ["a", "b", "c"]},
        "paths": {"root": "/srv"},
    }


def test_the_default_section_has_a_name():
    assert parse("a = 1", default_section="top") == {"top": {"a": 1}}


def test_a_section_may_be_opened_again():
    assert parse("[a]\nx = 1\n[b]\n[a]\ny = 2") == {"a": {"x": 1, "y": 2}, "b": {}}


def test_a_value_may_hold_signs():
    assert parse("url = http://x/?a=b#c") == {"main": {"url": "http://x/?a=b#c"}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[open", "line 1: a section is written"),
        ("a = 1\n\n[]", "line 3: a section is written"),
        ("a = 1\nnonsense", "line 2: expected key = value, found 'nonsense'"),
        (" = 3", "line 1: expected key"),
        ("a = 1\nb = 2\na = 3", "line 3: 'a' is set twice in .main."),
    ],
)
def test_errors_name_the_line(text, says):
    with pytest.raises(ConfigError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("word", "word"),
        ('"12"', "12"),
        ('"say \\"hi\\""', 'say "hi"'),
        ('"', '"'),
        ("[]", []),
        ("[1, [2, 3], x]", [1, [2, 3], "x"]),
        ('["a, b", c]', ["a, b", "c"]),
        ('["]", d]', ["]", "d"]),
    ],
)
def test_values(text, value):
    found = parse_value(text)
    assert found == value and type(found) is type(value)


def test_merging_is_deep_and_later_layers_win():
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}, {"b": {}}) == {
        "a": {"x": 1, "y": 3},
        "b": {},
    }


def test_lists_are_replaced_or_joined():
    assert merge({"a": [1]}, {"a": [2]}) == {"a": [2]}
    assert merge({"a": {"b": [1]}}, {"a": {"b": [2]}}, append=True) == {"a": {"b": [1, 2]}}


def test_flatten():
    assert flatten({"a": {"b": {"c": 1}, "d": []}, "e": 2, "f": {}}) == {"a.b.c": 1, "a.d": [], "e": 2}
    assert flatten({"a": {"b": 1}}, separator="/") == {"a/b": 1}


def test_references_keep_types_and_become_text_within_text():
    text = "[a]\nport = 80\nsame = ${port}\n[b]\nurl = http://h:${a.port}/${a.flag}\nn = ${a.port}"
    assert resolve(parse(text + "\n[a]\nflag = true")) == {
        "a": {"port": 80, "same": 80, "flag": True},
        "b": {"url": "http://h:80/true", "n": 80},
    }


def test_references_to_references_and_in_lists():
    assert resolve(parse("a = ${b}\nb = ${c}\nc = [x, y]\nd = [${c}, z]\ne = <${c}>")) == {
        "main": {"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"], "d": [["x", "y"], "z"], "e": "<x,y>"}
    }


@pytest.mark.parametrize("text", ["a = ${b}", "a = ${other.a}", "[s]\na = ${main.a}"])
def test_references_to_nothing(text):
    with pytest.raises(ConfigError, match="names nothing"):
        resolve(parse(text))


def test_circles_are_refused():
    with pytest.raises(ConfigError, match="circles"):
        resolve(parse("a = ${b}\nb = ${a}"))


def test_chains_up_to_the_depth_are_fine():
    assert resolve(parse("a = 1\nb = ${a}\nc = ${b}"), max_depth=2)["main"]["c"] == 1
    with pytest.raises(ConfigError):
        resolve(parse("a = 1\nb = ${a}\nc = ${b}"), max_depth=1)
