"""What others would do with the same embeddings: scikit-learn, six lines of numpy, and skada where
it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.data.task import Task

PEERS = (
    "k-means",
    "LogisticRegression",
    "skada CORAL",
    "skada SubspaceAlignment",
    "skada EntropicOT",
)


def peers(task: Task) -> dict[str, NDArray[np.int64]]:
    """What others would do with the same embeddings, scaled to unit length: classes of the target's
    rows."""
    from sklearn.linear_model import LogisticRegression

    data, c = task.training_data, len(task.training_data.classes)
    (xs, ys), xt = (_unit(data.source.x), data.source.y), _unit(data.target.x)
    means = _unit(np.stack([xs[ys == k].mean(axis=0) for k in range(c)]))
    for _ in range(20):
        near = (xt @ means.T).argmax(axis=1)
        means = _unit(
            np.stack(
                [xt[near == k].mean(axis=0) if (near == k).any() else means[k] for k in range(c)]
            )
        )
    regression = LogisticRegression(C=10.0, max_iter=200).fit(xs, ys)
    own = {"k-means": (xt @ means.T).argmax(axis=1), "LogisticRegression": regression.predict(xt)}
    return own | (_skada(xs, np.asarray(ys), xt) if find_spec("skada") else {})


def _skada(
    xs: NDArray[np.float32], ys: NDArray[np.int64], xt: NDArray[np.float32]
) -> dict[str, NDArray[np.int64]]:
    """Three shallow methods of skada, on rows of unit length, each before the same logistic
    regression."""
    import skada
    from sklearn.linear_model import LogisticRegression

    def base() -> LogisticRegression:
        return LogisticRegression(C=10.0, max_iter=200).set_fit_request(sample_weight=False)

    components = min(50, xs.shape[1], len(xs) // 2, len(xt) // 2)
    models = {
        "skada CORAL": skada.CORAL(base()),
        "skada SubspaceAlignment": skada.SubspaceAlignment(
            base(), n_components=components, random_state=0
        ),
        "skada EntropicOT": skada.EntropicOTMapping(base(), reg_e=0.1),
    }
    x, y = np.concatenate([xs, xt]).astype(np.float64), np.concatenate([ys, np.full(len(xt), -1)])
    domain = np.concatenate([np.ones(len(xs), dtype=np.int64), np.full(len(xt), -2)])
    found = {}
    for name, model in models.items():
        model.fit(x, y, sample_domain=domain)
        found[name] = model.predict(x[len(xs) :], sample_domain=domain[len(xs) :])
    return found


def _unit(x: Any) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = np.asarray(x)
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
