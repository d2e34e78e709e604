"""report.html and history.html in a real Chromium without a window: no message on the console, no request, and every curve has a size."""

import json
import re
import shutil
import subprocess

import history_sessions
import page_sessions
import pytest

from verl_regress.base.layout import SharedRoot
from verl_regress.session import report
from verl_verdict.history import history_page

pytestmark = pytest.mark.slow

# scripts/dev/host.bash looks for the same.
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-default-apps", "--disable-dev-shm-usage", "--disable-breakpad",
)  # fmt: skip
_OWN = "not an origin"
# Its policy forbids programs: they are added to a copy without it.
MEASURE = """<script>addEventListener("load", () => {
  const box = element => { const {width, height} = element.getBoundingClientRect(); return [width, height] };
  const isLine = path => path.getAttribute("d").includes("L");
  const colour = name => getComputedStyle(document.body)[name];
  document.querySelectorAll("details").forEach(each => each.open = true);
  const found = {
    pictures: [...document.querySelectorAll("svg")].map(box), page: [innerWidth, document.documentElement.scrollWidth],
    lines: [...document.querySelectorAll("svg g[id$='-a'] > path, svg g[id$='-b'] > path, svg g[id*='-line-'] > path")].filter(isLine).map(box),
    cut: [...document.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth).map(box => box.ariaLabel),
    hidden: [...document.querySelectorAll(".badge")].filter(each => each.getBoundingClientRect().right < 0).length,
    paper: colour("backgroundColor"), ink: colour("color"),
    reachable: [...document.querySelectorAll("a, summary, [tabindex='0']")].every(each => { each.focus(); return document.activeElement === each }),
  };
  parent.postMessage(JSON.stringify(found), "*");
})</script>"""
# A window of Chromium's is at least 500 pixels wide, a frame in it is not.
FRAME = """<iframe src="measured.html" style="width: {}px; height: 844px"></iframe><script>
  addEventListener("message", event => document.documentElement.dataset.found = event.data);
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    outcome = page_sessions.outcome(SharedRoot(tmp_path_factory.mktemp("shared")))
    report.write(outcome)
    return outcome.session.path / "report.html"


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    root = SharedRoot(tmp_path_factory.mktemp("shared"))
    history_sessions.make(root)
    (root.sessions / "history.html").write_text(history_page.html(history_sessions.page(root)))
    return root.sessions / "history.html"


@pytest.fixture
def opened(tmp_path):
    """Opens a page: its DOM after loading, the console's messages, and the addresses that were asked for."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        pytest.fail(f"None of {', '.join(NAMES)} is on this machine: run 'scripts/dev/bootstrap_host.sh --browser'.")

    def opened(path, *options):
        log = tmp_path / "net.json"
        argv = [
            browser,
            *QUIET,
            f"--user-data-dir={tmp_path}/profile",
            f"--log-net-log={log}",
            "--enable-logging=stderr",
        ]
        argv += ["--virtual-time-budget=3000", *options, "--dump-dom", path.as_uri()]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        said = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
        events = json.loads(log.read_text())["events"]
        # The browser's own requests, such as looking for updates, are of no page.
        of_pages = [event["params"] for event in events if event.get("params", {}).get("initiator", _OWN) != _OWN]
        return ended.stdout, said, {request["url"] for request in of_pages if "url" in request}

    return opened


@pytest.fixture
def measured(tmp_path, opened):
    def measured(page, *options, width=1280):
        text = re.sub("<meta http-equiv=[^>]*>", MEASURE, page.read_text(), count=1)
        (tmp_path / "measured.html").write_text(text)
        (tmp_path / "frame.html").write_text(FRAME.format(width))
        dom, said, _ = opened(tmp_path / "frame.html", "--window-size=1400,900", *options)
        assert said == []
        return json.loads(re.search('data-found="([^"]*)"', dom)[1].replace("&quot;", '"'))

    return measured


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("page", "no answer: leaks failed, so the runs were not what was asked for"),
        ("past", "1 change: since v2-3 of git:x@main, 2026-11-24, timing_s/step of grpo is "),
    ],
)
def test_it_opens_without_a_message_and_without_a_request(request, opened, name, answer):
    page = request.getfixturevalue(name)
    dom, said, asked = opened(page)
    assert (said, asked) == ([], set())
    assert answer in dom
    assert dom.count("<svg") == page.read_text().count("<svg") > 0


@pytest.mark.parametrize("has_policy", [True, False])
def test_the_policy_forbids_a_request_and_these_tests_would_see_message_and_request(page, tmp_path, opened, has_policy):
    image = "http://127.0.0.1:9/x.png"
    text = page.read_text().replace("</header>", f'</header><img src="{image}">')
    if not has_policy:
        text = re.sub("<meta http-equiv=[^>]*>", "", text, count=1)
    (tmp_path / "with.html").write_text(text)
    _, said, asked = opened(tmp_path / "with.html")
    assert ("violates the following Content Security Policy directive" in " ".join(said)) == has_policy
    assert asked == (set() if has_policy else {image})


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("name", "single"),
    [
        ("page", 2),  # sft's val/loss has one value of A and one of B
        ("past", 11),  # of PPO, A ran once: all later sessions reused its run
    ],
)
def test_every_curve_is_drawn_and_the_page_fits_its_window(request, measured, name, single, width):
    page = request.getfixturevalue(name)
    found = measured(page, width=width)
    assert len(found["pictures"]) == page.read_text().count("<svg")
    assert all(width > 200 and height > 100 for width, height in found["pictures"])
    assert len(found["lines"]) == 2 * len(found["pictures"]) - single
    assert all(width > 100 for width, _ in found["lines"])
    assert found["page"][1] <= found["page"][0] == width
    assert (found["cut"], found["hidden"]) == ([], 0)
    assert found["reachable"]


@pytest.mark.parametrize("name", ["page", "past"])
def test_it_has_a_light_and_a_dark_theme(request, measured, name):
    page = request.getfixturevalue(name)
    light, dark = measured(page), measured(page, "--blink-settings=preferredColorScheme=0")
    assert (light["paper"], light["ink"]) == ("rgb(245, 246, 248)", "rgb(27, 36, 48)")
    assert (dark["paper"], dark["ink"]) == ("rgb(18, 22, 28)", "rgb(232, 236, 241)")
