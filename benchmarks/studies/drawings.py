"""Make pairs of domains of drawings, to develop on, from packages that you have downloaded: icons,
emoji, stamps.

    pip install pillow resvg-py
    npm pack @iconify/json@2.2.535 @lobehub/fluent-emoji-3d@1.1.0 openmoji@17.0.0  # and unpack each
    into a folder apt-get download openclipart-png tuxpaint-stamps-default  # and dpkg-deb -x each
    into one folder python benchmarks/studies/drawings.py icons PICTURES --iconify FOLDER
    python benchmarks/studies/drawings.py emoji PICTURES --iconify FOLDER --fluent FOLDER --openmoji
    FOLDER python benchmarks/studies/drawings.py stamps PICTURES --debian FOLDER

It writes PICTURES/KIND_p/CLASS/N.png and PICTURES/KIND_q/CLASS/N.png, of 128 pixels; drawings.toml
has the classes. A folder of an npm package is the one named `package` in its archive.

icons   31 classes of everyday objects: sets of icons of many colours (p) and of one ink (q), of
each set a few icons.
        Those that are the same at 32 pixels count once.
emoji   31 classes, mostly Unicode's subgroups: shaded (p: Fluent 3D, Noto and its first version)
and flat (q: Twemoji,
        OpenMoji, EmojiOne). Every other emoji of a class is in p, the rest in q, as up to three
        vendors drew it.
stamps  12 classes: clip art (p: openclipart) and photographs, cut out (q: the stamps of Tux Paint).

No picture is kept in this repository, and none is handed on: each has its own licence.
@iconify/json names its sets' (MIT, Apache 2.0, CC BY 4.0 and others; sets for non-commercial use
are left out); of the emoji Noto is under Apache 2.0, Twemoji and EmojiOne under CC BY 4.0, OpenMoji
under CC BY-SA 4.0, Fluent 3D under MIT. openclipart-png 1:0.18+dfsg-19 is in the public domain,
tuxpaint-stamps-default 2022.06.04-1 under GPL 2 or later. The pictures were drawn with Pillow
13.0.0 and resvg-py 0.5.0, which only icons and emoji need.
"""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import json
import random
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

SIDE = 128
CLASSES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GROUND = {
    "icons": {"p": "white", "q": "#eeeadf"},
    "emoji": {"p": "#ffffff", "q": "#e6ecf2"},
    "stamps": {"p": "#ffffff", "q": "#f1ede4"},
}
ICONS = {"p": (40, 40), "q": (14, 40)}
"""Icons of a class, at most: between these, by lot."""
EACH = {"p": 3, "q": 1}
"""Icons of a class from one set, at most."""
EMOJI = 20
"""Emoji of a class and domain, each at most three pictures."""
STAMPS = 60
"""Pictures of a class and domain of stamps, at most."""
INK = "#222222"
STYLE = re.compile(
    r"[-_](outlined?|line|linear|lines|filled?|fill|solid|bold|light|thin|duotone|duo|rounded|round|sharp|regular|"
    r"twotone|two-tone|tone|broken|bulk|flat|color|dark|stroke|medium|heavy|s|o|l|r|xl|sm|lg|ios|md|fine|black|alt|"
    r"curved|\d+[a-z]?|\d+-(filled|regular|light))$"
)
"""How the name of an icon ends that is another style of the same."""
NO_OBJECTS = {"Logos", "Flags / Maps", "Programming"}
LIKE_ANOTHER = "fluent-emoji-high-contrast"
"""Categories of sets, and a set that has in one ink what another of the same makers has in
colours."""
ANIMALS = {
    "openmoji",
    "twemoji",
    "noto",
    "noto-v1",
    "fluent-emoji-flat",
    "fluent-emoji",
    "emojione",
    "emojione-v1",
    "emojione-monotone",
    "fxemoji",
    "streamline-emojis",
    "game-icons",
}
"""Sets whose mouse is the animal."""
VENDORS = {"p": ("fluent3d", "noto", "noto-v1"), "q": ("twemoji", "openmoji", "emojione")}
NOT_CLIPS = (
    "_bw",
    "outline",
    "label",
    "silhouet",
    "black_0",
    "sign_",
    "collection",
    "banner",
    "border",
)
NOT_STAMPS = ("cartoon", "mirror", "flip")
"""What names have that are no single thing in colours, and paths of stamps that are no photographs
of their own."""

Picture = Image.Image
Named = Iterator[tuple[str, Picture]]


class Drawing(NamedTuple):
    """A picture of a class; pictures are numbered in the order of their names."""

    domain: str
    label: str
    name: str
    picture: Picture


def on_paper(picture: Picture, ground: str) -> Picture:
    """In the middle of a plain ground. (128, 128)"""
    paper = Image.new("RGBA", (SIDE, SIDE), ground)
    paper.alpha_composite(picture, ((SIDE - picture.width) // 2, (SIDE - picture.height) // 2))
    return paper.convert("RGB")


def cut_out(picture: Picture, margin: int, faint: int = 0) -> Picture | None:
    """What is less transparent than faint, as large as the margin lets it be; None if nothing
    is."""
    picture = picture.convert("RGBA")
    if not (
        box := picture.getchannel("A")
        .point([255 * (alpha > faint) for alpha in range(256)])
        .getbbox()
    ):
        return None
    picture = picture.crop(box)
    scale = (SIDE - 2 * margin) / max(picture.size)
    wide, high = (max(1, round(length * scale)) for length in picture.size)
    return picture.resize((wide, high), Image.Resampling.LANCZOS)


def unlike(drawn: Named, key: Callable[[Picture], bytes], most: int) -> Named:
    """Those whose key no earlier one has, at most so many."""
    seen = set()
    for name, picture in drawn:
        if (k := key(picture)) not in seen:
            seen.add(k)
            yield name, picture
        if len(seen) == most:
            return


def svg(icons: dict[str, Any], name: str, side: int | None = None, ink: str = "black") -> str:
    """An icon of one of Iconify's sets; so high, or 128 pixels on its longer side."""
    icon = icons["icons"][name]
    usual = {"left": 0, "top": 0, "width": 16, "height": 16}
    left, top, width, height = (
        icon.get(key, icons.get(key, value)) for key, value in usual.items()
    )
    size = f'height="{side or SIDE}"' if side or height > width else f'width="{SIDE}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size} '
        f'viewBox="{left} {top} {width} {height}" color="{ink}">{icon["body"].replace("currentColor", ink)}</svg>'
    )


def render(text: str) -> Picture:
    resvg = importlib.import_module("resvg_py")  # which the types' checker need not have
    return Image.open(io.BytesIO(bytes(resvg.svg_to_bytes(svg_string=text)))).convert("RGBA")


def stem(name: str) -> str:
    """An icon's name without its style."""
    while (short := STYLE.sub("", name)) != name:
        name = short
    return name


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def find_icons(iconify: Path) -> dict[tuple[str, str], dict[str, list[tuple[str, str]]]]:
    """Names and SVG by domain and class, then by set."""
    classes = {word: label for label, words in CLASSES["icons"].items() for word in words}
    found: dict[tuple[str, str], dict[str, list[tuple[str, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for prefix, info in read_json(iconify / "collections.json").items():
        if (
            info.get("category") in NO_OBJECTS
            or prefix == LIKE_ANOTHER
            or "NC" in info["license"]["spdx"]
        ):
            continue
        icons, seen = read_json(iconify / "json" / f"{prefix}.json"), set()
        for name in sorted(icons["icons"], key=lambda name: (len(name), name)):
            label, body = classes.get(stem(name)), icons["icons"][name]["body"]
            if label is None or (name == "mouse" and prefix in ANIMALS) or body in seen:
                continue
            seen.add(body)
            found["p" if info.get("palette") else "q", label][prefix].append(
                (name, svg(icons, name, ink=INK))
            )
    return found


def draw_icons(iconify: Path) -> Iterator[Drawing]:
    rng = random.Random(0)

    def drawn(chosen: list[tuple[str, str]], ground: str) -> Named:
        for name, text in chosen:
            try:
                picture = render(text)
            except ValueError as problem:
                print(name, problem)
                continue
            picture.thumbnail((SIDE, SIDE))
            yield name, on_paper(picture, ground)

    def coarse(picture: Picture) -> bytes:
        return (
            picture.resize((32, 32))
            .convert("L")
            .point([grey // 64 for grey in range(256)])
            .tobytes()
        )

    for (domain, label), sets in sorted(find_icons(iconify).items()):
        chosen = []
        for prefix, icons in sorted(sets.items()):
            first = rng.randrange(len(icons)) if domain == "q" else 0
            chosen += [
                (f"{prefix}_{name}", text)
                for name, text in (icons[first:] + icons[:first])[: EACH[domain]]
            ]
        rng.shuffle(chosen)
        most = rng.randint(*ICONS[domain])
        for name, picture in unlike(drawn(chosen, GROUND["icons"][domain]), coarse, most):
            yield Drawing(domain, label, name, picture)


def plain(code: str) -> str:
    """Code points without the sign that asks for colours."""
    return "-".join(point for point in code.lower().split("-") if point != "fe0f")


def find_emoji(openmoji: Path) -> dict[str, list[tuple[str, str]]]:
    """Code points and names of a class's emoji in Unicode's order; no flags, no skin tones."""
    lists = CLASSES["emoji"]
    own = {name: label for label, names in lists["names"].items() for name in names}
    groups = {group: label for label, some in lists["groups"].items() for group in some}
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for emoji in read_json(openmoji / "data" / "openmoji.json"):
        name = emoji["annotation"]
        label = own.get(name) or groups.get(emoji["subgroups"])
        other = emoji["skintone"] or emoji["group"].startswith(("flags", "extras"))
        if label and name not in lists["left_out"] and not other:
            slug = re.sub("[^a-z0-9-]", "", name.lower().replace(" ", "-"))
            found[label].append((plain(emoji["hexcode"]), slug))
    return found


def vendor(file: Path) -> dict[str, str]:
    """A vendor's emoji as SVG, by code points, or by name where the set knows no code points."""
    icons = read_json(file)
    found = {}
    for code, name in (icons.get("chars") or {name: name for name in icons["icons"]}).items():
        name = icons.get("aliases", {}).get(name, {}).get("parent", name)
        if name in icons["icons"]:
            found[plain(code) if "chars" in icons else code] = svg(icons, name, side=192)
    return found


def draw_emoji(iconify: Path, fluent: Path, openmoji: Path) -> Iterator[Drawing]:
    solid = {plain(file.stem): file for file in (fluent / "assets").glob("*.webp")}
    flat = {
        name: vendor(iconify / "json" / f"{name}.json")
        for name in (*VENDORS["p"][1:], *VENDORS["q"])
    }
    for label, emoji in find_emoji(openmoji).items():
        for odd, (domain, vendors) in enumerate(VENDORS.items()):
            for (code, slug), name in itertools.product(emoji[odd::2][:EMOJI], vendors):
                if name in flat:
                    text = flat[name].get(code) or flat[name].get(slug)
                    drawn = render(text) if text else None
                else:
                    drawn = Image.open(solid[code]) if code in solid else None
                if drawn and (picture := cut_out(drawn, 4)):
                    picture = on_paper(picture, GROUND["emoji"][domain]).quantize(64).convert("RGB")
                    yield Drawing(domain, label, f"{code}_{name}", picture)


def find_stamps(debian: Path) -> Iterator[tuple[str, str, list[Path]]]:
    """Domain, class and files. SVG stamps are drawings, so only the others are taken."""
    clips, stamps = debian / "usr/share/openclipart/png", debian / "usr/share/tuxpaint/stamps"
    photos = {file.relative_to(stamps).as_posix(): file for file in sorted(stamps.rglob("*.png"))}

    def has(text: str, words: Iterable[str]) -> bool:
        return any(word in text for word in words)

    for label, of in CLASSES["stamps"].items():
        drawn = [
            f
            for f in sorted((clips / of["clips"]).rglob("*.png"))
            if has(f.stem, of.get("with", [""]))
        ]
        yield (
            "p",
            label,
            [f for f in drawn if not has(f.stem, (*NOT_CLIPS, *of.get("without", [])))],
        )
        taken = {path: f for path, f in photos.items() if path.startswith(tuple(of["stamps"]))}
        no = (*NOT_STAMPS, *of.get("stamps_without", []))
        yield "q", label, [f for path, f in taken.items() if not has(path, no)]


def draw_stamps(debian: Path) -> Iterator[Drawing]:
    for domain, label, files in find_stamps(debian):
        random.Random(0).shuffle(files)
        cut = ((f"{i:04d}", cut_out(Image.open(file), 2, faint=8)) for i, file in enumerate(files))
        drawn = (
            (name, on_paper(picture, GROUND["stamps"][domain])) for name, picture in cut if picture
        )
        for name, picture in unlike(
            drawn, lambda picture: picture.resize((16, 16)).tobytes(), STAMPS
        ):
            yield Drawing(domain, label, name, picture.quantize(256).convert("RGB"))


def save(drawings: Iterable[Drawing], pictures: Path, kind: str) -> None:
    """One folder per domain, one in it per class."""
    found = {(d.domain, d.label, f"{d.name}.png"): d.picture for d in drawings}
    for (domain, label), keys in itertools.groupby(sorted(found), key=lambda key: key[:2]):
        folder = pictures / f"{kind}_{domain}" / label
        folder.mkdir(parents=True, exist_ok=True)
        for n, key in enumerate(keys):
            found[key].save(folder / f"{n:03d}.png")
    for domain in "pq":
        of = [label for place, label, _ in found if place == domain]
        print(kind, domain, len(of), "pictures of", len(set(of)), "classes", flush=True)
    if not found:
        sys.exit("The folders have none of the packages' pictures.")


KINDS: dict[str, Callable[..., Iterator[Drawing]]] = {
    "icons": draw_icons,
    "emoji": draw_emoji,
    "stamps": draw_stamps,
}
PACKAGES = {"icons": ["iconify"], "emoji": ["iconify", "fluent", "openmoji"], "stamps": ["debian"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, packages in PACKAGES.items():
        command = kinds.add_parser(kind)
        command.add_argument("pictures", type=Path, help="Folder for one folder per domain.")
        for package in packages:
            command.add_argument(
                f"--{package}", type=Path, required=True, help="Folder of what was unpacked."
            )
    args = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = None  # some clip art is huge
    folders = {package: getattr(args, package) for package in PACKAGES[args.kind]}
    save(KINDS[args.kind](**folders), args.pictures, args.kind)


if __name__ == "__main__":
    main()
