"""The page in a browser: a document added, watched, asked about, opened at its page, judged; read by axe-core."""

import os
import shutil
from pathlib import Path

import pytest
from service_clients import pdf

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("TEST_CHROMIUM", "") or shutil.which("chromium") or ""
AXE = Path(os.environ.get("TEST_AXE", Path(__file__).parents[2] / ".venv" / "axe-core" / "axe.min.js"))
QUESTION = "How many hours does the zebrafinch sleep?"
ANSWER = "The zebrafinch sleeps ten hours in its nest."
WAIT_MS = 60_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine; install Debian's package chromium, or set TEST_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def url(make_app, serve):
    return serve(make_app(settings={"document_workers": 1}))


@pytest.fixture
def page(browser, url):
    """A page of the service, which must complain about nothing."""
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 900})
    made, complaints = context.new_page(), []
    made.set_default_timeout(WAIT_MS)
    made.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    refused = "Failed to load resource: the server responded with a status of 422"  # as some tests want
    made.on("pageerror", lambda err: complaints.append(str(err)))
    made.on("request", lambda sent: sent.url.startswith(url) or complaints.append(f"asked {sent.url}"))
    yield made
    context.close()
    assert not [one for one in complaints if not one.startswith(refused)]


def ask(page, question=QUESTION):
    page.goto("/")
    page.keyboard.press("Escape")
    page.locator("body").press("/")
    page.keyboard.type(question)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#card .facts")


def test_from_a_file_to_a_judgment(page):
    page.goto("/documents")
    heron = "Birds of the town. The heron stands still for a long time and eats fish."
    paper = pdf(heron, f"{ANSWER} It sings at dawn.")  # the second page holds the answer
    page.set_input_files("#file", {"name": "birds.pdf", "mimeType": "application/pdf", "buffer": paper})
    page.fill("#upload-index", "birds")
    page.click("#upload button")
    page.wait_for_selector("#uploads li:has-text('received')")
    page.wait_for_selector("#document-rows tr:has-text('birds') .status.indexed")
    ask(page)
    assert ANSWER in page.inner_text("#card .answer")
    assert page.inner_text("#status") == "The answer is complete."
    page.click("#card [aria-label='Good answer']")
    page.wait_for_selector(".thumbs:has-text('Thank you')")
    page.click(".sources a")
    page.wait_for_selector("mark#span")
    assert (page.inner_text("#span"), page.inner_text("#page")) == (ANSWER, "page 2")
    assert page.evaluate("document.getElementById('span').getBoundingClientRect().top < innerHeight")
    page.goto("/history")
    page.click(f"#entries a:has-text('{QUESTION}')")
    page.wait_for_selector("text=5 of 5")


def test_dropped_files_and_what_fails(page):
    page.goto("/documents")
    page.evaluate(
        """() => {
            const files = new DataTransfer();
            files.items.add(new File(["%PDF-1.4 broken"], "broken.pdf"));
            files.items.add(new File(["MZ"], "program.exe"));
            const event = new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true});
            document.querySelector("#upload p").dispatchEvent(event);
        }"""
    )
    page.wait_for_selector("#document-rows tr:has-text('broken') .status.failed")
    assert page.inner_text("#document-rows tr:has-text('broken') .note")
    assert "received" not in page.inner_text("#uploads li:has-text('program.exe')")
    page.click("[aria-label='Switch off broken']")
    page.wait_for_selector("[aria-label='Switch on broken']")


def test_problems_are_said_and_answers_can_be_stopped(page):
    page.goto("/")
    page.evaluate("document.getElementById('query').value = '   '")
    page.click("#ask button")
    page.wait_for_selector("#message:has-text('blank')")
    assert page.is_enabled("#ask button")


def focus_on(page, label, most=80):
    """Go to what has a label, by the tabulator alone; each stop on the way shows that it has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
                const found = document.activeElement;
                const name = found.ariaLabel || found.labels?.[0]?.firstChild.data || found.innerText;
                return [name, getComputedStyle(found).outlineStyle];
            }"""
        )
        if page.evaluate("document.activeElement !== document.body"):
            assert outline != "none", name
        if (name or "").strip() == label:
            return
    raise AssertionError(f"the tabulator does not come to {label}")


def test_signing_in_and_out(browser, make_app, serve, keys):
    page = browser.new_page(base_url=serve(make_app()))
    page.goto("/documents")
    for key, then in (("ar_wrong", "text=not known"), (keys["ask"], "#document-rows")):
        page.fill("[name=key]", key)
        page.keyboard.press("Enter")
        page.wait_for_selector(then)
    page.click("text=Sign out")
    page.wait_for_selector("[name=key]")
    page.close()


def test_everything_can_be_done_with_the_keyboard(page):
    page.goto("/")
    page.evaluate("document.activeElement.blur()")
    focus_on(page, "Skip to content")
    page.keyboard.press("Enter")
    focus_on(page, "Question")
    page.keyboard.type("How many hours does the cat sleep?")
    focus_on(page, "Ask")
    page.keyboard.press("Enter")
    page.wait_for_selector("#card .facts")
    focus_on(page, "Good answer")
    page.keyboard.press("Enter")
    page.wait_for_selector(".thumbs:has-text('Thank you')")
    page.goto("/documents")
    focus_on(page, "Switch off cats")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-label='Switch on cats']")
    assert page.evaluate("document.activeElement.ariaLabel") == "Switch on cats"  # the focus stays where it was
    page.keyboard.press("Space")
    page.wait_for_selector("[aria-label='Switch off cats']")
    page.goto("/history")
    focus_on(page, "How many hours does the cat sleep?")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('A question of the history')")
    assert page.inner_text("[aria-current]") == "History and analytics"
    focus_on(page, "Route it again")
    page.keyboard.press("Enter")
    page.wait_for_selector("#replay:has-text('the same way')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_every_view_can_be_read_by_everybody(browser, url, scheme, width):
    if not AXE.is_file():
        pytest.skip("no axe-core; .ci/run gets it from npm, or set TEST_AXE to its axe.min.js")
    axe = AXE.read_text(encoding="utf-8")
    context = browser.new_context(base_url=url, color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    found = {}
    ask(page, "How many hours does the cat sleep?")
    for view in ("/", "/source", "/compare", "/documents", "/history", "/indexes", "/settings", "/login"):
        if view == "/source":
            page.click(".sources a")
        elif view != "/":
            page.goto(view)
        if view == "/compare":
            page.fill("#query", "How many hours does the cat sleep?")
            page.click("form.stack button")
            page.wait_for_selector(".columns")
        page.evaluate(f"{axe};0")
        told = page.evaluate("axe.run().then((all) => all.violations.map((one) => [one.impact, one.id, one.help]))")
        found[view] = [one for one in told if one[0] in {"serious", "critical"}]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than the screen"
    context.close()
    assert not any(found.values()), found
