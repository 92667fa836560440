"""Arrays, tables and lists that are damaged or made to harm: each is read, or refused in one
sentence with a hint."""

from __future__ import annotations

import io
import random
import re
import struct
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from own_files import cache, flat, tree  # noqa: F401 -- cache is a fixture
from PIL import Image

from askew.core.errors import UserError
from askew.data.array_files import label_names, read_array
from askew.data.custom import load_custom_data
from askew.data.decode import Room, decode
from askew.data.image_lists import read_listing


def read_or_refused(read: Callable[[], object]) -> str:
    """The sentence of a refusal; empty if it could be read. No other exception may come out."""
    found: UserError | None = None
    try:
        read()
    except UserError as error:
        found = error
    assert found is None or re.fullmatch(r".+\.", found.sentence), found
    assert found is None or found.hint
    return "" if found is None else found.sentence


def read_all(file: Path) -> None:
    found = read_array(file)
    if found.y is not None:
        label_names(found.y, len(found.x), file)


# --- arrays ---


def npz(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content, member = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(member, np.arange(40, dtype=np.float32).reshape(8, 5))
    with zipfile.ZipFile(content, "w", method) as file:
        file.writestr("x.npy", member.getvalue())
    return content.getvalue()


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def encrypted() -> bytes:
    content = bytearray(npz())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1
    return bytes(content)


ARRAYS = {
    "encrypted.npz": encrypted(),
    "lzma.npz": npz(zipfile.ZIP_LZMA)[:-60] + npz(zipfile.ZIP_LZMA)[-60:],
    "method.npz": npz().replace(
        struct.pack("<HH", 20, 0) + b"\x08\x00", struct.pack("<HH", 20, 0) + b"\x63\x00"
    ),
    "nested.npy": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 3000 + ")" * 3000 + "}"
    ),
    "huge.npy": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4)}"),
    "larger.npy": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 400 + ", 4)}"),
    "memory.npy": npy(
        "{'descr': '|V2000000000', 'fortran_order': False, 'shape': (2000000000, 4)}"
    ),
    "negative.npy": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -4)}"),
    "empty.npy": b"",
    "empty.npz": b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_file_that_cannot_be_read_is_refused_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(ARRAYS[name])
    sentence = read_or_refused(lambda: read_all(tmp_path / name))
    assert name in sentence or name == "lzma.npz"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
)
def test_an_archive_with_one_damaged_byte_is_read_or_refused_in_a_sentence(
    tmp_path: Path, method: int
) -> None:
    content, file, refused = npz(method), tmp_path / "a.npz", 0
    for place in range(0, len(content), 2):
        file.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        )
        refused += bool(read_or_refused(lambda: read_all(file)))
    assert refused > len(content) / 6


def test_a_table_with_ragged_or_odd_columns_is_refused_in_a_sentence(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
    from pyarrow import parquet

    columns = {
        "ragged labels": {"x": [[1.0, 2.0]] * 2, "label": [["a"], ["b", "c"]]},
        "ragged rows": {"x": [[1.0], [1.0, 2.0]], "label": ["a", "b"]},
        "texts": {"x": ["a", "b"], "label": ["a", "b"]},
        "missing numbers": {"f": [1.0, None], "label": ["a", "b"]},
        "missing rows": {"x": [[1.0], None], "label": ["a", "b"]},
        "nothing": {"x": [[], []], "label": ["a", "b"]},
        "nested": {"x": [[[1.0]], [[2.0], [3.0]]], "label": ["a", "b"]},
        "maps": {"label": [{"a": 1}, {"a": 2}], "f": [1.0, 2.0]},
    }
    for what, table in columns.items():
        parquet.write_table(arrow.table(table), tmp_path / "t.parquet")
        assert read_or_refused(lambda: read_all(tmp_path / "t.parquet")), what


def test_a_table_with_one_damaged_byte_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
    from pyarrow import parquet

    file, rng = tmp_path / "t.parquet", random.Random(0)
    parquet.write_table(arrow.table({"f": np.arange(9.0), "label": list("abcabcabc")}), file)
    content = file.read_bytes()
    for _ in range(200):
        place = rng.randrange(len(content))
        file.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        )
        read_or_refused(lambda: read_all(file))


# --- lists ---

LINES = (
    "a" * 300,
    "a" * 200_000,
    "a" * 5000 + ",b",
    "\0.png x",
    "a\0b.png,cat",
    "/" * 300,
    "../" * 90 + "x",
    '"',
    "~nobody/x.png b",
)


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv"])
@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_list_with_a_line_that_names_no_file_is_refused_in_a_sentence(
    tmp_path: Path, suffix: str, line: str
) -> None:
    file = tmp_path / f"s{suffix}"
    file.write_text(f"{line}\n")
    read_or_refused(lambda: read_listing(file))
    file.write_text(
        f"{line} cat\n{line}2 dog\n" if suffix == ".txt" else f"{line},cat\n{line}2,dog\n"
    )
    assert read_or_refused(lambda: load_custom_data(file, flat(tmp_path / "t")))


# --- pictures ---

PEAK = """
import sys, threading
from pathlib import Path
from askew.data.decode import decode
def peak(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
before = peak()
threads = [threading.Thread(target=decode, args=(sys.argv[1],)) for _ in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
print(peak() - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells the peak of a process's memory"
)
@pytest.mark.parametrize("mode", ["I;16", "RGBA"])
def test_a_large_picture_takes_a_few_times_its_pixels_however_small_its_file_is(
    tmp_path: Path, mode: str
) -> None:
    side, file = 3000, tmp_path / "large.png"
    Image.new(mode, (side, side)).save(file)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, file], capture_output=True, text=True, check=True
    )
    most = {"I;16": 5, "RGBA": 11}[mode]
    assert int(done.stdout) < 2 * most * side * side


def test_threads_wait_until_there_is_room_for_their_pixels() -> None:
    room, inside, most, lock = Room(100), [0], [0], threading.Lock()

    def enter(n: int) -> None:
        with room.for_pixels(n):
            with lock:
                inside[0] += n
                most[0] = max(most[0], inside[0])
            threading.Event().wait(0.002)
            with lock:
                inside[0] -= n

    threads = [threading.Thread(target=enter, args=(n,)) for n in [40] * 12 + [250, 10]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 250, "the largest went alone, and no others were more than 100 together"
    assert room.taken.value == 0


def test_grey_pictures_are_the_same_whether_they_are_resized_in_grey_or_in_colour(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    grey = Image.fromarray(rng.integers(0, 256, (301, 511), dtype=np.uint8))
    grey.save(tmp_path / "grey.png")
    expected = np.asarray(
        grey.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    ).transpose(2, 0, 1)
    assert (decode(tmp_path / "grey.png") == expected).all()


def test_a_picture_that_shines_through_is_the_same_in_bands_as_in_one_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clear = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (97, 61, 4), dtype=np.uint8), "RGBA"
    )
    white = Image.new("RGBA", clear.size, "white")
    whole = (
        Image.alpha_composite(white, clear)
        .convert("RGB")
        .resize((256, 256), Image.Resampling.BILINEAR)
    )
    monkeypatch.setattr("askew.data.decode._BAND", 200)
    assert (decode(clear) == np.asarray(whole).transpose(2, 0, 1)).all()
