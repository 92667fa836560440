from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import draw_glyphs
import numpy as np
import pytest
from PIL import Image, ImageFilter

from askew.core.errors import UserError
from askew.data.benchmarks import synthetic_digits as module
from askew.data.benchmarks.digit_glyphs import INDEX, load_glyphs
from askew.data.benchmarks.synthetic_digits import render, syn

LUMA = np.array([0.299, 0.587, 0.114])


def drawn(n: int, seed: int = 0, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(n) % 10
    return render(labels, start + np.arange(n) // 10, seed), labels


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


def test_threads_do_not_change_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, labels = drawn(120)
    monkeypatch.setattr(module, "_BATCH", 10)
    np.testing.assert_array_equal(render(labels, np.arange(120) // 10, 0), alone)


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    """Spawned processes would run it again, and with it whatever it does."""
    script = tmp_path / "script.py"
    script.write_text(
        "with open('runs.txt', 'a') as file:\n    file.write('x')\n"
        "from askew.data.benchmarks.synthetic_digits import syn\n"
        f"print(len(syn([150] * 10, cache=__import__('pathlib').Path({str(tmp_path)!r}))[0]))\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1500\n", "")
    assert (tmp_path / "runs.txt").read_text() == "x"


@pytest.mark.parametrize("sigma", [(0.2, 0.9), (0.55, 2.2), (1.0, 1.0), (3.3, 0.36)])
def test_the_blur_is_pillow_s_gaussian_one(sigma: tuple[float, float]) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8))
    expected = np.asarray(noise.filter(ImageFilter.GaussianBlur(sigma)), np.int64)
    found = np.asarray(
        noise.filter(module._Blur(*module._box_radius(np.array(sigma)).tolist())), np.int64
    )
    assert np.abs(found - expected).max() <= 1, (
        "equal on x86; elsewhere Pillow may round differently, and we do not"
    )


def test_no_two_pictures_are_equal() -> None:
    x = np.concatenate(
        [drawn(200)[0], drawn(200, seed=1)[0], drawn(200, seed=-1)[0], drawn(200, start=20)[0]]
    )
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)


def test_every_face_has_ten_different_digits() -> None:
    index = json.loads(INDEX.read_text())
    names = [face["face"] for face in index["faces"]]
    assert names == sorted(set(names))
    assert len(names) == len(load_glyphs()) == 84
    for name, glyphs in zip(names, load_glyphs(), strict=True):
        assert all(np.asarray(glyph.ink).max() > 200 for glyph in glyphs), name
        assert len({(glyph.ink.size, glyph.ink.tobytes()) for glyph in glyphs}) == 10, name


@pytest.mark.skipif(bool(draw_glyphs.missing()), reason=f"needs {', '.join(draw_glyphs.missing())}")
def test_the_stored_glyphs_are_those_of_the_fonts() -> None:
    made = json.loads(INDEX.read_text())
    known = {"pillow": made["pillow"]} | {
        name: release for name, (release, _) in made["packages"].items()
    }
    other = {name: version(name) for name, release in known.items() if version(name) != release}
    if other:
        pytest.skip(f"drawn with other versions than {other}")
    for stored, (_, path) in zip(load_glyphs(), draw_glyphs.faces().values(), strict=True):
        for glyph, drawn_now in zip(stored, draw_glyphs.drawn(path), strict=True):
            assert glyph[1:] == drawn_now[1:], path.name
            assert glyph.ink.tobytes() == drawn_now.ink.tobytes(), path.name


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


@pytest.mark.parametrize(
    "content", [b"", b"not a cache", b"PK\x03\x04 cut short", "shape", "dtype", "name", "npy"]
)
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
