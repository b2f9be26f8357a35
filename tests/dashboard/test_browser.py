"""The page in a real browser: a run starts, its curve grows, a second one joins it, a policy plays."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from benchmarks.screenshots import chromium, wait_for
from surefoot.deploy.c.wasm import find_wasm_compiler
from surefoot.runs.pack import unpack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs chromium and chromium-driver"),
]
FIXTURES = Path(__file__).parents[1] / "fixtures"
ODD = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
TRAIN = [
    "--preset",
    "none",
    "--num-envs",
    "2",
    "--total-steps",
    "50M",
    "--log-every",
    "2048",
    "--checkpoint-every",
    "20k",
]


@pytest.fixture
def started():
    """Starts `surefoot …`; ends everything with the test."""
    processes = []

    def start(*words, stdout=subprocess.DEVNULL):
        words = [sys.executable, "-m", "surefoot", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(words, stdout=stdout, stderr=subprocess.DEVNULL, text=True, env=environment))
        return processes[-1]

    yield start
    for process in processes:
        with process:
            process.kill()


@pytest.fixture
def address(started):
    Path("runs").mkdir()
    process = started("ui", "--port", "0", stdout=subprocess.PIPE)
    return re.search(r"http://\S+", process.stdout.readline())[0]


@pytest.fixture
def browser():
    driver = chromium(1400, 900)
    yield driver
    driver.quit()


def points(browser, metric="episode_return"):
    """(curves, the last x of any) of a chart."""
    return browser.execute_script(
        """const plot = document.querySelector(`[data-metric="${arguments[0]}"] .plot`);
        const lines = (plot?.data ?? []).filter((trace) => trace.hoverinfo !== "skip" && trace.x.length);
        return [lines.length, Math.max(0, ...lines.map((trace) => trace.x.at(-1)))];""",
        metric,
    )


def text_of(browser, selector):
    return browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def click(browser, selector):
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_the_page_lives(browser, address, started):
    browser.get(address)
    wait_for(lambda: "No runs here yet" in text_of(browser, "#view"))
    browser.execute_script("window.sameDocument = true")

    trained = [started("train", "CartPole-v1", "--seed", "1", "--name", ODD, "--run-dir", "runs/one", *TRAIN)]
    wait_for(lambda: points(browser)[1] > 0)  # it appears, is chosen and drawn, without a reload
    _, first = points(browser)
    wait_for(lambda: points(browser)[1] > first)
    wait_for(lambda: points(browser)[1] > 2 * first)

    assert ODD in text_of(browser, "#list .title")  # a name is text
    assert "pwned" not in browser.title
    assert not browser.execute_script("return document.querySelectorAll('body script, #list img').length")

    trained.append(started("train", "CartPole-v1", "--algo", "a2c", "--seed", "2", "--run-dir", "runs/two", *TRAIN))
    wait_for(lambda: browser.execute_script("return document.querySelector('[data-run=two] input') !== null"))
    click(browser, "[data-run=two] input")
    wait_for(lambda: points(browser)[0] == 2)

    click(browser, "[data-tab=compare]")
    wait_for(lambda: browser.execute_script("return document.querySelectorAll('#view table').length") == 2)
    shown = text_of(browser, "#view")
    assert "ppo" in shown
    assert "a2c" in shown
    assert "one seed each cannot tell" in shown
    click(browser, "[data-tab=settings]")
    wait_for(lambda: "Differences" in text_of(browser, "#view"))
    click(browser, "[data-tab=instruments]")
    wait_for(lambda: points(browser, "kl")[0] == 2)

    for process in trained:  # they save; films are made at low priority and would wait for the cores
        process.send_signal(signal.SIGTERM)
        process.wait()
    wait_for(lambda: "stopped" in text_of(browser, "#inspector"))
    click(browser, "#watch")
    playing = "const v = document.querySelector('video'); return v.readyState >= 2 && v.currentTime > 0.1"
    busy = "return document.querySelector('#watch').disabled"  # until the film is there, or cannot be made
    wait_for(lambda: browser.execute_script(playing) or not browser.execute_script(busy), 300)
    wait_for(
        lambda: (
            browser.execute_script(playing) or browser.execute_script("return !document.querySelector('video[src]')")
        )
    )
    assert browser.execute_script(playing), text_of(browser, ".player p")

    click(browser, "#inside summary")
    click(browser, "#inside button")
    wait_for(lambda: "as logged, exactly" in text_of(browser, "#replayed"), 300)  # the first update, computed again

    browser.find_element("tag name", "body").send_keys("d")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert browser.execute_script("return window.sameDocument")  # no reload in all of this

    request = urllib.request.Request(f"{address}api/runs", headers={"Host": "evil.com"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)
    assert complaints(browser) == []

    chosen = browser.current_url
    browser.get("about:blank")  # closing the page loses nothing
    browser.get(chosen)
    wait_for(lambda: points(browser, "kl")[0] == 2)


def test_a_zoom_asks_for_finer_rows_and_a_run_that_vanishes_is_no_error(browser, address):
    from benchmarks.many_runs import write_run

    write_run(Path("runs/one"), number=0, rows=6000)
    write_run(Path("runs/two"), number=10, rows=100)
    browser.get(f"{address}#run=one&run=two&focus=two")
    wait_for(lambda: points(browser)[0] == 2)
    count = "return document.querySelector('[data-metric=episode_return] .plot').data[0].x.length"
    assert browser.execute_script(count) < 1000
    plot = browser.find_element("css selector", "[data-metric=episode_return] .plot")
    browser.execute_script("Plotly.relayout(arguments[0], {'xaxis.range': [512000, 768000]})", plot)
    wait_for(lambda: browser.execute_script(count) in range(500, 504))
    shutil.rmtree("runs/two")
    wait_for(lambda: "1 run" in text_of(browser, "#count"))
    wait_for(lambda: points(browser)[0] == 1)
    assert [entry for entry in browser.get_log("browser") if "Content Security" in entry["message"]] == []


def test_experiments_that_look_alike_are_told_apart_and_a_scale_is_kept(browser, address):
    from benchmarks.many_runs import write_run

    for number, rate in enumerate(("0.0003", "0.01")):
        write_run(Path(f"runs/{number}"), number=0, rows=100)
        config = Path(f"runs/{number}/config.toml")
        config.write_text(config.read_text(encoding="utf-8").replace("0.0003", rate), encoding="utf-8")
        rows = [{"step": 512 * i, "update": i, "kl": 10.0**-i, "grad_norm": i * 1e7} for i in range(1, 8)]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        Path(f"runs/{number}/metrics.jsonl").write_text(text, encoding="utf-8")
    browser.get(f"{address}#run=0&run=1&focus=1&tab=instruments")
    wait_for(lambda: "learning_rate=0.0003" in text_of(browser, "#list [data-run='0']"))
    assert "learning_rate=0.01" in text_of(browser, "#list [data-run='1']")
    wait_for(lambda: points(browser, "kl")[0] == 2)
    scale = "return document.querySelector('[data-metric=kl] .plot').layout.yaxis.type"
    assert browser.execute_script(scale) == "linear"
    click(browser, "[data-metric=kl] [aria-pressed]")
    wait_for(lambda: browser.execute_script(scale) == "log")
    assert "log=kl" in browser.current_url
    browser.refresh()
    wait_for(lambda: points(browser, "kl")[0] == 2)
    assert browser.execute_script(scale) == "log"
    wait_for(lambda: "20M" in text_of(browser, "[data-metric=grad_norm]"))
    assert complaints(browser) == []  # exponents, too, obey the policy


CHOOSE = """const node = document.querySelector(arguments[0]);
node.value = arguments[1];
node.dispatchEvent(new Event("change"));"""
COMPILE = """try { new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])); return "compiled"; }
catch (error) { return String(error); }"""


@pytest.mark.parametrize("where", ["browser", "server"])
def test_a_policy_balances_the_pole_in_the_player(browser, address, where):
    if where == "browser" and find_wasm_compiler() is None:
        pytest.skip("there is no compiler for WebAssembly")
    name = "<img src=x onerror=\"document.title='pwned'\">"
    unpack(FIXTURES / "cartpole-500.zip", Path("runs") / name)
    browser.get(address)
    assert "Content Security Policy" in browser.execute_script(COMPILE)  # only the player may
    wait_for(lambda: text_of(browser, "#inspector .button") == "Open the player")
    browser.get_log("browser")
    browser.find_element("tag name", "body").send_keys("p")
    wait_for(lambda: text_of(browser, "#step").isdigit() and int(text_of(browser, "#step")) > 0)
    assert browser.execute_script(COMPILE) == "compiled"
    browser.execute_script(CHOOSE, "#actor", where)
    browser.execute_script(CHOOSE, "#speed", "16")
    wait_for(lambda: "Episode 1" in text_of(browser, "#said"), 300)
    browser.find_element("tag name", "body").send_keys(" ")
    wait_for(lambda: text_of(browser, "#toggle") == "Play")
    assert text_of(browser, "#mean") == "500"
    assert "return 500 after 500 steps (the limit of steps)" in text_of(browser, "#said")
    assert browser.execute_script("return document.querySelector('#actor').value") == where
    assert text_of(browser, "#about") == name
    assert "pwned" not in browser.title
    browser.find_element("tag name", "body").send_keys("n")
    wait_for(lambda: text_of(browser, "#step") == "0")
    browser.find_element("tag name", "body").send_keys("d")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert complaints(browser) == []
    click(browser, "#back")
    wait_for(lambda: name in text_of(browser, "#inspector"))


def test_the_player_shows_a_film_of_other_envs(browser, address):
    shutil.copytree(FIXTURES / "runs-0.1.0" / "trpo-discrete", "runs/lake")
    browser.get(f"{address}play?run=lake")
    wait_for(lambda: "Filmed by the server" in text_of(browser, "#how") or text_of(browser, "#note"), 300)
    assert text_of(browser, "#note") == ""
    playing = "const v = document.querySelector('#film'); return v.readyState >= 2 && v.currentTime > 0"
    wait_for(lambda: browser.execute_script(playing))
    assert browser.execute_script("return document.querySelector('#live').hidden")
    assert complaints(browser) == []
