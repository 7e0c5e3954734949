"""Makes the pictures of pages and timelines that the documents show.

    PYTHONPATH=. python docs/pictures.py [NAME ...]

Hosts with a link of 200 Mbit/s (see `benchmarks.testbed`) profile, plan, train and trace the job of
``docs/digits_job.py``; a browser shows the pages. With names only these pictures are made. Needs
root, `tc`, chromium and chromedriver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.testbed import Testbed
from benchmarks.workers import workers
from tests.support.browser import browser

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
RATE = "200mbit"
JOB = ("--module", "digits_job:make_context")
COLOURS = 128  # of a picture, so that it is small

Run = Callable[..., None]


@dataclass(frozen=True)
class Shot:
    """A picture of a part of a page.

    Attributes:
        name: of the picture.
        page: whose page it is: the name of a model.
        first: title of the section that it begins with; "" for the top of the page.
        last: title of the one that it ends with.
        most: the most pixels that it is high.
        width: of the window; narrow ones are those of phones.
        dark: whether the browser prefers dark pages.
    """

    name: str
    page: str
    first: str
    last: str
    most: int = 2000
    width: int = 1000
    dark: bool = False


SHOTS = (
    Shot("explain", "ARModel", "", "What would help"),
    Shot("explain-timeline", "ARModel", "Timeline", "Groups", most=1000),
    Shot("explain-phone", "ARModel", "", "What limits the step", most=1100, width=420, dark=True),
    Shot("explain-servers", "PSModel", "Timeline", "Transfers", most=1000),
    Shot("explain-placed", "PlacedModel", "Timeline", "Devices"),
)


def main(names: Sequence[str]) -> None:
    """Measure, plan, train, trace and simulate; then take pictures of the pages."""
    wanted = names or [*(shot.name for shot in SHOTS), "trace", "simulate"]
    os.environ |= {"PYTHONPATH": os.pathsep.join([str(DOCS.parent), str(DOCS)]), "COLUMNS": "100"}
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2"}
    shots = [shot for shot in SHOTS if shot.name in wanted]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CARAMEL_CACHE"] = name
        profile = folder / "profile.json"
        known = ("--profile", str(profile))
        with hosts(folder, 2) as (listed, run):
            run("-m", "caramel", "profile", "--out", str(profile), *JOB, "--workers", listed)
            if "trace" in wanted:
                shown = ("--out", f"{folder}/trace.json", "--figure", f"{PICTURES}/trace.png")
                of = (*JOB, *known, "--workers", listed, "--steps", "2")
                run("-m", "caramel", "trace", *of, *shown)
            if "simulate" in wanted:
                asked = ("--workers", "2..64", "--bandwidth", "200mbit,1gbit", "--latency", "0.1ms")
                shown = ("--figure", f"{PICTURES}/simulate.png")
                run("-m", "caramel", "simulate", *known, *asked, *shown)
            for model in sorted({shot.page for shot in shots} - {"PSModel"}):
                run(f"{DOCS}/pages.py", model, listed, str(profile), f"{folder}/{model}.html")
        if any(shot.page == "PSModel" for shot in shots):
            with hosts(folder, 3, servers=1) as (listed, run):
                run(f"{DOCS}/pages.py", "PSModel", listed, str(profile), f"{folder}/PSModel.html")
        for shot in shots:
            photograph(folder / f"{shot.page}.html", shot)
    for name in wanted:
        make_small(PICTURES / f"{name}.png")


@contextmanager
def hosts(folder: Path, count: int, *, servers: int = 0) -> Iterator[tuple[str, Run]]:
    """Hosts with a worker or a server on each; gives their addresses, and what runs Python on the
    first of them."""
    # A core for each, as far as there are some.
    pin = (os.cpu_count() or 1) >= count
    # A server receives from all workers at once.
    limit = {"both_ways": bool(servers), "pin_cores": pin}
    with Testbed(count, RATE, **limit) as bed, workers(bed, servers=servers) as addresses:
        listed = ",".join(addresses)
        if servers:
            listed = json.dumps({"worker": addresses[:-servers], "ps": addresses[-servers:]})

        def run(*arguments: str) -> None:
            log = folder / "log.txt"
            with log.open("w") as file:
                command = [sys.executable, *arguments]
                done = bed.popen(0, command, stdout=file, stderr=subprocess.STDOUT).wait()
            if done:
                raise SystemExit(f"{arguments} ended with {done}: {log.read_text()}")

        yield listed, run


# Pictures ---------------------------------------------------------------------------------------

# From where to where sections with such titles are.
EXTENT = """
const [first, last] = arguments;
const titled = (title) => [...document.querySelectorAll("main > section")]
  .find((each) => each.querySelector("h2")?.textContent.startsWith(title)).getBoundingClientRect();
return [first ? titled(first).top - 12 : 0, titled(last).bottom + 12];
"""


def photograph(page: Path, shot: Shot) -> None:
    """Take a picture of a part of a page."""
    from matplotlib import image

    picture = PICTURES / f"{shot.name}.png"
    height = 1000
    for _ in range(2):  # to know how high it is, and to have all of it in the window
        with browser(width=shot.width, height=height, dark=shot.dark) as window:
            window.open(page)
            begin, end = window.run(EXTENT, shot.first, shot.last)
            height = int(end) + 200
            window.screenshot(picture)
    pixels = image.imread(picture)
    per_point = pixels.shape[1] // shot.width
    begin, end = int(begin) * per_point, int(min(end, begin + shot.most)) * per_point
    image.imsave(picture, pixels[begin:end])


def make_small(picture: Path) -> None:
    """Let a picture have few colours."""
    from PIL import Image  # matplotlib needs it, too

    small: Any = Image.open(picture).convert("RGB").quantize(COLOURS)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
