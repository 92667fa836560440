"""The report of an adaptation: what it says, and that no name from somebody's disk can break into
it."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptations import first_two
from PIL import Image
from test_run_report import EVIL, TELL, Page, browse, told

import askew
from askew.adaptation import report
from askew.adaptation.assessment import Adaptation
from askew.adaptation.findings import adaptation_findings
from askew.adaptation.report import DOUBTFUL
from askew.adaptation.request import TargetLabels

__all__ = ["browse"]  # a fixture of the other page's tests

LENGTH = {"pretrain": 10, "rounds": 2, "round": 5, "batch": 8}
EVIL_NAME = EVIL.replace("/", "∕")  # no file's name has a slash


def small_images(file: Path, n: int, names: list[str] | None, seed: int) -> Path:
    """Images that mini takes: a bright square whose place is the class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.integers(0, 60, (n, 32, 32, 3)).astype(np.uint8)
    for i, k in enumerate(y):
        x[i, 8:24, 9 * k : 9 * k + 9] += 150
    np.savez(file, **({"x": x} if names is None else {"x": x, "y": np.array(names)[y]}))
    return file


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Adaptation:
    folder = tmp_path_factory.mktemp("report")
    source = small_images(folder / "here.npz", 60, ["plain", f"{EVIL}1", "it's 🦉 & more"], 0)
    target = small_images(folder / "there.npz", 40, None, 1)
    result = askew.adapt(
        source, target, folder / "out", methods="coal", training=LENGTH, device="cpu"
    )
    return result.adaptation


def render_report(found: Adaptation) -> str:
    return report.render_report(found, adaptation_findings(found), first_two)


@pytest.fixture(scope="module")
def page(found: Adaptation) -> str:
    """The page as users have it, with t-SNE."""
    return report.render_report(found, adaptation_findings(found))


def poisoned(found: Adaptation) -> Adaptation:
    """The same with names, sentences and failures that are scripts."""
    data = found.data
    target = dataclasses.replace(
        data.target,
        names=tuple(f"{EVIL_NAME}{i}.jpg" for i in range(len(data.target.names))),
        broken=(EVIL,),
    )
    source = dataclasses.replace(data.source, broken=(f"{EVIL}: torn",))
    inputs = dataclasses.replace(
        found.inputs,
        data=dataclasses.replace(data, target=target, source=source, unknown=(EVIL,)),
        pixels=dataclasses.replace(found.inputs.pixels, network=EVIL),
    )
    networks = tuple(
        dataclasses.replace(t, candidate=dataclasses.replace(t.candidate, name=f"{EVIL}{i}"))
        for i, t in enumerate(found.networks)
    )
    verdict = dataclasses.replace(next(iter(found.verdicts.values())), sentence=EVIL)
    request = dataclasses.replace(
        found.request, source=Path(f"/{EVIL_NAME}"), target=Path(f"/{EVIL_NAME}")
    )
    return dataclasses.replace(
        found,
        inputs=inputs,
        networks=networks,
        verdicts={f"{EVIL}1": verdict},
        saved=1,
        failures={EVIL: EVIL},
        request=request,
    )


@pytest.fixture(scope="module")
def poisoned_page(found: Adaptation) -> str:
    return render_report(poisoned(found))


def test_the_page_is_whole_and_loads_nothing(page: str) -> None:
    seen = Page(page)
    for tag, attributes in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert "href" not in attributes
        assert str(attributes.get("src", "data:image/")).startswith("data:image/")
    assert "url(" not in page
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")
    assert seen.count("script") == 1


def test_the_page_says_what_was_done_and_found(page: str, found: Adaptation) -> None:
    text = Page(page).text
    headings = (
        "Findings",
        "Label distribution",
        "Target images",
        "Features of both domains",
        "Label-free scores",
    )
    for heading in (*headings, "Training"):
        assert heading in text
    assert found.sentence in text
    assert found.diagnosis.sentence in text
    assert "here.npz → there.npz" in text
    for k, share in enumerate(found.diagnosis.target_prior.prior):
        assert f"{100 * share:.1f}" in text, k
    for finding in adaptation_findings(found):
        assert f"{finding.code} {finding.what}" in text
        assert finding.remedy in text
    for one, scores in zip(found.networks, found.scores, strict=True):
        assert one.name in text
        assert all(f"{value:.3f}" in text for value in scores.values())


@pytest.mark.parametrize(
    ("requested", "labels", "way"),
    [
        (True, 2, "as requested"),
        (False, 0, "without target labels"),
        (False, 2, "trained with 2 labels of the target"),
    ],
)
def test_the_page_says_how_the_network_came_to_be(
    found: Adaptation, requested: bool, labels: int, way: str
) -> None:
    own = TargetLabels(np.arange(labels), np.zeros(labels, dtype=np.int64), 3) if labels else None
    inputs = dataclasses.replace(found.inputs, labels=own)
    one = dataclasses.replace(found, inputs=inputs, requested=requested)
    assert f"The model is that of <b>{one.final.name}</b>, {way}." in render_report(one)


def test_images_are_shown_from_least_to_most_confident_as_the_model_sees_them(
    page: str, found: Adaptation
) -> None:
    gallery = page.partition("Least confident")[2].partition("Most confident")[0]
    answers = re.findall(r"<figcaption><b>.*?</b> (\d+) %</figcaption>", gallery)
    assert len(answers) == DOUBTFUL
    assert [int(a) for a in answers] == sorted(int(a) for a in answers)
    first = int(np.argsort(-found.probabilities.max(axis=1), kind="stable")[-1])
    assert f'title="{found.data.target.names[first]}"' in gallery
    coded = re.findall(r'src="data:image/png;base64,([^"]+)"', gallery)[0]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(coded))))
    original = np.asarray(found.data.task.training_data.target.x[first]).transpose(1, 2, 0)
    assert (pixels[1::3, 1::3] == original).all(), "a small picture is enlarged without blur"


def test_images_of_each_predicted_class_are_shown_fewer_where_classes_are_many(
    found: Adaptation, monkeypatch: pytest.MonkeyPatch
) -> None:
    even = dataclasses.replace(
        found, probabilities=np.eye(3)[np.arange(len(found.probabilities)) % 3]
    )
    for most, shown in ((900, report.PER_CLASS), (12, 4), (1, 1)):
        monkeypatch.setattr(report, "BY_CLASS", most)
        assert [len(gallery) for _, _, gallery in report._by_class(even)] == [shown] * 3


def test_a_page_without_adaptation_says_so_once_and_what_to_do_next(
    found: Adaptation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_map", lambda *_: "")
    text = Page(render_report(dataclasses.replace(found, saved=0, rejected=""))).text
    assert "Not adapted" in text
    assert "was adapted to the target" not in text
    assert "was compared with 1 that were adapted to the target" in text
    assert "What next: label some fifty target images" in text
    kept = Page(render_report(found)).text
    assert "was adapted to the target" in kept
    assert "What next" not in kept


@pytest.mark.parametrize("classes", [3, 31, 101])
def test_every_class_is_in_a_chart_whatever_their_number(
    found: Adaptation, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"class {k}" for k in range(classes)]
    monkeypatch.setattr(
        report,
        "_percent",
        lambda _: [(name, 1.0, k / 10, 0.0, 20.0) for k, name in enumerate(names)],
    )
    charts = report._distributions(found)
    drawn = [
        name
        for _, chart in charts
        for name in re.findall(r'class="name">(class \d+)<', chart.drawing)
    ]
    assert sorted(drawn) == sorted(names)
    assert len(charts) == (2 if classes > report.ONE_CHART else 1)


def test_a_page_is_the_same_twice(page: str, found: Adaptation) -> None:
    assert report.render_report(found, adaptation_findings(found)) == page


def test_names_stay_names(poisoned_page: str) -> None:
    seen = Page(poisoned_page)
    assert seen.count("script") == 1
    assert not [a for _, a in seen.tags if any(name.startswith("on") for name in a)]
    assert all(str(a.get("src")).startswith("data:image/") for tag, a in seen.tags if tag == "img")
    assert seen.text.count("document.title='owned'") > 20


@pytest.mark.parametrize("guarded", [True, False], ids=["with the page's policy", "without it"])
def test_a_name_that_is_a_script_does_nothing_in_a_browser(
    poisoned_page: str, browse: Callable[..., str], guarded: bool
) -> None:
    dom = browse(poisoned_page, guarded=guarded)
    title = re.findall(r"<title>(.*?)</title>", dom, flags=re.S)[0]
    assert title.startswith("askew: ")
    assert 'class="js"' in dom, "the page's own script did run"


def test_a_browser_shows_the_pictures_and_nothing_wider_than_its_window(
    page: str, browse: Callable[..., str]
) -> None:
    script = f"""{TELL}
const images = [...document.querySelectorAll('.gallery img')];
const shown = images.filter((i) => i.offsetWidth > 0);
out.textContent = JSON.stringify({{
  images: images.length, loaded: shown.every((i) => i.complete && i.naturalWidth > 0), shown: shown.length,
  wide: document.documentElement.scrollWidth > window.innerWidth + 1,
}});"""
    seen: dict[str, Any] = told(browse(page, script))
    assert seen["images"] >= DOUBTFUL
    assert seen["shown"] >= DOUBTFUL
    assert seen["loaded"]
    assert not seen["wide"]
