"""Pictures of `surefoot ui` for the docs, made by a headless Chromium from runs that are trained for it.

    python benchmarks/screenshots.py [--runs DIR]

Trains PPO, A2C and TRPO on CartPole-v1 with five seeds each (a minute or two), unless DIR has runs already, and writes
docs/images/ui-light.png and ui-dark.png. Needs Debian's `chromium` and `chromium-driver`, and `pip install selenium`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def chromium(width: int, height: int, *, dark: bool = False) -> webdriver.Chrome:
    """A headless browser whose console is kept. As root it needs --no-sandbox."""
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.add_argument(f"--window-size={width},{height}")
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    return driver


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    """Until the condition holds; TimeoutError if it never does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen in {seconds} seconds")
        time.sleep(0.1)


def train(folder: Path) -> None:
    for algo in ("ppo", "a2c", "trpo"):
        for seed in range(5):
            words = ["train", "CartPole-v1", "--algo", algo, "--preset", "none", "--seed", str(seed), "--num-envs", "8"]
            words += ["--total-steps", "60k", "--eval-every", "10k", "--run-dir", str(folder / algo / f"seed-{seed}")]
            _surefoot(*words)
    _surefoot("video", str(folder / "ppo" / "seed-4"))


def _surefoot(*words: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "surefoot", *words], check=True, capture_output=True, env=environment)


def shoot(address: str, file: Path, width: int, height: int, *, dark: bool = False, tab: str = "curves") -> None:
    driver = chromium(width, height, dark=dark)
    try:
        driver.get(address)
        runs = driver.execute_async_script("fetch('/api/runs').then((a) => a.json()).then(arguments[0])")["runs"]
        ids = [run["id"] for run in runs if run["env"] == "CartPole-v1"]
        focus = next((id for id in ids if id.endswith("ppo/seed-4")), ids[0])
        driver.get("about:blank")
        driver.get(f"{address}#{urlencode({'run': ids, 'focus': focus, 'tab': tab}, doseq=True)}")
        ready = "return document.querySelectorAll('.plot .scatterlayer, #view table').length > 0"
        wait_for(lambda: driver.execute_script(ready))
        time.sleep(2)  # the other charts and the first frame of the video
        driver.save_screenshot(str(file))
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="a folder that has runs, or will have them")
    parser.add_argument("--out", type=Path, default=IMAGES, help="where the pictures go [docs/images]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = arguments.runs or Path(folder) / "runs"
        if not any(runs.rglob("manifest.json")):
            train(runs)
        words = [sys.executable, "-m", "surefoot", "ui", "--runs", runs.name, "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, encoding="utf-8", cwd=runs.parent) as server:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            try:
                shoot(found[0], arguments.out / "ui-light.png", 1360, 850)
                shoot(found[0], arguments.out / "ui-dark.png", 1360, 850, dark=True)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
