"""A trained model in use: what it answers, what may be handed to it, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import (
    CLASSES,
    SOURCE,
    TARGET,
    TRAINING,
    card,
    images,
    predictor,
    refused,
    rows,
    softmax,
    weights,
)

from askew.data.decode import decode
from askew.inference.export import Graph
from askew.inference.inputs import as_picture
from askew.inference.predictor import Predictor, load
from askew.methods import MCD

# --- answers ---


def test_a_bare_model_s_logits_are_its_head_s_linear_map() -> None:
    of = card("bare")
    state = weights(of)
    found = Predictor(of, state, "cpu").logits(rows())
    assert found == pytest.approx(
        rows() @ state["head.weight"].numpy().T + state["head.bias"].numpy(), abs=1e-5
    )


def test_mcd_s_model_answers_with_the_mean_of_its_two_heads() -> None:
    of = card("bare", rule=MCD())
    state = weights(of)
    state |= {"head2.weight": -state["head.weight"], "head2.bias": state["head.bias"]}
    found = Predictor(of, state, "cpu").logits(rows())
    assert found == pytest.approx(np.tile(state["head.bias"].numpy(), (5, 1)), abs=1e-5)


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ("equal", (1 / 3, 1 / 3, 1 / 3)),
        ("source", SOURCE),
        ("target", TARGET),
        ("training", TRAINING),
        ([2, 1, 1], (0.5, 0.25, 0.25)),
    ],
)
def test_class_shares_move_each_logit_by_the_log_of_the_ratio_of_shares(
    given: Any, shares: tuple[float, ...]
) -> None:
    model = predictor()
    wanted = softmax(model.logits(rows()) + np.log(np.array(shares) / np.array(TRAINING)))
    assert model.predict_proba(rows(), given) == pytest.approx(wanted, abs=1e-6)
    assert model.predict(rows(), given).tolist() == [CLASSES[k] for k in wanted.argmax(axis=1)]


def test_a_fine_tuned_network_predicts_channels_last_what_its_stored_weights_say(
    tmp_path: Path,
) -> None:
    of = card("resnet18", (3, 40, 40))
    state = weights(of)
    model = Predictor(of, state, "cpu")
    first: Any = model.classifier.net["features"]
    assert first.body.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    x = images(5, 3, 40, 40)
    with torch.inference_mode():
        plain = model.plain_classifier()(torch.from_numpy(x)).numpy()
    assert model.logits(x) == pytest.approx(plain, rel=1e-3, abs=1e-3 * float(np.abs(plain).max()))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    exported = Graph(model, "equal").classifier.net.state_dict()
    for found in (model.weights, again.weights, exported):
        assert found.keys() == state.keys()
        assert all(
            torch.equal(value, state[name]) and value.is_contiguous()
            for name, value in found.items()
        )


def test_a_class_that_training_never_saw_is_not_weighed_up() -> None:
    model = predictor(training_prior=(0.5, 0.5, 0.0))
    assert model.logit_shift("equal")[2] == 0
    assert model.logit_shift("equal")[:2] == pytest.approx(np.log(2 / 3))


@pytest.mark.parametrize("shares", ["equal", "target"])
def test_a_bias_is_added_to_the_logits_under_all_class_shares_and_is_saved(
    shares: Any, tmp_path: Path
) -> None:
    plain, bias = predictor(temperature=2.0), (1.0, 0.0, -1.0)
    model = predictor(temperature=2.0, bias=bias)
    wanted = softmax(np.log(plain.predict_proba(rows(), shares)) + np.array(bias) / 2)
    assert model.predict_proba(rows(), shares) == pytest.approx(wanted, abs=1e-6)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model", "cpu").predict_proba(rows(), shares) == pytest.approx(
        wanted, abs=1e-6
    )
    assert "bias" not in plain.card.as_json(), "a model without one is stored as before"


def test_the_size_of_batches_does_not_matter() -> None:
    model = predictor()
    assert model.logits(rows(7), batch=2) == pytest.approx(model.logits(rows(7)), abs=1e-5)
    assert model.logits(rows(0)).shape == (0, 3)
    assert model.predict(rows(0)).shape == (0,)


def test_predicting_changes_nothing_in_the_model() -> None:
    model = predictor()
    before = {n: t.clone() for n, t in model.classifier.state_dict().items()}
    assert (model.logits(rows()) == model.logits(rows())).all()
    assert all((before[n] == t).all() for n, t in model.classifier.state_dict().items())


# --- what may be handed over ---


def test_arrays_that_can_only_be_read_are_read() -> None:
    x = rows()
    x.flags.writeable = False
    assert (predictor().logits(x) == predictor().logits(rows())).all()


def test_images_may_have_their_channels_last_or_none_at_all() -> None:
    model = predictor("mini", (3, 32, 32))
    x = images(3, 3, 32, 32)
    assert (model.logits(x.transpose(0, 2, 3, 1)) == model.logits(x)).all()
    grey = images(3, 32, 32)
    assert (model.logits(grey) == model.logits(np.stack([grey] * 3, axis=1))).all()
    assert (model.logits(torch.from_numpy(x)) == model.logits(x)).all()


def test_pictures_are_resized_whether_files_or_in_memory(tmp_path: Path) -> None:
    model = predictor("mini", (3, 32, 32))
    picture = Image.fromarray(images(1, 50, 40, 3)[0])
    picture.save(tmp_path / "é <b>.png")
    small = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    wanted = model.logits(small[None])
    assert (model.logits(picture) == wanted).all()
    assert (model.logits(tmp_path / "é <b>.png") == wanted).all()
    assert model.logits([str(tmp_path / "é <b>.png"), picture]) == pytest.approx(
        np.tile(wanted, (2, 1)), abs=1e-5
    )


def test_a_picture_is_decoded_as_in_training(tmp_path: Path) -> None:
    Image.fromarray(images(1, 300, 200, 4)[0], "RGBA").save(tmp_path / "clear.png")
    like = card("resnet18", (3, 256, 256))
    assert (as_picture(tmp_path / "clear.png", like) == decode(tmp_path / "clear.png")).all()


def test_a_grey_network_sees_pictures_in_grey() -> None:
    picture = Image.fromarray(images(1, 28, 28)[0])
    assert (as_picture(picture, card("digits-28", (1, 28, 28)))[0] == np.asarray(picture)).all()


def test_lists_and_whole_numbers_are_rows_too() -> None:
    model = predictor()
    assert (
        model.logits([[1] * 8, [2] * 8]) == model.logits(np.array([[1.0] * 8, [2.0] * 8]))
    ).all()


# --- what is refused ---


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (rows(3, 9), "takes rows of 8 numbers, found float32 3 x 9"),
        (rows(3)[0], "takes rows of 8 numbers, found float32 8"),
        (np.where(np.arange(8) == 2, np.nan, rows(3)), "3 of the 3 rows hold NaN"),
        (np.full((2, 8), np.inf), "2 of the 2 rows hold NaN or infinity"),
        (np.array([["a"] * 8]), "takes rows of 8 numbers"),
        (np.array([[None] * 8]), "takes rows of 8 numbers"),
        (images(2, 3, 32, 32), "takes rows of 8 numbers, found uint8 2 x 3 x 32 x 32"),
        (Image.new("RGB", (4, 4)), "takes rows of 8 numbers, found a picture"),
        ([[1.0, 2.0], [1.0]], "rows of different lengths"),
    ],
)
def test_rows_that_do_not_fit_are_refused(x: Any, message: str) -> None:
    assert message in refused(lambda: predictor().logits(x))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (images(2, 3, 64, 64), "takes uint8 3 x 32 x 32 images, found uint8 2 x 3 x 64 x 64"),
        (images(2, 3, 32, 32) / 255, "found float64 2 x 3 x 32 x 32"),
        (rows(), "found float32 5 x 8"),
        ("no/such.png", "no/such.png cannot be read"),
        (__file__, "test_predictor.py cannot be read"),
    ],
)
def test_images_that_do_not_fit_are_refused(x: Any, message: str) -> None:
    assert message in refused(lambda: predictor("mini", (3, 32, 32)).logits(x))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ("sauce", "no label distribution 'sauce'"),
        ([0.5, 0.5], "each of the 3 classes, found 2 numbers"),
        ([1, 1, -1], "found [1.0, 1.0, -1.0]"),
        ([0, 0, 0], "found [0.0, 0.0, 0.0]"),
        ([1, 1, np.nan], "each of the 3 classes"),
        ([1, 1, "x"], "each of the 3 classes"),
        (None, "each of the 3 classes"),
    ],
)
def test_class_shares_that_are_none_are_refused(shares: Any, message: str) -> None:
    assert message in refused(lambda: predictor().predict_proba(rows(), shares))


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_distribution_that_the_model_does_not_know_is_refused(name: str) -> None:
    model = predictor(**{f"{name}_prior": None})
    assert f"does not know the {name}'s class shares" in refused(
        lambda: model.predict(rows(), name)
    )
