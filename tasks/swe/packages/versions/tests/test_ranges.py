import pytest
from versions import Range, Version, best

ALL = [
    "0.2.3",
    "0.2.9",
    "0.3.0",
    "1.0.0",
    "1.2.0",
    "1.2.3",
    "1.2.9",
    "1.3.0",
    "2.0.0-rc.1",
    "2.0.0",
    "2.4.1",
    "3.0.0",
]


def allowed(wanted):
    return [v for v in ALL if Version.parse(v) in Range(wanted)]


@pytest.mark.parametrize(
    ("wanted", "versions"),
    [
        ("1.2.3", ["1.2.3"]),
        ("=1.2.3", ["1.2.3"]),
        (">=2", ["2.0.0", "2.4.1", "3.0.0"]),
        (">2", ["3.0.0"]),
        (">2.0.0", ["2.4.1", "3.0.0"]),
        ("<1", ["0.2.3", "0.2.9", "0.3.0"]),
        ("<=1", ["0.2.3", "0.2.9", "0.3.0", "1.0.0", "1.2.0", "1.2.3", "1.2.9", "1.3.0"]),
        ("<=1.2.0", ["0.2.3", "0.2.9", "0.3.0", "1.0.0", "1.2.0"]),
        (">=1.2 <1.3", ["1.2.0", "1.2.3", "1.2.9"]),
        ("^1.2.3", ["1.2.3", "1.2.9", "1.3.0"]),
        ("^0.2.3", ["0.2.3", "0.2.9"]),
        ("^0.0.3", []),
        ("~1.2.3", ["1.2.3", "1.2.9"]),
        ("~2", ["2.0.0", "2.4.1"]),
        ("1.x", ["1.0.0", "1.2.0", "1.2.3", "1.2.9", "1.3.0"]),
        ("1.2.*", ["1.2.0", "1.2.3", "1.2.9"]),
        ("<0.3 || >2.4", ["0.2.3", "0.2.9", "3.0.0"]),
        (">=2.0.0-rc.0 <2.1", ["2.0.0-rc.1", "2.0.0"]),
        ("1.2.3 || 3.x", ["1.2.3", "3.0.0"]),
    ],
)
def test_ranges(wanted, versions):
    assert allowed(wanted) == versions


def test_everything_but_pre_releases():
    assert allowed("*") == allowed("") == [v for v in ALL if "-" not in v]


def test_what_is_no_range():
    with pytest.raises(ValueError, match="'>=a' is no range"):
        Range(">=a")


def test_best_is_the_highest_as_it_was_written():
    assert best(["v1.2.0", "1.10.0", "2.0.0"], "1.x") == "1.10.0" and best(["v1.2.0"], "1.x") == "v1.2.0"


def test_best_can_be_the_lowest():
    assert best(["1.2.0", "1.10.0", "1.1.0"], "^1.2", lowest=True) == "1.2.0"


def test_best_of_nothing():
    assert best(["1.0.0"], "2.x") is None
