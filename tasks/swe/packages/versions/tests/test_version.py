import pytest
from versions import Version

ORDER = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
ORDER += ["1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"]


def v(text):
    return Version.parse(text)


@pytest.mark.parametrize("text", ["0.0.0", "1.2.3", "1.2.3-rc.1", "1.2.3-x-y.0+build.5", "1.0.0+b"])
def test_round_trip(text):
    assert str(v(text)) == text


def test_a_leading_v_and_blanks_are_allowed():
    assert v(" v1.2.3 ") == Version(1, 2, 3)


@pytest.mark.parametrize("text", ["1.2", "1.2.3.4", "a.b.c", "1.2.3-", "1.2.3-a..b", "1.2.3-01", ""])
def test_what_is_no_version(text):
    with pytest.raises(ValueError):
        v(text)


def test_a_zero_is_a_fine_pre_release():
    assert v("1.0.0-0").pre == ("0",)


def test_order():
    assert sorted(map(v, reversed(ORDER))) == list(map(v, ORDER))


def test_builds_do_not_count():
    assert v("1.0.0+a") == v("1.0.0+b") and len({v("1.0.0+a"), v("1.0.0")}) == 1


def test_a_version_is_only_equal_to_versions():
    assert v("1.0.0") != "1.0.0" and v("1.0.0") != v("1.0.0-rc")


@pytest.mark.parametrize(
    ("text", "part", "after"),
    [
        ("1.2.3", "major", "2.0.0"),
        ("1.2.3", "minor", "1.3.0"),
        ("1.2.3", "patch", "1.2.4"),
        ("2.0.0-rc.1", "major", "2.0.0"),
        ("2.1.0-rc.1", "major", "3.0.0"),
        ("1.3.0-rc.1", "minor", "1.3.0"),
        ("1.3.1-rc.1", "minor", "1.4.0"),
        ("1.2.4-rc.1", "patch", "1.2.4"),
        ("1.2.3+b", "patch", "1.2.4"),
    ],
)
def test_raised(text, part, after):
    assert str(v(text).raised(part)) == after


def test_only_three_parts_can_be_raised():
    with pytest.raises(ValueError, match="not 'build'"):
        v("1.0.0").raised("build")
