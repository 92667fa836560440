"""Pictures are decoded once; a torn or stale cache is found and rebuilt, and nothing is left
half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import generated_trees
import numpy as np
import pytest
from generated_trees import picture
from leftovers import left_by_dead_process
from PIL import Image

from askew.core.errors import UserError
from askew.data import image_cache
from askew.data.decode import decode
from askew.data.domains import Unlabeled
from askew.data.image_cache import Pictures, pictures

NAMES = [f"{k}/{i}.png" for k in "ab" for i in range(4)]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return generated_trees.own_cache(tmp_path, monkeypatch)


@pytest.fixture
def root(tmp_path: Path, own_cache: Path) -> Path:
    for name in NAMES:
        picture(tmp_path / "set" / name)
    return tmp_path / "set"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pictures that were decoded, in order."""
    seen: list[str] = []

    def count(path: Path) -> np.ndarray:
        seen.append(f"{path.parent.name}/{path.name}")
        return decode(path)

    monkeypatch.setattr(image_cache, "decode", count)
    return seen


def right(found: Pictures, root: Path) -> bool:
    return all(
        (found.x[i] == decode(root / NAMES[row])).all() for i, row in enumerate(found.kept.tolist())
    )


def test_pictures_are_decoded_once_and_read_from_a_memory_map(
    root: Path, own_cache: Path, counted: list[str]
) -> None:
    first = pictures("set", root, NAMES)
    again = pictures("set", root, NAMES)
    assert sorted(counted) == sorted(NAMES)
    assert isinstance(again.x.base, np.memmap)
    assert again.x.shape == (8, 3, 256, 256)
    assert right(first, root)
    assert right(again, root)
    assert sorted(p.suffix for p in own_cache.iterdir() if not p.name.startswith(".")) == [
        ".json",
        ".npy",
    ]


def test_the_file_is_an_array_that_numpy_loads_by_itself(root: Path, own_cache: Path) -> None:
    found = pictures("set", root, NAMES)
    (file,) = own_cache.glob("*.npy")
    assert (np.load(file, allow_pickle=False) == np.asarray(found.x)).all()


def test_a_picture_that_changed_is_decoded_again_and_the_others_are_not(
    root: Path, counted: list[str]
) -> None:
    pictures("set", root, NAMES)
    counted.clear()
    picture(root / "a/0.png", side=30)
    assert right(pictures("set", root, NAMES), root)
    assert counted == ["a/0.png"]


def test_an_image_of_equal_size_and_time_is_decoded_again(root: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (2, 9, 9, 3)).astype(np.uint8)
    file = root / "a" / "0.png"
    for image in x:
        Image.fromarray(image).save(file.with_suffix(".bmp"))
        file.with_suffix(".bmp").replace(file)
        os.utime(file, ns=(1, 1))
        assert right(pictures("set", root, NAMES), root)


def test_pictures_are_identified_by_their_pixels_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Unlabeled(pictures("set", root, NAMES).x).fingerprint()
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "elsewhere"))
    shutil.copytree(root, tmp_path / "copy")
    assert Unlabeled(pictures("other", tmp_path / "copy", NAMES).x).fingerprint() == first
    Image.new("RGB", (9, 9)).save(tmp_path / "copy/a/0.png")
    assert Unlabeled(pictures("other", tmp_path / "copy", NAMES).x).fingerprint() != first


def test_other_pictures_than_before_are_found(root: Path, counted: list[str]) -> None:
    pictures("set", root, NAMES[2:])
    counted.clear()
    assert right(pictures("set", root, NAMES), root)
    assert counted == NAMES[:2]


def spoil(own_cache: Path, how: str) -> None:
    (array,), (index,) = own_cache.glob("*.npy"), own_cache.glob("*.json")
    content = array.read_bytes()
    match how:
        case "cut short":
            array.write_bytes(content[:-1000])
        case "zeros at its end":
            array.write_bytes(content[:-200_000] + bytes(200_000))
        case "another array":
            np.save(array, np.zeros(7))
        case "no pixels":
            array.unlink()
        case "no index":
            index.unlink()
        case "index of nonsense":
            index.write_text("{")
        case "index of another form":
            index.write_text(json.dumps(json.loads(index.read_text()) | {"form": 0}))


@pytest.mark.parametrize(
    "how",
    [
        "cut short",
        "zeros at its end",
        "another array",
        "no pixels",
        "no index",
        "index of nonsense",
        "index of another form",
    ],
)
def test_a_torn_cache_is_rebuilt(root: Path, own_cache: Path, how: str) -> None:
    pictures("set", root, NAMES)
    spoil(own_cache, how)
    assert right(pictures("set", root, NAMES), root)


def test_a_check_of_the_whole_finds_pixels_that_a_sample_would_not(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str]
) -> None:
    pictures("set", root, NAMES)
    (array,) = own_cache.glob("*.npy")
    pixels = np.load(array, mmap_mode="r+")
    pixels[3] = 0
    pixels.flush()
    monkeypatch.setattr(image_cache, "_SAMPLE", 2)
    counted.clear()
    assert not right(pictures("set", root, NAMES), root)
    assert right(pictures("set", root, NAMES, whole=True), root)
    assert counted == [NAMES[3]]


def test_a_broken_picture_is_named_and_skipped_only_when_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str]
) -> None:
    (root / "a/1.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"1 picture of 8 cannot be read: .*set/a/1\.png") as caught:
        pictures("set", root, NAMES)
    assert "--skip-broken" in caught.value.hint
    monkeypatch.setenv("ASKEW_SKIP_BROKEN", "1")
    assert len(pictures("set", root, NAMES).x) == 7
    monkeypatch.delenv("ASKEW_SKIP_BROKEN")
    with pytest.raises(UserError):
        pictures("set", root, NAMES)
    asked = pictures("set", root, NAMES, skip_broken=True)
    assert list(asked.broken) == ["a/1.png"]
    assert asked.kept.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert len(pictures("set", root, NAMES).x) == 7, "the cache remembers that it was asked for"
    assert right(asked, root)
    assert len(counted) == len(NAMES), "and nothing was decoded twice"


def test_a_broken_picture_that_was_mended_is_back(root: Path) -> None:
    (root / "a/1.png").write_bytes(b"no picture")
    pictures("set", root, NAMES, skip_broken=True)
    picture(root / "a/1.png")
    mended = pictures("set", root, NAMES)
    assert len(mended.x) == 8
    assert right(mended, root)


def test_leave_to_skip_ends_when_a_file_changes(root: Path) -> None:
    (root / "a/1.png").write_bytes(b"no picture")
    pictures("set", root, NAMES, skip_broken=True)
    (root / "a/2.png").write_bytes(b"no picture either")
    with pytest.raises(UserError, match="2 pictures of 8"):
        pictures("set", root, NAMES)


def test_what_stops_the_decoding_leaves_no_file_behind(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(path: Path) -> np.ndarray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "decode", stop)
        with pytest.raises(KeyboardInterrupt):
            pictures("set", root, NAMES)
    assert [p.suffix for p in own_cache.iterdir()] == [".lock"]
    assert right(pictures("set", root, NAMES), root)


def test_what_a_killed_process_left_is_removed(root: Path, own_cache: Path) -> None:
    pictures("set", root, NAMES)
    (array,) = own_cache.glob("*.npy")
    left = left_by_dead_process(array)
    assert right(pictures("set", root, NAMES), root)
    assert not left.exists()


def test_a_cache_folder_that_cannot_be_used_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Cannot write") as caught:
        pictures("set", root, NAMES)
    assert "ASKEW_CACHE" in caught.value.hint


def test_a_full_disk_is_said_and_nothing_is_left(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match="no room left on the disk"):
        pictures("set", root, NAMES)
    assert [p.suffix for p in own_cache.iterdir()] == [".lock"]


def test_two_at_a_time_decode_once(root: Path, counted: list[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: pictures("set", root, NAMES), range(2)))
    assert all(right(found, root) for found in both)
    assert len(counted) == len(NAMES)


def many(folder: Path, n: int = 200) -> list[str]:
    names = [f"a/{i}.png" for i in range(n)]
    for name in names:
        picture(folder / name, side=8)
    return names


def test_many_pictures_are_decoded_in_threads_and_land_in_their_rows(
    tmp_path: Path, own_cache: Path
) -> None:
    names = many(tmp_path / "many")
    (tmp_path / "many/a/7.png").write_bytes(b"no picture")
    found = pictures("many", tmp_path / "many", names, skip_broken=True)
    assert list(found.broken) == ["a/7.png"]
    assert all(
        (found.x[i] == decode(tmp_path / "many" / names[r])).all()
        for i, r in enumerate(found.kept.tolist())
    )


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path, own_cache: Path) -> None:
    names = many(tmp_path / "many")
    script = tmp_path / "script.py"
    script.write_text(
        "with open('runs.txt', 'a') as file:\n    file.write('x')\n"
        "from pathlib import Path\nfrom askew.data.image_cache import pictures\n"
        f"print(len(pictures('many', Path('many'), {names!r}).x))\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (f"{len(names)}\n", "")
    assert (tmp_path / "runs.txt").read_text() == "x"


def test_a_system_that_cannot_reserve_room_decodes_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")  # as on Windows and macOS
    assert right(pictures("set", root, NAMES), root)
