"""A headless Chromium that a script drives: pages of a server, clicked on and photographed.

It speaks Chrome's own protocol over two pipes, so it needs no library and opens no port.
Source: https://chromedevtools.github.io/devtools-protocol; `--remote-debugging-pipe` reads from
descriptor 3 and writes to descriptor 4, a NUL behind each message.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Debian's package is `chromium`.
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
# Moves two descriptors to where the browser looks for them, and becomes it.
WITH_PIPES = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
LIMIT_S, POLL_S, END_S = 60.0, 0.05, 10.0
HEIGHT = 1000


def find_browser() -> str | None:
    """Return the browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def opened_browser(program: str) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it with the block."""
    with tempfile.TemporaryDirectory(prefix="ge-browser-", ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        pipes = [str(theirs_in), str(theirs_out)]
        command = [program, *FLAGS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_PIPES, *pipes, *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_in, ours_out)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            try:
                process.wait(END_S)  # it ends when its pipe does
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Browser:
    """One page of a browser.

    Attributes:
        console: what the page and the browser complained of.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._held = b""
        self._sent = 0
        self._session: str | None = None
        self.console: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> Any:
        """Return what the browser answers."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while (answer := self._next(deadline)).get("id") != self._sent:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def show(self, url: str, *, width: int, scheme: str, height: int = HEIGHT) -> None:
        """Open a page in a window of this width, for a reader who likes it light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, script: str) -> Any:
        """Return what a script in the page comes to."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = LIMIT_S) -> None:
        """Wait until a script in the page is true."""
        deadline = time.monotonic() + seconds
        while not self.ask(script):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {seconds} s: {script}")
            time.sleep(POLL_S)

    def photograph(self) -> bytes:
        """Return the window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _next(self, deadline: float) -> Any:
        while b"\0" not in self._held:
            if not select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            block = os.read(self._reader, 1 << 16)
            if not block:
                raise RuntimeError("the browser has ended")
            self._held += block
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        given = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.console.append(given["entry"]["text"])
        elif event.get("method") in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled"}:
            self.console.append(json.dumps(given))
