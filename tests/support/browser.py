"""A headless Chromium to look at pages with, driven through ChromeDriver as the W3C describes it.

Standard library only: https://www.w3.org/TR/webdriver2 is JSON over HTTP.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")

MISSING = " and ".join(
    name for name, path in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if path is None
)
"""What is needed and not on PATH; empty if nothing."""

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--hide-scrollbars", "--force-prefers-reduced-motion"),
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which the standard names elements
_STARTED = "was started successfully on port "
_DEADLINE_S = 120.0
_PORT_RACES = 5  # how often a driver is started that finds its port taken
# Ends two frames later: the page then knows that it has been scrolled.
_SCROLL = """
document.querySelector(arguments[0]).scrollIntoView({block: "center", behavior: "instant"});
return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())));
"""


class Page:
    """A page in a browser."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, file: Path) -> None:
        """Show a file."""
        _call(f"{self._session}/url", {"url": file.as_uri()})

    def text(self, selector: str) -> str:
        """What can be seen of the first element that a CSS selector finds."""
        return _call(f"{self._session}/element/{self._find(selector)}/text")

    def texts(self, selector: str) -> list[str]:
        """What can be seen of every element that it finds, as it is laid out."""
        code = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())"
        return self.run(code, selector)

    def click(self, selector: str) -> None:
        """Click at the first element, as a user would: it must be visible, and in front."""
        _call(f"{self._session}/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into it."""
        _call(f"{self._session}/element/{self._find(selector)}/value", {"text": text})

    def run(self, code: str, *arguments: Any) -> Any:
        """What JavaScript in the page returns."""
        return _call(f"{self._session}/execute/sync", {"script": code, "args": list(arguments)})

    def point_at(self, selector: str) -> None:
        """Scroll to it and move the mouse to its middle."""
        self.run(_SCROLL, selector)
        move = {"type": "pointerMove", "x": 0, "y": 0, "duration": 0}
        move["origin"] = {_ELEMENT: self._find(selector)}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        _call(f"{self._session}/actions", {"actions": [mouse]})

    def messages(self) -> list[str]:
        """What the console shows, since it was last asked."""
        entries = _call(f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def requests(self) -> list[str]:
        """The addresses that pages asked for, since this was last called; not Chromium's own."""
        entries = _call(f"{self._session}/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        asked = [event for event in events if event["method"] == "Network.requestWillBeSent"]
        addresses = [event["params"]["request"]["url"] for event in asked]
        own = ("chrome:", "data:")  # its start page
        return [address for address in addresses if not address.startswith(own)]

    def screenshot(self, file: Path) -> None:
        """Write a picture of the window to a PNG file."""
        file.write_bytes(base64.b64decode(_call(f"{self._session}/screenshot")))

    def _find(self, selector: str) -> str:
        found = _call(f"{self._session}/element", {"using": "css selector", "value": selector})
        return found[_ELEMENT]


@contextmanager
def browser(
    *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
) -> Iterator[Page]:
    """A page in a browser of its own, with an empty profile; narrow ones behave like phones.

    Args:
        scripts: whether pages may run JavaScript of their own; `Page.run` always may.
    """
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        _driver() as address,
    ):
        options: dict[str, Any] = {
            "binary": CHROMIUM,
            "args": [
                *ARGUMENTS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
            ],
        }
        if dark:
            options["args"].append("--blink-settings=preferredColorScheme=0")
        if not scripts:
            options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
        if width < 500:
            metrics = {"width": width, "height": height, "pixelRatio": 2.0, "touch": True}
            options["mobileEmulation"] = {"deviceMetrics": metrics}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": logs}
        made = _call(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
        session = f"{address}/session/{made['sessionId']}"
        try:
            yield Page(session)
        finally:
            _call(session, method="DELETE")


@contextmanager
def _driver() -> Iterator[str]:
    """A ChromeDriver that listens at this address."""
    # It asks for a free port of IPv4, and ends if a server has that port of IPv6 by chance.
    for _ in range(_PORT_RACES):
        driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            port = _port(driver)
            if port is not None:
                yield f"http://127.0.0.1:{port}"
                return
        finally:
            driver.terminate()
            driver.communicate()
    raise RuntimeError("chromedriver ended before it was ready")


def _port(driver: subprocess.Popen[str]) -> int | None:
    """Where it listens; None if it has ended."""
    assert driver.stdout is not None
    for line in driver.stdout:
        _, found, port = line.partition(_STARTED)
        if found:
            return int(port.strip().rstrip("."))
    return None


def _call(address: str, content: Any = None, method: str | None = None) -> Any:
    """What ChromeDriver answers; its errors say what went wrong."""
    data = None if content is None else json.dumps(content).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_DEADLINE_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None
