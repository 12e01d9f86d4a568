from rncdl.training.journal import Journal, read_journal


def test_no_journal_has_no_records(tmp_path):
    assert read_journal(tmp_path / "journal.jsonl") == []


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for step in (10, 20, 30):
        journal.write(kind="train", step=step, loss=1.0 / step)
    journal.close()
    with path.open("a") as file:
        file.write('{"kind": "train", "st')  # cut short by a crash

    resumed = Journal(path, resume_step=20)
    resumed.write(kind="train", step=30, loss=0.5)
    resumed.close()

    assert [(r["step"], r["loss"]) for r in read_journal(path)] == [
        (10, 0.1),
        (20, 0.05),
        (30, 0.5),
    ]


def test_tensorboard_gets_the_numbers(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", tensorboard_dir=tmp_path / "board")
    journal.write(kind="train", step=1, loss=2.0)
    journal.close()
    assert any((tmp_path / "board").iterdir())
