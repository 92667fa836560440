"""A trained model on disk: the same when loaded, refused when damaged, and a stranger's file runs
nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import card, images, predictor, refused, rows, weights

import askew
from askew.data.benchmarks import load_task
from askew.inference.model_card import CARD_HASH, TargetPrior, card_hash
from askew.inference.predictor import Predictor, load
from askew.methods import MCD
from askew.methods.base import Method
from askew.nets.spec import parse_network
from askew.runs.root import finished_runs
from askew.runs.store import RunFolder

# --- saved and loaded ---


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = predictor()
    model.save(tmp_path / "new" / "model")
    for path in (
        tmp_path / "new" / "model",
        tmp_path / "new",
        str(tmp_path / "new" / "model" / "model.json"),
    ):
        again = askew.load(path, "cpu")
        assert again.card == model.card
        assert (again.logits(rows()) == model.logits(rows())).all()


def test_a_model_holds_only_what_prediction_needs(tmp_path: Path) -> None:
    of = card()
    Predictor(of, weights(of) | {"critic.weight": torch.zeros(3)}, "cpu").save(tmp_path / "m")
    (file,) = (tmp_path / "m").glob("*.safetensors")
    assert load_file(file).keys() == weights(of).keys()


def test_mcd_s_second_head_is_saved_with_the_rule(tmp_path: Path) -> None:
    of = card("bare", rule=MCD(depth=0))
    state = weights(of) | {"head2.weight": torch.ones(3, 8), "head2.bias": torch.zeros(3)}
    model = Predictor(of, state, "cpu")
    model.save(tmp_path / "m")
    assert (load(tmp_path / "m", "cpu").logits(rows()) == model.logits(rows())).all()


def test_saving_again_replaces_the_model_and_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    of = card()
    Predictor(of, weights(of, 0), "cpu").save(tmp_path / "m")
    second = Predictor(of, weights(of, 1), "cpu")
    second.save(tmp_path / "m")
    assert (load(tmp_path / "m", "cpu").logits(rows()) == second.logits(rows())).all()
    assert len(list((tmp_path / "m").iterdir())) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_save_that_is_interrupted_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    of = card()
    first = Predictor(of, weights(of, 0), "cpu")
    first.save(tmp_path / "m")
    write, writes = Path.write_bytes, 0

    def stop(path: Path, content: bytes) -> int:
        nonlocal writes
        writes += 1
        if writes == number:
            write(path, content[: len(content) // 2])
            raise KeyboardInterrupt
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", stop)
    for folder in ("m", "new"):
        writes = 0
        with pytest.raises(KeyboardInterrupt):
            Predictor(of, weights(of, 1), "cpu").save(tmp_path / folder)
    assert (load(tmp_path / "m", "cpu").logits(rows()) == first.logits(rows())).all()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_starting_weights_are_not_part_of_a_model() -> None:
    of = dataclasses.replace(
        card(), net=parse_network("resnet18", weights="/home/me/w.safetensors", weights_hash="ab")
    )
    assert "weights" not in json.dumps(of.as_json())
    assert of.net.weights == "none"


def test_a_model_holds_its_network_as_an_object() -> None:
    written = json.loads(json.dumps(card("resnet18+mlp", (3, 32, 32), corners=True).as_json()))
    assert (written["form"], "net" in written) == (3, False)
    assert written["network"] == {
        "layers": "mlp",
        "embedding": {
            "backbone": "resnet18",
            "crop": 32,
            "pooling": "average",
            "corners": True,
            "statistics": "original",
        },
        "head": "linear",
        "temperature": 0.05,
        "norm": "joint",
        "last_dropout": True,
    }


def test_a_run_s_model_answers_as_the_run_did(mini_runs: Path) -> None:
    folder = finished_runs(mini_runs)[0]
    model = Predictor.of_run(folder, "cpu")
    test = load_task("mini/syn-uci").training_data.test_images.x
    stored = load_file(folder / "outputs.safetensors")
    assert model.logits(test) == pytest.approx(
        stored["test"].float().numpy(), abs=2e-2, rel=2e-3
    )  # kept as fp16
    assert model.card.training_prior == pytest.approx(stored["training_shares"].tolist())
    assert model.card.source_prior is not None
    assert max(model.card.source_prior) > 3 * min(model.card.source_prior), (
        "the source's, not the sampler's"
    )
    assert model.card.target_prior is not None
    reweighted = json.loads((folder / "reweighted.json").read_text())
    assert model.card.target_prior.prior == pytest.approx(reweighted["target_shares"])
    better = TargetPrior((0.1,) * 10, "em")
    assert Predictor.of_run(folder, "cpu", better, {"why": "try"}).card.target_prior == better


def test_a_run_s_model_survives_saving(mini_runs: Path, tmp_path: Path) -> None:
    model = load(finished_runs(mini_runs)[1], "cpu")
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", "cpu")
    x = images(2, 3, 32, 32)
    assert (again.logits(x) == model.logits(x)).all()
    assert again.card.made["run"]["task"] == "mini/syn-uci"


# --- errors ---


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    predictor().save(tmp_path / "m")
    return tmp_path / "m"


def change(folder: Path, **values: Any) -> None:
    file = folder / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"what": "something"}, 'is not "askew model"'),
        ({"form": 2}, "form 2, and this askew reads form 3"),
        ({"form": 4}, "form 4, and this askew reads form 3"),
        ({"network": {"layers": "mpl"}}, "no network 'mpl'"),
        ({"network": {"embedding": {"backbone": "resnet18"}}}, "network resnet18 takes images"),
        (
            {"network": {"embedding": {"backbone": "resnet18", "views": 9}}},
            "no option of the embedding",
        ),
        (
            {"network": {"layers": "mini", "embedding": {"backbone": "resnet18"}}},
            "no network 'resnet18+mini'",
        ),
        ({"network": {}}, "There is no network"),
        ({"network": {"layers": "mlp", "size": 3}}, "no option of the network 'size'"),
        ({"network": "mlp"}, "of the wrong kind"),
        ({"input": {"shape": [8, 8]}}, "no input has shape [8, 8]"),
        ({"input": {"shape": [-8]}}, "no input has shape [-8]"),
        ({"input": {"shape": [2**40]}}, "no input has shape"),
        ({"input": {"shape": [True]}}, "no input has shape"),
        ({"input": {"shape": [3, 32, 32]}}, "mlp takes any width"),
        ({"classes": []}, "names that differ"),
        ({"classes": ["a", "a", "b"]}, "names that differ"),
        ({"classes": ["a", 7, "b"]}, "expected a name, found 7"),
        ({"classes": "abc"}, "classes must be a list"),
        ({"training_shares": [0.5, 0.5]}, "share of each of the 3 classes"),
        ({"training_shares": [0.5, 0.5, 0.5]}, "the sum 1"),
        ({"training_shares": [2.0, -1.0, 0.0]}, "share of each"),
        ({"source_shares": ["a", "b", "c"]}, "share of each"),
        ({"target_shares": [0.1, 0.2, 0.7]}, "of the wrong kind"),
        ({"rule": {"method": "mine", "options": {}}}, "'mine' is not one of askew's"),
        ({"rule": {"method": "mcd", "options": {"depth": 99}}}, "must be between 0 and 3"),
        ({"made": 3}, "of the wrong kind"),
        ({"weights_sha256": "../../etc/passwd"}, "names no weights"),
        ({"weights_sha256": "0" * 64}, "lacks its weights"),
    ],
)
def test_a_card_with_a_wrong_field_is_refused(
    saved: Path, values: dict[str, Any], message: str
) -> None:
    change(saved, **values)
    assert message in refused(lambda: load(saved, "cpu"))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"form": NaN}', "[" * 100_000, '"\ud800"', "\0"])
def test_a_card_that_is_no_json_object_is_refused(saved: Path, text: str) -> None:
    (saved / "model.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "is not a model of askew's" in refused(lambda: load(saved, "cpu"))


def test_a_missing_field_is_named(saved: Path) -> None:
    file = saved / "model.json"
    file.write_text(
        json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "classes"})
    )
    assert "'classes'" in refused(lambda: load(saved, "cpu"))


def test_one_changed_bit_in_the_weights_is_found(saved: Path) -> None:
    (file,) = saved.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "not those that the model was saved with" in refused(lambda: load(saved, "cpu"))


def replace_weights(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """As one would who also mends the hash."""
    import hashlib

    (old,) = folder.glob("*.safetensors")
    old.unlink()
    save_file(state, folder / "new")
    digest = hashlib.sha256((folder / "new").read_bytes()).hexdigest()
    (folder / "new").rename(folder / f"weights-{digest[:16]}.safetensors")
    change(folder, weights_sha256=digest)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            {"head.bias": torch.zeros(4)},
            "head.bias is torch.float32 (3,), found torch.float32 (4,)",
        ),
        ({"head.bias": torch.zeros(3, dtype=torch.float64)}, "found torch.float64 (3,)"),
        ({"head.bias": torch.tensor([0.0, float("nan"), 0.0])}, "head.bias hold NaN"),
        ({"head.bias": None}, "head.bias is torch.float32 (3,), found none"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    saved: Path, harm: dict[str, torch.Tensor | None], message: str
) -> None:
    state = weights(card()) | harm
    replace_weights(saved, {name: t for name, t in state.items() if t is not None})
    assert message in refused(lambda: load(saved, "cpu"))


def test_a_description_alone_cannot_ask_for_all_memory(saved: Path) -> None:
    change(saved, input={"shape": [2**24]})  # an mlp of that width has 32 GiB
    assert "do not fit the network" in refused(lambda: load(saved, "cpu"))


def test_a_pickle_in_place_of_the_weights_is_not_loaded(saved: Path, tmp_path: Path) -> None:
    import hashlib

    (old,) = saved.glob("*.safetensors")
    old.unlink()
    content = f"cbuiltins\nexec\n(S'open({str(tmp_path / 'ran')!r}, \"w\")'\ntR.".encode()
    digest = hashlib.sha256(content).hexdigest()
    (saved / f"weights-{digest[:16]}.safetensors").write_bytes(content)
    change(saved, weights_sha256=digest)
    assert "is damaged" in refused(lambda: load(saved, "cpu"))
    assert not (tmp_path / "ran").exists()


def test_a_stranger_s_model_runs_no_file_that_it_names(saved: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    change(saved, rule={"method": f"{evil}:Evil", "options": {}})
    assert "is not one of askew's" in refused(lambda: load(saved, "cpu"))
    assert not (tmp_path / "ran").exists()


def test_a_stranger_s_run_runs_no_file_that_it_names(mini_runs: Path, tmp_path: Path) -> None:
    import shutil

    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    run = shutil.copytree(finished_runs(mini_runs)[0], tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    record["run"]["plan"][-1]["method"]["id"] = f"{evil}:Evil"
    (run / "run.json").write_text(json.dumps(record))
    RunFolder(run).finish()  # a stranger can write hashes too
    assert "code of its own" in refused(lambda: load(run, "cpu"))
    assert not (tmp_path / "ran").exists()
    (run / "weights.safetensors").unlink()
    record["run"]["plan"][-1]["method"]["id"] = "coal"
    (run / "run.json").write_text(json.dumps(record))
    RunFolder(run).finish()
    assert "lacks what a model is made of" in refused(lambda: load(run, "cpu"))
    (run / "done").unlink()
    assert "is not finished" in refused(lambda: load(run, "cpu"))
    (run / "run.json").unlink()
    assert "holds no model.json" in refused(lambda: load(run, "cpu"))


class Own(Method):
    id = "own"

    def predict(self, net: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().predict(net, x)


def test_a_rule_of_one_s_own_predicts_but_is_not_saved(tmp_path: Path) -> None:
    own, plain = predictor(rule=Own()), predictor()
    assert own.logits(rows()) == pytest.approx(2 * plain.logits(rows()), abs=1e-5)
    assert "by code of its own" in refused(lambda: own.save(tmp_path / "m"))
    assert not (tmp_path / "m").exists()


def test_a_model_is_not_saved_over_other_things(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert "holds other things" in refused(lambda: predictor().save(tmp_path / "full"))
    assert "is a file" in refused(lambda: predictor().save(tmp_path / "full" / "thesis.tex"))
    assert "Cannot write" in refused(lambda: predictor().save("/proc/no/model"))
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert "There is no model" in refused(lambda: load(tmp_path / "none"))
    assert "holds no model.json" in refused(lambda: load(tmp_path))
    assert "no device" in refused(lambda: Predictor(card(), weights(card()), "warp"))


def ours() -> dict[str, Any]:
    return {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] == "askew"
    }


def test_loading_a_model_imports_nothing_that_trains_launches_or_reports(tmp_path: Path) -> None:
    predictor().save(tmp_path / "model")
    here = ours()
    for name in here:
        del sys.modules[name]
    try:
        importlib.import_module("askew").load(tmp_path / "model", "cpu").predict([[0.0] * 8])
        rooms = {name.split(".")[1] for name in ours() if "." in name}
    finally:
        for name in ours():
            del sys.modules[name]
        sys.modules.update(here)
    assert "inference" in rooms
    assert rooms <= {"core", "data", "nets", "evaluation", "methods", "inference"}


def edited(folder: Path, change: Callable[[dict[str, Any]], object], honest: bool = False) -> Path:
    """A saved model with a changed card; with an honest hash, as a stranger would write it."""
    predictor().save(folder)
    values = json.loads((folder / "model.json").read_text())
    change(values)
    if honest:
        values[CARD_HASH] = card_hash(values)
    (folder / "model.json").write_text(json.dumps(values))
    return folder


def test_edited_class_names_are_refused(tmp_path: Path) -> None:
    renamed = edited(tmp_path / "a", lambda values: values["classes"].reverse())
    assert "is not as it was saved" in refused(lambda: load(renamed, "cpu"))
    spaced = edited(tmp_path / "b", lambda values: None)
    assert load(spaced, "cpu").card == predictor().card, "another layout of the same JSON is fine"


def test_a_name_that_comes_twice_in_json_is_refused(tmp_path: Path) -> None:
    predictor().save(tmp_path / "m")
    file = tmp_path / "m" / "model.json"
    file.write_text(
        file.read_text().replace('"classes"', '"classes": ["a", "b", "c"],\n "classes"')
    )
    assert "'classes' comes twice" in refused(lambda: load(tmp_path / "m", "cpu"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network", [[1, 2]]),
        ("rule", [[1, 2]]),
        ("rule", {"method": "coal", "options": [[1, 2]]}),
        ("rule", {"file": "a.py:A"}),
        ("bias", [10**400, 0, 0]),
        ("training_shares", ["0.5", "0.3", "0.2"]),
        (
            "target_shares",
            {"shares": ["a", "b", "c"], "estimator": "em", "low": None, "high": None},
        ),
        ("target_shares", [1, 2, 3]),
        ("input", [[1]]),
        ("input", {"shape": [8], "columns": 5}),
        ("made", 7),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(tmp_path: Path, name: str, value: object) -> None:
    def change(values: dict[str, Any]) -> None:
        values[name] = value

    folder = edited(tmp_path / "m", change, honest=True)
    assert "is not as it was" not in refused(lambda: load(folder, "cpu", method="x.py:A"))


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    bad = weights(card())
    bad["head.weight"] = torch.full_like(weights(card())["head.weight"], torch.nan)
    assert "The weights head.weight hold NaN" in refused(lambda: Predictor(card(), bad, "cpu"))
