"""Embeddings of pictures below a saved model's head, each computed once: kept in the cache by
content.

A model whose backbone was frozen names the store that `askew adapt` filled. New embeddings go to a
store that is named by a hash of the model's own backbone, so no model can spoil another's.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.data.decode import Row, decode, decoding
from askew.data.paths import cache_folder
from askew.data.row_cache import RowCache, content_hashes
from askew.inference.decode_ahead import load_ahead
from askew.inference.predictor import Classifier, Predictor
from askew.nets.forward import fast_bfloat16, forward_in_chunks
from askew.nets.network import Net

STORE = "embeddings"
"""The entry of a model's card that names the store of `askew adapt`."""
MOST = 20_000
"""Pictures up to which embeddings are kept: all of them stay in memory."""
TOLERANCE = 0.02
"""Mean difference of two embeddings of one picture, relative to their size: bfloat16 makes some."""
CHUNK = 256
_BATCH = 32


class CachedEmbeddings:
    """The backbone of a model, with what it computed before, and the layers and head on it."""

    def __init__(self, predictor: Predictor, store: str) -> None:
        features = predictor.classifier.net["features"]
        assert isinstance(features, nn.Sequential), "a backbone and layers on it"
        self.predictor, self.backbone = predictor, features[0]
        parts = dict(predictor.classifier.net.items()) | {"features": features[1]}
        net = Net(parts, predictor.classifier.net.width, split_norm=False)
        self.head = Classifier(predictor.classifier.rule, net).eval()
        folder = cache_folder() / "embeddings"
        self.of_adapt: RowCache | None = RowCache(folder / store)
        self.own = RowCache(folder / f"model-{_backbone_hash(predictor)}")

    @classmethod
    def of(cls, predictor: Predictor) -> CachedEmbeddings | None:
        """Find those of a model; None if its backbone was trained, or computes otherwise here."""
        about = predictor.card.made.get(STORE)
        if not isinstance(about, Mapping) or not predictor.card.net.on_backbone:
            return None
        store, bfloat16 = about.get("store"), about.get("bfloat16")
        if not isinstance(store, str) or not store.replace("-", "").isalnum():
            return None
        if bfloat16 != fast_bfloat16(predictor.device):
            return None
        return cls(predictor, store)

    def logits(self, paths: Sequence[Path]) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
        """Give why pictures cannot be read, and logits of the others, some pictures at a time."""
        for start in range(0, len(paths), CHUNK):
            some = paths[start : start + CHUNK]
            hashes = [h for found in content_hashes(some) for h in found]
            known = {h: path for h, path in zip(hashes, some, strict=True) if isinstance(h, int)}
            with self.predictor.prepared():
                broken = self._learn(known)
            why = [h if isinstance(h, str) else broken.get(h, "") for h in hashes]
            sound = [h for h, problem in zip(hashes, why, strict=True) if not problem]
            rows = np.stack([self._row(int(h)) for h in sound]) if sound else np.zeros((0, 1))
            logits = np.zeros((0, len(self.predictor.classes)), np.float32)
            if sound:
                logits = forward_in_chunks(self.head, rows, self.predictor.device, 0)
            yield why, logits

    def _row(self, image: int) -> NDArray[np.float32]:
        key = (image, 0)
        stores = [store for store in (self.own, self.of_adapt) if store is not None]
        return next(store.rows[key] for store in stores if key in store.rows)

    def _learn(self, images: Mapping[int, Path]) -> dict[int, str]:
        """Embed pictures that are not known; why others cannot be read."""
        lacking = {(h, 0) for h in images}
        if self.of_adapt is not None:
            elsewhere = self.of_adapt.find(lacking)
            self._require_same(images)
            lacking = lacking if self.of_adapt is None else elsewhere
        lacking = self.own.find(lacking)
        todo = [(h, partial(self._decoded, path, h)) for h, path in images.items()]
        todo = [(h, get) for h, get in todo if (h, 0) in lacking]
        broken: dict[int, str] = {}
        with decoding(), closing(load_ahead(todo, 4 * _BATCH)) as loaded:
            while block := list(islice(loaded, _BATCH)):
                broken |= {h: x for h, x in block if isinstance(x, str)}
                sound = {h: x for h, x in block if not isinstance(x, str)}
                if sound:
                    rows = self._embed(np.stack(list(sound.values())))
                    self.own.add([(h, 0) for h in sound], rows)
        self.own.flush()
        return broken

    def _require_same(self, images: Mapping[int, Path]) -> None:
        """Leave the store of `askew adapt` alone if the model's backbone did not fill it."""
        assert self.of_adapt is not None
        first = next(((h, p) for h, p in images.items() if (h, 0) in self.of_adapt.rows), None)
        if first is None:
            return
        with decoding():
            again = self._embed(self._decoded(first[1], first[0])[None])[0]
        stored = self.of_adapt.rows[first[0], 0]
        scale = float(np.abs(stored).mean()) + 1e-6
        if again.shape != stored.shape or np.abs(again - stored).mean() > TOLERANCE * scale:
            self.of_adapt = None

    def _decoded(self, path: Path, expected: int) -> Row:
        """Decode the bytes that were hashed."""
        content = path.read_bytes()
        found = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
        if found != expected:
            raise UserError(f"{path} changed while it was read.", "start again.")
        return decode(io.BytesIO(content), self.predictor.card.shape)

    def _embed(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, k, h, w) → (n, d)"""
        with torch.inference_mode():
            x: Tensor = torch.from_numpy(pixels).to(self.predictor.device)
            rows: NDArray[np.float32] = self.backbone(x).flatten(1).float().cpu().numpy()
        return rows


def _backbone_hash(predictor: Predictor) -> str:
    """A hash of all that an embedding hangs on: weights, description, shape, arithmetic."""
    card = predictor.card
    below = None if card.net.embedding is None else card.net.embedding.describe()
    about = [below, list(card.shape), fast_bfloat16(predictor.device)]
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8)
    for name, value in sorted(predictor.weights.items()):
        if name.startswith("features.0.") and "source_" not in name:
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
