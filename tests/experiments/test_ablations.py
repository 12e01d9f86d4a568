from rncdl.config import Settings, resolve_settings
from rncdl.experiments.ablations import AblationTable, ablation_tables
from rncdl.experiments.published import COMPARED, RNCDL


def at_paper_scale() -> dict[str, AblationTable]:
    return ablation_tables(num_clusters=3000, regions_per_image=50, memory_batches=100)


def test_at_the_papers_scale_the_counts_are_the_papers():
    tables = at_paper_scale()
    overrides = {name: [row.overrides[0] for row in tables[name].rows] for name in tables
                 if name != "components"}  # fmt: skip
    assert overrides["classes"] == [f"discover.heads=[{n}]" for n in (1000, 3000, 5000)]
    assert overrides["proposals"] == [f"discover.regions_per_image={n}" for n in (20, 50, 100, 150)]
    assert overrides["memory"] == [f"discover.memory_batches={n}" for n in (0, 20, 50, 100)]
    assert overrides["heads"][:3] == ["discover.heads=[1000,3000,5000]"] * 3
    assert [row.head for row in tables["heads"].rows] == [0, 1, 2, 0, 0, 0]


def test_at_the_papers_scale_each_table_has_the_papers_own_settings_and_figures_once():
    """The default settings are the paper's; every table shows them beside the main result."""
    base = Settings()
    for table in at_paper_scale().values():
        unchanged = [
            row
            for row in table.rows
            if not row.left_out and resolve_settings(base=base, overrides=row.overrides) == base
        ]
        assert [row.published for row in unchanged] == [RNCDL]


def test_counts_scale_with_the_runs_own_and_never_vanish():
    tables = ablation_tables(num_clusters=40, regions_per_image=50, memory_batches=2)
    assert [row.overrides for row in tables["classes"].rows] == [
        ("discover.heads=[13]",),
        ("discover.heads=[40]",),
        ("discover.heads=[67]",),
    ]
    memory = [row.overrides[0].partition("=")[2] for row in tables["memory"].rows]
    assert memory == ["0", "1", "1", "2"]


def test_explicit_clusters_have_no_figures_beside_them():
    tables = ablation_tables(
        num_clusters=40, regions_per_image=50, memory_batches=2, clusters=[5, 6]
    )
    assert [row.title for row in tables["classes"].rows] == ["N = 5", "N = 6"]
    assert len(tables["heads"].rows) == 4
    assert not any(row.published for row in tables["heads"].rows + tables["classes"].rows)


def test_overall_map_is_the_mean_over_known_and_novel_classes():
    """A slip of the pen in the tables of figures would break this."""
    rows = [row for table in at_paper_scale().values() for row in table.rows]
    for figures in [row.published for row in rows] + [line.published for line in COMPARED]:
        if figures and figures.known and figures.novel and figures.all:
            # LVIS's validation has annotations of 1035 classes, 79 of them known.
            expected = (79 * figures.known + 956 * figures.novel) / 1035
            assert abs(figures.all - expected) < 0.02, figures
