"""Pictures of every kind come out upright, in RGB and 256 x 256; broken ones raise."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew.data.decode import SIDE, SUFFIXES, decode, decoding


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with decoding():
        yield


def colour(x: np.ndarray) -> list[int]:
    """The colour in the middle."""
    return x[:, SIDE // 2, SIDE // 2].tolist()


def saved(tmp_path: Path, image: Image.Image, name: str = "a.png", **how: object) -> Path:
    image.save(tmp_path / name, **how)
    return tmp_path / name


def test_a_picture_of_any_shape_fills_the_square(tmp_path: Path) -> None:
    x = decode(saved(tmp_path, Image.new("RGB", (300, 40), (10, 200, 30))))
    assert (x.shape, x.dtype) == ((3, SIDE, SIDE), np.uint8)
    assert x.flags.c_contiguous
    assert (x == np.array([10, 200, 30], np.uint8)[:, None, None]).all()


def test_the_pixels_are_those_of_a_plain_bilinear_resize(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 70, 3), dtype=np.uint8))
    expected = np.asarray(noise.resize((SIDE, SIDE), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert (decode(saved(tmp_path, noise)) == expected).all()


def test_a_camera_s_orientation_is_respected(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), "red")
    image.paste((0, 0, 255), (20, 0, 40, 20))  # red | blue
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right: red above, blue below
    x = decode(saved(tmp_path, image, "a.png", exif=exif))
    assert x[:, 20, 128].tolist() == [255, 0, 0]
    assert x[:, -20, 128].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0"]
)
def test_a_picture_with_nonsense_for_metadata_is_a_picture(tmp_path: Path, exif: bytes) -> None:
    assert colour(decode(saved(tmp_path, Image.new("L", (8, 8), 90), "a.jpg", exif=exif))) == [
        90,
        90,
        90,
    ]


@pytest.mark.parametrize(
    ("mode", "fill", "name", "expected"),
    [
        ("L", 77, "a.png", [77, 77, 77]),
        ("1", 1, "a.png", [255, 255, 255]),
        ("RGBA", (10, 20, 30, 255), "a.png", [10, 20, 30]),
        (
            "RGBA",
            (0, 0, 0, 0),
            "a.png",
            [255, 255, 255],
        ),  # what is transparent is white, whatever lies below
        ("LA", (40, 255), "a.png", [40, 40, 40]),
        ("LA", (0, 0), "a.png", [255, 255, 255]),
        ("CMYK", (0, 0, 0, 255), "a.tif", [0, 0, 0]),
        ("CMYK", (0, 255, 255, 0), "a.tif", [255, 0, 0]),
        ("I;16", 0x8080, "a.png", [128, 128, 128]),
        ("I;16", 65535, "a.tif", [255, 255, 255]),
        ("F", 0.5, "a.tif", [128, 128, 128]),
    ],
)
def test_every_mode_becomes_rgb(
    tmp_path: Path, mode: str, fill: object, name: str, expected: list[int]
) -> None:
    # type: ignore[arg-type]
    assert colour(decode(saved(tmp_path, Image.new(mode, (8, 8), fill), name))) == expected


def test_a_palette_keeps_its_colours_and_its_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    assert colour(decode(saved(tmp_path, image, "plain.gif"))) == [200, 100, 50]
    assert colour(decode(saved(tmp_path, image, "clear.png", transparency=1))) == [255, 255, 255]


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_broken_picture_raises(tmp_path: Path, damage: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = saved(tmp_path, Image.fromarray(noise), "a.jpg")
    content = path.read_bytes()
    path.write_bytes(
        {"cut": content[: len(content) // 2], "empty": b"", "text": b"<html>not found</html>"}[
            damage
        ]
    )
    with pytest.raises(OSError, match=r"truncated|cannot identify"):
        decode(path)


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_suffix_that_is_looked_for_can_be_decoded(tmp_path: Path, suffix: str) -> None:
    if suffix not in Image.registered_extensions():
        pytest.skip("this Pillow reads it with a plug-in alone")
    assert decode(saved(tmp_path, Image.new("L", (8, 8), 90), f"a{suffix}")).shape == (
        3,
        SIDE,
        SIDE,
    )


def test_postscript_is_no_picture_whatever_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("subprocess.Popen", started.append)  # Pillow would start Ghostscript
    path = saved(tmp_path, Image.new("L", (8, 8), 90), "a.eps").rename(tmp_path / "a.jpg")
    with Image.open(path) as file:
        assert file.format == "EPS", "Pillow by itself would open it"
    with pytest.raises(OSError, match="cannot identify"):
        decode(path)
    assert not started


def test_a_picture_of_too_many_pixels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, Image.new("L", (40, 30)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match="1,200 pixels"):
        decode(path)


def test_sixteen_bits_take_no_more_than_a_few_bytes_per_pixel(tmp_path: Path) -> None:
    side = 2000
    grey = np.linspace(0, 65535, side * side).astype(np.uint16).reshape(side, side)
    path = saved(tmp_path, Image.fromarray(grey))
    tracemalloc.start()
    decode(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7 * side * side, (
        "two as stored, two as an array, one as bytes; eight more in double precision"
    )


def test_a_shape_of_one_channel_gives_grey(tmp_path: Path) -> None:
    assert decode(saved(tmp_path, Image.new("RGB", (9, 9), (90, 90, 90))), (1, 4, 5)).tolist() == [
        [[90] * 5] * 4
    ]
