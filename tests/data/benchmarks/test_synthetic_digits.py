from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from askew.core.errors import UserError
from askew.data.benchmarks import synthetic_digits as module
from askew.data.benchmarks.synthetic_digits import faces, render, syn

LUMA = np.array([0.299, 0.587, 0.114])


def drawn(n: int, seed: int = 0, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(n) % 10
    return render(labels, start + np.arange(n) // 10, seed, workers=1), labels


def test_pictures_are_32_by_32_rgb_bytes() -> None:
    x, _ = drawn(7)
    assert x.shape == (7, 32, 32, 3)
    assert x.dtype == np.uint8


def test_no_labels_give_no_pictures() -> None:
    assert drawn(0)[0].shape == (0, 32, 32, 3)


def test_a_picture_depends_on_seed_label_and_occurrence_alone() -> None:
    n = module._BATCH + 60  # so that batches end elsewhere when the order changes
    x, labels = drawn(n)
    occurrence = np.arange(n) // 10
    order = np.random.default_rng(0).permutation(n)
    np.testing.assert_array_equal(render(labels[order], occurrence[order], 0), x[order])
    for i in (0, 13, n - 1):
        np.testing.assert_array_equal(render(labels[i : i + 1], occurrence[i : i + 1], 0)[0], x[i])


def test_workers_do_not_change_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, labels = drawn(120)
    monkeypatch.setattr(module, "_POOL_FROM", 1)
    monkeypatch.setattr(module, "_BATCH", 50)
    np.testing.assert_array_equal(render(labels, np.arange(120) // 10, 0, workers=2), alone)


def test_pictures_are_drawn_here_where_no_worker_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise module.BrokenProcessPool

    alone, labels = drawn(30)
    monkeypatch.setattr(module, "_POOL_FROM", 1)
    monkeypatch.setattr(module, "_BATCH", 10)
    monkeypatch.setattr(module, "ProcessPoolExecutor", broken)
    np.testing.assert_array_equal(render(labels, np.arange(30) // 10, 0, workers=2), alone)


def test_no_two_pictures_are_equal() -> None:
    x = np.concatenate([drawn(200)[0], drawn(200, seed=1)[0], drawn(200, seed=-1)[0], drawn(200, start=20)[0]])
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)


def test_faces_come_sorted_by_name_without_twins() -> None:
    stems = [path.stem for path in faces()]
    assert stems == sorted(set(stems))
    assert len(stems) > 40


def test_every_face_has_ten_different_digits() -> None:
    for path in faces():
        inks = [module._glyph(path, digit).ink for digit in range(10)]
        assert all(np.asarray(ink).max() > 200 for ink in inks), path.name
        assert len({(ink.size, ink.tobytes()) for ink in inks}) == 10, path.name


def test_a_missing_font_package_only_shortens_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = faces()
    monkeypatch.setattr(module, "_PACKAGES", ("no_such_package", "matplotlib"))
    assert 0 < len(faces()) < len(whole)


def test_no_face_at_all_is_told_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="No font"):
        faces()


def test_digits_stand_out_from_their_ground() -> None:
    luminance = drawn(1000)[0] @ LUMA
    spread = luminance.std(axis=(1, 2))
    assert np.quantile(spread, 0.01) > 20
    assert spread.min() > 8


def test_grounds_are_dark_and_pale_in_turn() -> None:
    edge = np.median((drawn(1000)[0] @ LUMA)[:, [0, -1]], axis=(1, 2))
    assert 0.35 < (edge < 64).mean() < 0.6
    assert 0.3 < (edge > 160).mean() < 0.55


def strokes(x: np.ndarray) -> np.ndarray:
    """How far each pixel is from the ground's colour, scaled to length 1 per picture."""
    ground = np.median(x[:, [0, -1]].reshape(len(x), -1, 3), axis=1)
    far = np.abs(x - ground[:, None, None]).sum(axis=-1).reshape(len(x), -1)
    unit: np.ndarray = far / np.linalg.norm(far, axis=1, keepdims=True)
    return unit


def test_the_labelled_digit_is_the_one_in_the_middle() -> None:
    x, y = drawn(2000)
    seen = np.c_[strokes(x), np.full(len(x), 0.1)]
    train, test = seen[:1500], seen[1500:]
    scores = train.T @ (2.0 * np.eye(10)[y[:1500]] - 1)
    weights = np.linalg.solve(train.T @ train + 2 * np.eye(train.shape[1]), scores)
    assert ((test @ weights).argmax(axis=1) == y[1500:]).mean() > 0.4


def test_syn_gives_the_counted_pictures_by_class(tmp_path: Path) -> None:
    x, y = syn([3, 0, 2], seed=4, cache=tmp_path)
    assert y.dtype == np.uint8
    assert y.tolist() == [0, 0, 0, 2, 2]
    np.testing.assert_array_equal(x, render(y, np.array([0, 1, 2, 0, 1]), 4))


def test_more_pictures_begin_with_the_fewer(tmp_path: Path) -> None:
    few, _ = syn([2, 3], cache=tmp_path)
    more, _ = syn([5, 4], cache=tmp_path)
    np.testing.assert_array_equal(more[[0, 1, 5, 6, 7]], few)


def test_the_cache_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "deep"))
    x, _ = syn([2, 2])
    assert [path.suffix for path in (tmp_path / "deep").iterdir()] == [".npz"]
    monkeypatch.delattr(module, "render")
    np.testing.assert_array_equal(syn([2, 2])[0], x)


@pytest.mark.parametrize("content", [b"", b"not a cache", b"PK\x03\x04 cut short", "shape", "dtype", "name", "npy"])
def test_a_broken_cache_is_drawn_again(tmp_path: Path, content: bytes | str) -> None:
    x, _ = syn([2, 1], cache=tmp_path)
    (file,) = tmp_path.iterdir()
    match content:
        case bytes():
            file.write_bytes(content)
        case "shape":
            np.savez(file, x=x[:2])
        case "dtype":
            np.savez(file, x=x.astype(np.int16))
        case "name":
            np.savez(file, y=x)
        case "npy":
            with file.open("wb") as out:
                np.save(out, x)
    np.testing.assert_array_equal(syn([2, 1], cache=tmp_path)[0], x)
    with np.load(file) as mended:
        np.testing.assert_array_equal(mended["x"], x)


def test_a_cache_cut_or_flipped_inside_is_drawn_again(tmp_path: Path) -> None:
    x, _ = syn([2, 1], cache=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    for broken in (whole[:-30], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        file.write_bytes(broken)
        np.testing.assert_array_equal(syn([2, 1], cache=tmp_path)[0], x)


def test_an_unwritable_cache_is_survived(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    assert len(syn([1, 1], cache=tmp_path / "file")[0]) == 2
    assert len(syn([1, 1], cache=tmp_path / "file" / "deeper")[0]) == 2


@pytest.mark.parametrize("counts", [[1] * 11, [1, -1]])
def test_counts_that_no_digits_can_have_are_refused(counts: list[int]) -> None:
    with pytest.raises(UserError, match="counts"):
        syn(counts)
