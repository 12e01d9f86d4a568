import pytest

from rncdl.errors import UserError
from rncdl.experiments.systems import system_names
from rncdl.experiments.tables import parse_names, parse_numbers


def test_numbers_are_read_in_their_order():
    assert parse_numbers("2,0, 1", option="--seeds", least=0) == [2, 0, 1]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "-1", "0,0", "1.5", "1 2"])
def test_bad_numbers_are_refused_with_an_example(text: str):
    with pytest.raises(UserError, match=r"--seeds=.*e\.g\. --seeds 0,1,2"):
        parse_numbers(text, option="--seeds", least=0)


def test_all_names_everything():
    assert parse_names("all", ["a", "b"], option="--table") == ["a", "b"]
    assert parse_names("b, a,b", ["a", "b"], option="--table") == ["b", "a"]


@pytest.mark.parametrize("text", ["memry", "alpha,memry", ""])
def test_unknown_names_are_refused_with_the_choices(text: str):
    with pytest.raises(UserError, match="Choose from: alpha, memory, or all"):
        parse_names(text, ["alpha", "memory"], option="--table")


def test_a_near_name_is_offered():
    with pytest.raises(UserError, match="Did you mean 'memory'"):
        parse_names("memry", ["alpha", "memory"], option="--table")


def test_systems_are_listed_once_and_the_ceiling_last():
    names = system_names()
    assert len(set(names)) == len(names)
    assert {"kmeans-features", "rncdl-random-head", "rncdl"} < set(names)
    assert names[-1] == "fully-supervised"
