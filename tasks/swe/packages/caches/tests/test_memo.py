import pytest
from caches import memo


def counting(**options):
    calls = []

    @memo(**options)
    def function(*args, **kwargs):
        """Documented."""
        calls.append((args, kwargs))
        if args == ("bad",):
            raise KeyError("bad")
        return len(calls)

    return function, calls


def test_equal_arguments_are_computed_once():
    function, calls = counting()
    assert function(1, b=2) == function(1, b=2) == 1 and len(calls) == 1


def test_the_order_of_keywords_does_not_count():
    function, calls = counting()
    function(a=1, b=2)
    function(b=2, a=1)
    assert len(calls) == 1


def test_positions_and_names_differ():
    function, calls = counting()
    function(1, 2)
    function(2, 1)
    function(1, b=2)
    assert len(calls) == 3


def test_types_count_if_asked():
    for typed, computed in ((False, 1), (True, 2)):
        function, calls = counting(typed=typed)
        function(1)
        function(1.0)
        assert len(calls) == computed
    function, calls = counting(typed=True)
    function(x=1)
    function(x=True)
    assert len(calls) == 2


def test_the_size_is_a_bound():
    function, calls = counting(size=1)
    function(1)
    function(2)
    function(1)
    assert len(calls) == 3 and len(function.cache) == 1


def test_errors_are_not_remembered():
    function, calls = counting()
    for _ in range(2):
        with pytest.raises(KeyError):
            function("bad")
    assert len(calls) == 2


def test_errors_are_remembered_if_asked():
    function, calls = counting(errors=True)
    for _ in range(2):
        with pytest.raises(KeyError):
            function("bad")
    assert len(calls) == 1


def test_a_memo_looks_like_its_function():
    function, _ = counting()
    assert function.__doc__ == "Documented." and function.cache.size == 128
