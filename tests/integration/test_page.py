"""The page of a running job in a real browser, and its metrics in a real Prometheus.

With ``FLINKPLUS_SCREENSHOTS=docs/images`` in the environment the test writes the screenshots of the documents there.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import JobHandle, StreamEnvironment
from tests.documents import ROOT, all_blocks
from tests.integration.conftest import wait_for_checkpoint, wait_until
from tests.typed import Command

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

PATIENCE_MS = 60_000.0
NARROW = 360
WITHOUT_NAMES = """() => [...document.querySelectorAll('button, input, select, [role=img], [role=group], table')]
    .filter((one) => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.labels?.length
        || one.caption?.textContent || one.textContent.trim())).map((one) => one.outerHTML)"""


@contextmanager
def shown_job(spark: SparkSession, **options: Any) -> Iterator[JobHandle]:
    """Two stages at a steady rate, with event time; the checkpoints have begun."""
    env = StreamEnvironment(spark, parallelism=3, checkpoint_interval=0.5, hang_timeout=5.0, ui=True, **options)
    rows = env.generate(lambda i: {"n": i % 1000, "at": i * 1000}, schema="n long, at long", name="numbers")
    rows.throttle(5_000.0).key_by("n").count(name="count").discard(name="out")
    with env.execute("shown") as job:
        wait_for_checkpoint(job, 2)
        yield job


@contextmanager
def browser() -> Iterator[Any]:
    """A real Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


def keep_screenshot(page: Any, name: str, directory: Path) -> None:
    place = os.environ.get("FLINKPLUS_SCREENSHOTS")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=str((ROOT / place if place else directory) / name))


def await_text(page: Any, selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)",
        arg=[selector, text],
        timeout=PATIENCE_MS,
    )


def test_a_browser_sees_a_kill_and_commands_the_job(spark: SparkSession, tmp_path: Path, command: Command) -> None:
    kept = tmp_path / "kept"
    with browser() as chromium, shown_job(spark, checkpoint_dir=str(kept), ui_linger=60.0) as job:
        page = chromium.new_page(viewport={"width": 1100, "height": 1500}, color_scheme="light")
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        requested: set[str] = set()
        page.on("request", lambda request: requested.add(request.url))
        page.goto(job.ui)
        await_text(page, "#state", "running")
        assert page.title() == "shown: running"
        await_text(page, "#graph svg", "count+out")
        assert not page.is_visible("#commands") and page.is_visible("#locked")

        # A kill: the phases as a bar, the promotion, the slot's return.
        assert job.kill("count:1")
        await_text(page, "#moves tbody tr", "standby")
        wait_until(lambda: job.recoveries()[0]["caught_up_ms"] is not None, "the failover is over")
        total = f"{job.recoveries()[0]['recovery_ms']:,.1f}".removesuffix(".0")
        await_text(page, "#moves tbody tr", total)
        label = page.get_attribute("#moves .bar", "aria-label")
        assert all(f"{phase} " in label for phase in ("detect", "fence", "promote", "restore", "replay"))
        await_text(page, "#tiles", "1, 0 fell back")
        wait_until(lambda: len(job.slot_pids()) == 3, "the slot is back")
        page.wait_for_function("() => document.querySelectorAll('.slot.away').length === 0", timeout=PATIENCE_MS)
        await_text(page, "#checkpoints", "complete")
        assert page.evaluate(WITHOUT_NAMES) == []
        page.wait_for_timeout(4000)
        keep_screenshot(page, "page.png", tmp_path)

        assert_a_wrong_token_is_refused(page)
        assert_the_right_token_commands(page, job, command, kept)
        assert_keyboard(page)
        assert_narrow_and_dark(page, tmp_path)
        assert problems == []
        assert [url for url in requested if not url.startswith(str(job.ui)) and url != "about:blank"] == []

        assert [json.loads(line)["name"] for line in command("list", "--json")[1].splitlines()] == ["shown"]
        assert command("cancel", "--checkpoint-dir", kept)[:2] == (0, "job shown has ended\n")
        await_text(page, "#state", "cancelled")
        assert job.wait(30) and job.state == "cancelled"


def assert_a_wrong_token_is_refused(page: Any) -> None:
    page.click("#ask-token")
    page.fill("#token", "0" * 64)
    page.press("#token", "Enter")
    await_text(page, "#token-why", "The job refuses this token")
    assert page.is_visible("#unlock") and not page.is_visible("#commands")
    assert page.evaluate("sessionStorage.getItem('token')") is None


def assert_the_right_token_commands(page: Any, job: JobHandle, command: Command, kept: Path) -> None:
    code, address, _ = command("ui", "--checkpoint-dir", kept)
    assert code == 0 and address.startswith(str(job.ui))
    page.goto("about:blank")  # another fragment alone would not load the page again
    page.goto(address.strip())
    page.wait_for_selector("#commands", state="visible", timeout=PATIENCE_MS)
    assert page.url == job.ui, "the token does not stay in the address"
    page.select_option("#inject [name=fault]", "exception")
    page.wait_for_function("() => document.querySelectorAll('#targets option').length > 3", timeout=PATIENCE_MS)
    page.select_option("#targets", "count+out:1")
    page.click("#inject button")
    assert "exception into count+out:1" in page.inner_text("#confirm-text")
    page.click("#confirm button[value=no]")
    page.wait_for_timeout(300)
    assert job.metrics()["failovers"] == 1 and page.inner_text("#done") == ""
    page.click("#inject button")
    page.click("#confirm button[value=yes]")
    await_text(page, "#done", "fault exception")
    wait_until(lambda: job.metrics()["failovers"] == 2, "the injected exception")
    page.fill("#rescale input", "1000")
    page.click("#rescale button")
    page.click("#confirm button[value=yes]")
    await_text(page, "#done", "rescale was refused")


def assert_keyboard(page: Any) -> None:
    """What has the focus keeps it while the page shows new figures."""
    page.focus("body")
    page.keyboard.press("Tab")
    page.wait_for_timeout(200)
    page.evaluate("document.querySelector('.cell').focus()")
    page.keyboard.press("Enter")
    await_text(page, "#picked", "busy")
    page.wait_for_timeout(1500)
    assert page.evaluate("document.activeElement.className.startsWith('cell')")
    assert page.get_attribute(".cell", "aria-pressed") == "true"


def assert_narrow_and_dark(page: Any, directory: Path) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.set_viewport_size({"width": NARROW, "height": 800})
    page.wait_for_timeout(600)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, "nothing is cut off at the side"
    keep_screenshot(page, "page-narrow.png", directory)


# --- Prometheus


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def test_prometheus_scrapes_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """The configuration of docs/ui.md, with the port of this job; Prometheus's own check of names and units."""
    prometheus, promtool = shutil.which("prometheus"), shutil.which("promtool")
    if prometheus is None or promtool is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    (block,) = (block for block in all_blocks() if block.language == "yaml")
    with shown_job(spark) as job:
        assert job.ui is not None
        with urllib.request.urlopen(f"{job.ui}metrics", timeout=30) as response:
            text = response.read()
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, b"")
        target = urllib.parse.urlsplit(job.ui).netloc
        assert "127.0.0.1:8080" in block.text
        config = tmp_path / "prometheus.yml"
        config.write_text("global: {scrape_interval: 500ms}\n" + block.text.replace("127.0.0.1:8080", target))
        address = f"127.0.0.1:{free_port()}"
        arguments = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        with open(tmp_path / "log", "wb") as log:
            server = subprocess.Popen(
                [prometheus, *arguments, f"--web.listen-address={address}"], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            query = _querying(address)
            wait_until(lambda: query("sum(rate(flinkplus_rows_total{direction='out'}[5s])) > 1000") != [], "a rate")
            assert {one["metric"]["vertex"] for one in query("flinkplus_rows_total")} == {"numbers", "count+out"}
            assert query("up")[0]["value"][1] == "1"
            assert job.kill("count:1")
            wait_until(lambda: query("flinkplus_failovers_total == 1") != [], "the failover")
            wait_until(lambda: query("flinkplus_last_recovery_phase_seconds{phase='recovery'} > 0") != [], "its time")
        finally:
            server.terminate()
            server.wait(30)


def _querying(address: str) -> Callable[[str], list[dict[str, Any]]]:
    def query(text: str) -> list[dict[str, Any]]:
        """The instant vector; empty until Prometheus answers."""
        try:
            url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': text, 'time': time.time()})}"
            with urllib.request.urlopen(url, timeout=10) as response:
                found: list[dict[str, Any]] = json.load(response)["data"]["result"]
                return found
        except OSError:
            return []

    return query
