"""Makes the pictures of the page "Explain, trace, simulate".

    PYTHONPATH=. python docs/pictures.py

Two hosts with one core each and a link of 200 Mbit/s (see `benchmarks.testbed`) profile, plan and
trace the job of ``docs/digits_job.py``. Needs root, `tc` and chromium.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.testbed import Testbed
from benchmarks.workers import workers

DOCS = Path(__file__).parent
RATE = "200mbit"
JOB = ("--module", "digits_job:make_context")
PAGE_PARTS = {"explain": (0, 1192), "explain-timeline": (1192, 2030)}
"""Which part of the page each picture shows, from and to which line of pixels."""


def main() -> None:
    """Measure, plan, trace, simulate; then take pictures of the pages."""
    path = os.pathsep.join([str(DOCS.parent), str(DOCS)])
    os.environ |= {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder, Testbed(2, RATE, pin_cores=True) as bed:
        os.environ["CARAMEL_CACHE"] = folder
        profile, page = Path(folder) / "profile.json", Path(folder) / "page.html"

        def caramel(*arguments: str) -> None:
            log = Path(folder) / f"{arguments[0]}.txt"
            command = [sys.executable, "-m", "caramel", *arguments]
            with log.open("w") as file:
                done = bed.popen(0, command, stdout=file, stderr=subprocess.DEVNULL).wait()
            if done:
                raise SystemExit(f"caramel {arguments[0]} ended with {done}: {log.read_text()}")

        with workers(bed) as addresses:
            listed = ",".join(addresses)
            caramel("profile", "--out", str(profile), *JOB, "--workers", listed)
            known = (*JOB, "--profile", str(profile))
            caramel("plan", *known, "--workers", "2", "--explain", "--page", str(page))
            picture, trace = str(DOCS / "pictures/trace.png"), str(Path(folder) / "trace.json")
            shown = ("--out", trace, "--figure", picture, "--steps", "2")
            caramel("trace", *known, "--workers", listed, *shown)
        picture = str(DOCS / "pictures/simulate.png")
        asked = ("--workers", "2..64", "--bandwidth", "200mbit,1gbit", "--latency", "0.1ms")
        caramel("simulate", "--profile", str(profile), *asked, "--figure", picture)
        whole = Path(folder) / "page.png"
        _photograph(page, whole)
        _cut(whole)


def _photograph(page: Path, picture: Path) -> None:
    """What chromium shows of a page."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    size = "--window-size=1000,3000"
    command = ["chromium", *options, size, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=120)


def _cut(whole: Path) -> None:
    """The parts of the page that are shown."""
    from matplotlib import image

    pixels = image.imread(whole)
    for name, (begin, end) in PAGE_PARTS.items():
        image.imsave(DOCS / "pictures" / f"{name}.png", pixels[begin:end])


if __name__ == "__main__":
    main()
