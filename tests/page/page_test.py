# SPDX-License-Identifier: Apache-2.0
"""The node's page as a browser shows it, in headless Chromium by its debugging pipe.

Usage: page_test.py BIN_DIR CHROMIUM [--picture FILE.png] [unittest arguments]
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
CHROMIUM = sys.argv.pop(1)
PICTURE = pathlib.Path(sys.argv.pop(1)).resolve() if sys.argv[1:2] == ["--picture"] and sys.argv.pop(1) else None
TIMEOUT_S = 300
KEYS = [f"{i:032x}" for i in range(1, 200)]
# Without what it would tell or ask of others.
ALONE = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--hide-scrollbars")


class Browser:
    """One window of a Chromium of its own."""

    def __init__(self, directory: pathlib.Path, url: str) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()

        def three_and_four() -> None:
            os.dup2(os.dup(commands), 3)
            os.dup2(os.dup(answers), 4)

        self.process = subprocess.Popen(
            [CHROMIUM, *ALONE, "--remote-debugging-pipe", f"--user-data-dir={directory}", "--window-size=1280,1000"],
            preexec_fn=three_and_four, close_fds=False, start_new_session=True, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._next, self._read = 0, b""
        self.requests: list[str] = []
        self.complaints: list[Any] = []
        self.events: set[str] = set()
        self._session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=url)
        while "Page.loadEventFired" not in self.events:
            self._note(self._message())

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser ended"
            self._read += more
        one, self._read = self._read.split(b"\0", 1)
        message: dict[str, Any] = json.loads(one)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        self.events.add(event.get("method", ""))
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(event["params"])

    def value(self, expression: str) -> Any:
        said = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def until(self, condition: str) -> None:
        """As the page itself sees it; ctest's or the caller's watchdog ends what never comes."""
        look = f"const look = () => ({condition}) ? so(true) : setTimeout(look, 20);"
        self.value(f"new Promise((so) => {{ {look} look(); }})")

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # its helpers too, which write into its directory
        self.process.wait()
        os.close(self._to)
        os.close(self._from)


class Page(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(
            prefix=f"cistern-page-{os.getpid()}-", dir="/dev/shm", ignore_cleanup_errors=True
        )
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        self.socket = self.directory / "socket"
        flash = tempfile.TemporaryDirectory(prefix=f"cistern-page-{os.getpid()}-", dir=BIN.parent)
        self.addCleanup(flash.cleanup)
        self.flash = flash.name
        self.start()

    def start(self, *flags: object) -> None:
        self.node = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", BIN / "cisternd", "--memory", "64MiB",
             "--memory-dir", self.directory / "memory", "--socket", self.socket, "--http", "0",
             "--flash", f"{self.flash}:256MiB", "--flash-write", "through", *map(str, flags)],
            stderr=subprocess.PIPE, text=True)
        node = self.node
        self.addCleanup(lambda: (node.kill(), node.wait(), node.stderr and node.stderr.close()))
        assert node.stderr is not None
        while "node ready" not in node.stderr.readline():
            pass
        self.url = f"http://{self.status()['node']['http']}/"

    def browser(self) -> Browser:
        browser = Browser(self.directory / "profile", self.url)
        self.addCleanup(browser.end)
        return browser

    def cistern(self, command: str, *words: object, stdin: bytes = b"", code: int = 0) -> bytes:
        said = subprocess.run([BIN / "cistern", command, "--socket", self.socket, *map(str, words)], input=stdin,
                              capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(said.returncode, code, said.stderr.decode())
        return said.stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.cistern("status", "--json"))
        return status

    def test_it_shows_what_status_says_and_asks_nobody_else(self) -> None:
        body = os.urandom(100_000)
        for number, key in enumerate(KEYS[:20]):
            parent = ("--parent", KEYS[number - 1]) if number else ()
            self.cistern("put", "--namespace", "llama", *parent, key, "-", stdin=body)
        browser = self.browser()
        browser.until("document.querySelectorAll('#namespaces td').length > 0")
        self.cistern("match", "--namespace", "llama", *KEYS[:25])
        browser.until("document.querySelector('#hits-now').textContent === '80.0 %'")  # 20 of 25, until the next look
        self.assertIn("unknown", browser.text("#misses"))
        status = self.status()
        for tier in ("memory", "flash"):
            mebibytes = status[tier]["bytes"] / (1 << 20)
            self.assertIn(f"of {mebibytes:.{int(mebibytes < 100)}f} MiB", browser.text("#tiers"))
        self.assertIn(f"process {status['node']['pid']}", browser.text("#node"))
        self.assertIn("20 blocks", browser.text("#node"))
        [row] = browser.value("[...document.querySelectorAll('#namespaces tr')].slice(1)"
                              ".map((tr) => [...tr.children].map((td) => td.textContent))")
        self.assertEqual((row[0], row[3], row[5]), ("llama", "20", "5"))
        self.assertEqual({url.rsplit("/", 1)[0] + "/" for url in browser.requests}, {self.url})
        self.assertEqual({url.rsplit("/", 1)[1] for url in browser.requests} - {"favicon.ico"}, {"", "status"})
        self.assertEqual([one for one in browser.complaints if "favicon" not in json.dumps(one)], [])

    def test_a_plot_has_axes_and_says_what_is_under_the_pointer(self) -> None:
        body = os.urandom(100_000)
        for number, key in enumerate(KEYS[:4]):
            parent = ("--parent", KEYS[number - 1]) if number else ()
            self.cistern("put", "--namespace", "llama", *parent, key, "-", stdin=body)
        browser = self.browser()
        browser.until("document.querySelectorAll('#namespaces td').length > 0")
        self.cistern("match", "--namespace", "llama", *KEYS[:5])
        browser.until("document.querySelector('#hits-now').textContent === '80.0 %'")
        labels = browser.value("[...document.querySelectorAll('#hits span')].map((span) => span.textContent)")
        self.assertEqual(labels, ["100.0 %", "50.0 %", "0", "1 min ago", "now"])
        [x, y] = browser.value("(() => { const box = document.querySelector('#hits svg').getBoundingClientRect();"
                               " return [box.right - 1, box.top + 9]; })()")
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        browser.until("/^(80.0 %|nothing asked), /.test(document.querySelector('#hits .at')?.textContent)")
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        browser.until("document.querySelector('#hits .at') === null")

    def test_a_slow_call_is_shown_with_where_it_was(self) -> None:
        self.node.kill()
        self.node.wait()
        self.start("--slow-calls", "1us")
        self.cistern("put", "--namespace", "llama", KEYS[0], "-", stdin=os.urandom(100_000))
        browser = self.browser()
        browser.until("document.querySelectorAll('#slow td').length > 4")
        rows = browser.value("[...document.querySelectorAll('#slow tr')].slice(1)"
                             ".map((tr) => tr.children[0].textContent)")
        self.assertIn("write", rows)
        browser.until("/^(core|turn|mover|journal|check) [0-9.]+ (us|ms|s)/.test("
                      "document.querySelector('#slow tr:nth-child(2) td:last-child').textContent)")

    def test_names_are_texts_whatever_a_client_gave(self) -> None:
        name = "<img src=x onerror=document.title='hit'>"
        self.cistern("put", "--namespace", name, KEYS[0], "-", stdin=b"x")
        browser = self.browser()
        browser.until("document.querySelectorAll('#namespaces td').length > 0")
        self.assertEqual(browser.text("#namespaces td"), name)
        self.assertEqual(browser.value("document.images.length"), 0)
        self.assertEqual(browser.value("document.title"), "Cistern")

    def test_a_switch_and_an_end_are_seen_without_a_reload(self) -> None:
        browser = self.browser()
        browser.until("document.querySelector('#node').textContent !== ''")
        self.cistern("admin", "reads", "off")
        browser.until("document.querySelector('#said').textContent === 'reads are switched off'")
        self.cistern("admin", "reads", "on")
        browser.until("document.querySelector('#said').textContent === ''")
        self.node.kill()
        browser.until("document.querySelector('#said').textContent.startsWith('no answer')")

    def test_a_device_out_of_service_is_named(self) -> None:
        [device] = self.status()["flash"]["devices"]
        self.cistern("device", "take-out", device["path"])
        browser = self.browser()
        browser.until("document.querySelector('#tiers').textContent.includes('out of service')")

    def test_picture(self) -> None:
        if PICTURE is None:
            self.skipTest("no --picture")
        names = ("llama-70b", "qwen-32b", "llama-70b-lora")
        body = os.urandom(1 << 20)
        for namespace in names:
            self.cistern("put", "--namespace", namespace, KEYS[0], "-", stdin=body)
        browser = self.browser()
        until = time.monotonic() + 60
        for number in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count()):
            namespace, key = names[number % 3], KEYS[min(number, number * number % 97)]
            self.cistern("match", "--namespace", namespace, key)
            if self.cistern("match", "--namespace", namespace, key).startswith(b"1 "):  # as an engine does
                self.cistern("get", "--namespace", namespace, key, "/dev/null")
            else:
                self.cistern("put", "--namespace", namespace, key, "-", stdin=body)
        height = browser.value("document.querySelector('main').getBoundingClientRect().bottom + 20")
        picture = browser.ask("Page.captureScreenshot", format="png",
                              clip={"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1})
        PICTURE.write_bytes(base64.b64decode(picture["data"]))


if __name__ == "__main__":
    unittest.main()
