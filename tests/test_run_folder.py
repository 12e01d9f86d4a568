from pathlib import Path

from rncdl.run_folder import RunFolder


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_a_run_without_evaluations_has_none(tmp_path: Path):
    assert RunFolder(tmp_path).evaluations_of("main") == {}
    assert RunFolder(tmp_path).evaluations_of(None) == {}


def test_an_evaluation_belongs_to_the_discovery_whose_whole_name_it_ends_with(tmp_path: Path):
    run = RunFolder(tmp_path)
    for name in ("main", "my_main"):
        touch(run.discovery(name).heads_file)
        touch(run.evaluation("val", name).report_json)
    touch(run.evaluation("my_val", "main").report_json)
    touch(run.evaluation("val", None).report_json)
    assert set(run.evaluations_of("main")) == {"val", "my_val"}
    assert run.evaluations_of("main")["val"] == run.evaluation("val", "main")
    assert run.evaluations_of("my_main") == {"val": run.evaluation("val", "my_main")}
    assert run.evaluations_of(None) == {"val": run.evaluation("val", None)}


def test_an_unfinished_evaluation_is_left_out(tmp_path: Path):
    run = RunFolder(tmp_path)
    run.evaluation("val", "main").path.mkdir(parents=True)
    assert run.evaluations_of("main") == {}
