import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rncdl.data.records import Category
from rncdl.evaluation.assignment import (
    UNMAPPED,
    assign_clusters,
    count_matrix,
    write_assignment,
    write_counts,
)

PROTOCOLS = ["fixed", "paper"]


@st.composite
def counted(draw) -> tuple[np.ndarray, np.ndarray]:
    """A count matrix of up to 3 known outputs and 5 clusters, and the known outputs' columns."""
    num_known = draw(st.integers(0, 3))
    num_clusters = draw(st.integers(0, 5))
    num_classes = draw(st.integers(num_known, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = rng.integers(
        0, draw(st.sampled_from([2, 10])), (num_known + num_clusters, num_classes)
    )
    return counts, rng.permutation(num_classes)[:num_known]


def test_nothing_to_count():
    none = np.zeros(0, dtype=np.int64)
    counts = count_matrix(none, none, num_outputs=3, num_classes=2)
    assert counts.tolist() == [[0, 0]] * 3
    assignment = assign_clusters(counts, np.array([1]), protocol="paper")
    assert assignment.class_columns.tolist() == [UNMAPPED] * 3
    assert assignment.purity.tolist() == [0, 0, 0]


def test_count_matrix_by_hand():
    outputs, classes = np.array([0, 2, 2, 2, 1]), np.array([1, 0, 0, 1, 1])
    counts = count_matrix(outputs, classes, num_outputs=4, num_classes=2)
    assert counts.tolist() == [[0, 1], [0, 1], [2, 1], [0, 0]]


def test_both_protocols_by_hand():
    """Output 0 is known (class 2), and takes mostly class 0; clusters 1, 2, 3 follow."""
    counts = np.array([[9, 0, 1], [6, 0, 0], [5, 4, 8], [0, 0, 0]])
    known = np.array([2])
    fixed = assign_clusters(counts, known, protocol="fixed")
    assert fixed.class_columns.tolist() == [2, 0, 1, UNMAPPED]
    assert fixed.counts.tolist() == [1, 6, 4, 0]
    assert fixed.sizes.tolist() == [10, 6, 17, 0]
    np.testing.assert_allclose(fixed.purity, [0.1, 1, 4 / 17, 0])
    paper = assign_clusters(counts, known, protocol="paper")
    assert paper.class_columns.tolist() == [0, UNMAPPED, 2, UNMAPPED]


def test_a_known_class_that_the_dataset_lacks_stays_unmapped():
    counts = np.array([[3, 1], [2, 5]])
    fixed = assign_clusters(counts, np.array([UNMAPPED]), protocol="fixed")
    assert fixed.class_columns.tolist() == [UNMAPPED, 1]


@given(counted())
@settings(max_examples=60)
def test_fixed_never_moves_a_known_output_nor_gives_its_class_away(case):
    counts, known = case
    columns = assign_clusters(counts, known, protocol="fixed").class_columns
    assert columns[: len(known)].tolist() == known.tolist()
    assert not set(columns[len(known) :].tolist()) & set(known.tolist())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(case=counted())
@settings(max_examples=40)
def test_one_to_one_with_the_largest_total_and_no_empty_pair(protocol, case):
    counts, known = case
    assignment = assign_clusters(counts, known, protocol=protocol)
    mapped = assignment.class_columns[assignment.is_mapped]
    assert len(set(mapped.tolist())) == len(mapped)
    first = len(known) if protocol == "fixed" else 0
    assert (assignment.counts[first:][assignment.is_mapped[first:]] > 0).all()
    columns = [c for c in range(counts.shape[1]) if protocol == "paper" or c not in known]
    table = counts[first:][:, columns]
    table = table if table.shape[0] <= table.shape[1] else table.T
    best = max(
        (
            sum(table[row, column] for row, column in enumerate(choice))
            for choice in itertools.permutations(range(table.shape[1]), table.shape[0])
        ),
        default=0,
    )
    assert assignment.counts[first:].sum() == best


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_renaming_clusters_changes_nothing(protocol, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 10**6, size=(9, 6))  # wide enough that no two totals tie
    known = np.array([4, 1])
    renamed = np.concatenate([[0, 1], 2 + rng.permutation(7)])
    before = assign_clusters(counts, known, protocol=protocol)
    after = assign_clusters(counts[renamed], known, protocol=protocol)
    assert after.class_columns.tolist() == before.class_columns[renamed].tolist()
    assert after.counts.tolist() == before.counts[renamed].tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_perfect_clustering_is_pure_and_complete(protocol):
    classes = np.repeat(np.arange(6), 5)
    output_of_class = np.array([0, 1, 7, 3, 5, 2])  # classes 0 and 1 are known
    counts = count_matrix(output_of_class[classes], classes, num_outputs=9, num_classes=6)
    assignment = assign_clusters(counts, np.array([0, 1]), protocol=protocol)
    assert assignment.class_columns[output_of_class].tolist() == list(range(6))
    assert assignment.purity[output_of_class].tolist() == [1.0] * 6
    assert assignment.counts.sum() == len(classes)


def test_named_outputs_keep_their_class_and_the_others_share_what_is_left():
    """Output 1 is named after class 2 though it took more of 1; output 3 after none of the file."""
    counts = np.array([[9, 0, 0], [0, 8, 1], [0, 7, 7], [0, 0, 5]])
    known, named = np.array([0]), {1: 2, 3: UNMAPPED}
    fixed = assign_clusters(counts, known, protocol="fixed", named=named)
    assert fixed.class_columns.tolist() == [0, 2, 1, UNMAPPED]
    assert fixed.counts.tolist() == [9, 1, 7, 0]
    by_name = assign_clusters(counts, known, protocol="named", named=named)
    assert by_name.class_columns.tolist() == [0, 2, UNMAPPED, UNMAPPED]
    nobody = assign_clusters(counts, known, protocol="named")
    assert nobody.class_columns.tolist() == [0, UNMAPPED, UNMAPPED, UNMAPPED]


def test_known_outputs_found_before_are_clusters():
    """Output 0 is known (class 0); outputs 1 and 2 are known, but found before; 3 is a cluster."""
    counts = np.array([[9, 3, 0], [8, 1, 4], [0, 6, 2], [5, 5, 0]])
    known = np.array([0, UNMAPPED, UNMAPPED])
    fixed = assign_clusters(counts, known, protocol="fixed", found=[1, 2])
    assert fixed.class_columns.tolist() == [0, 2, 1, UNMAPPED]
    assert fixed.counts.tolist() == [9, 4, 6, 0]
    assert fixed.is_cluster.tolist() == [False, True, True, True]
    by_name = assign_clusters(counts, known, protocol="named", named={3: 2}, found=[1, 2])
    assert by_name.class_columns.tolist() == [0, UNMAPPED, UNMAPPED, 2]
    # Output 2 has nothing left once somebody has given its class to output 3.
    shared = assign_clusters(counts, known, protocol="fixed", named={3: 1}, found=[1, 2])
    assert shared.class_columns.tolist() == [0, 2, UNMAPPED, 1]
    lacking = assign_clusters(counts, known, protocol="fixed")
    assert lacking.class_columns.tolist() == [0, UNMAPPED, UNMAPPED, 1]


CATEGORIES = [Category(10, "cat"), Category(20, "dog"), Category(30, 'a, "comma"')]


def test_the_csv_holds_the_assignment(tmp_path: Path):
    path = tmp_path / "assignment.csv"
    counts = np.array([[9, 0, 1], [6, 0, 0], [5, 4, 8], [0, 0, 0]])
    assignment = assign_clusters(counts, np.array([2]), protocol="fixed")
    write_assignment(path, assignment, CATEGORIES, names=["dog", "tabby", "b", "c"])
    assert path.read_text().splitlines()[2] == "1,cluster,tabby,10,cat,6,6,1.0000"
    assert path.read_text().splitlines()[4] == "3,cluster,c,,,0,0,0.0000"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = assignment.class_columns.tolist()
    ids = ["" if column == UNMAPPED else str(CATEGORIES[column].id) for column in columns]
    assert [row["category_id"] for row in rows] == ids
    assert [int(row["count"]) for row in rows] == assignment.counts.tolist()
    assert [int(row["size"]) for row in rows] == assignment.sizes.tolist()
    assert [row["kind"] for row in rows] == ["known", *["cluster"] * 3]
    found = assign_clusters(counts, np.array([2, UNMAPPED]), protocol="fixed", found=[1])
    write_assignment(path, found, CATEGORIES, names=["dog", "found_0003", "b", "c"])
    assert path.read_text().splitlines()[2] == "1,cluster,found_0003,10,cat,6,6,1.0000"


def test_counts_are_written_where_there_are_any(tmp_path: Path):
    path = tmp_path / "confusion.csv"
    write_counts(path, np.zeros((2, 3), dtype=np.int64), CATEGORIES)
    assert path.read_text().splitlines() == ["output,category_id,class,count"]
    write_counts(path, np.array([[0, 5, 0], [2, 0, 7]]), CATEGORIES)
    assert path.read_text().splitlines()[1:] == [
        "0,20,dog,5",
        "1,10,cat,2",
        '1,30,"a, ""comma""",7',
    ]
