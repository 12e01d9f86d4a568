import os
from pathlib import Path

import pytest

from rncdl.data.image_paths import find_images
from rncdl.errors import UserError


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "photos"
    for name in ("10.jpg", "2.JPG", "sub/1.png", "notes.txt", ".hidden.jpg", "odd[1].jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return folder


def names(*words: str, outside: str = "out") -> list[str]:
    return [os.path.relpath(path) for path in find_images(words, outside=Path(outside))]


@pytest.mark.parametrize("word", ["empty", "missing.jpg", "photos/*.webp", "photos/notes.tx*"])
def test_what_gives_nothing_is_named(photos: Path, word: str):
    with pytest.raises(UserError, match="No images at") as caught:
        find_images(["photos", word, "nowhere"], outside=Path("out"))
    assert f"{word}, nowhere" in str(caught.value)


def test_no_words_are_an_error(photos: Path):
    with pytest.raises(UserError, match="No images at all"):
        find_images([], outside=Path("out"))


def test_a_folder_is_searched_in_natural_order(photos: Path):
    expected = ["photos/2.JPG", "photos/10.jpg", "photos/odd[1].jpg", "photos/sub/1.png"]
    assert names("photos") == expected
    assert all(path.is_absolute() for path in find_images(["photos"], outside=Path("out")))


def test_the_words_keep_their_order_and_nothing_comes_twice(photos: Path):
    found = names("photos/10.jpg", "photos", str(photos / "2.JPG"), "photos/../photos/10.jpg")
    assert found == ["photos/10.jpg", "photos/2.JPG", "photos/odd[1].jpg", "photos/sub/1.png"]


def test_globs_find_images_and_folders(photos: Path):
    assert names("photos/*.jpg") == ["photos/10.jpg", "photos/odd[1].jpg"]
    assert names("photos/**/*.png") == ["photos/sub/1.png"]
    assert names("photos/s*") == ["photos/sub/1.png"]


def test_a_file_is_itself_even_if_its_name_is_a_glob_or_says_no_image(photos: Path):
    assert names("photos/odd[1].jpg") == ["photos/odd[1].jpg"]
    assert names("photos/notes.txt") == ["photos/notes.txt"]


def test_what_is_written_is_not_read_again(photos: Path):
    assert names("photos", outside="photos/sub")[-1] == "photos/odd[1].jpg"
