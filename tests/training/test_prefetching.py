import itertools
import threading

import pytest

from rncdl.training.prefetching import map_behind, prefetch


def test_items_come_in_their_order():
    assert list(prefetch(iter([]))) == []
    assert list(prefetch(iter(range(50)))) == list(range(50))


def test_no_more_are_made_ahead_than_allowed():
    made = []

    def count():
        for number in itertools.count():
            made.append(number)
            yield number

    items = prefetch(count(), ahead=2)
    assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    items.close()
    assert len(made) <= 5 + 2 + 1  # two wait, one is about to


def test_an_error_comes_in_its_place():
    def fail():
        yield 1
        raise OSError("disk gone")

    items = prefetch(fail())
    assert next(items) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(items)


def test_the_thread_ends_with_the_iterator():
    before = threading.active_count()
    items = prefetch(itertools.count())
    next(items)
    assert threading.active_count() == before + 1
    items.close()
    assert threading.active_count() == before


def test_mapping_behind_is_mapping():
    assert list(map_behind(str, iter([]))) == []
    assert list(map_behind(str, iter(range(5)))) == ["0", "1", "2", "3", "4"]


def test_the_next_item_is_made_while_the_last_one_is_changed():
    is_next_made = threading.Event()

    def make():
        yield 1
        is_next_made.set()
        yield 2

    def change(number):
        assert is_next_made.wait(60)
        return 10 * number

    assert list(map_behind(change, make())) == [10, 20]


def test_an_error_of_the_thread_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        list(map_behind(lambda number: 1 / number, iter([1, 0])))
