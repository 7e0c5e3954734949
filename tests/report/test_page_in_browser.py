"""What the page shows in a real browser, and what it does when it is clicked at."""

from __future__ import annotations

import re

import pytest

import caramel
from caramel.core.util.sizes import bytes_texts
from caramel.planning.options import Options
from caramel.report.page import html_page
from caramel.report.shown import framed
from tests.support import browser
from tests.support.explanations import resnet, trained
from tests.support.networks import network, slow_facts, tf
from tests.support.networks import wide as fully_connected

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.MISSING), reason=f"not on PATH: {browser.MISSING}"),
]

EXPLANATION = trained(resnet(8))
BY_SIZE = sorted(EXPLANATION.groups, key=lambda group: group.size_bytes)
NAMES = "#groups tbody tr:not([hidden]) .name"
SIZES = "#groups tbody tr:not([hidden]) td:nth-child(2)"

_TOLD_HEIGHT = """
const frame = document.querySelector("iframe");
return new Promise((done) => {
  const tell = () => { if (frame.offsetHeight !== 800) done(frame.offsetHeight); };
  new ResizeObserver(tell).observe(frame);
});
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "explanation.html"
    path.write_text(html_page(EXPLANATION), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def wide():
    with browser.browser(width=1280) as page:
        yield page


@pytest.fixture
def page(wide, file):
    wide.messages(), wide.requests()
    wide.open(file)
    yield wide
    assert wide.messages() == []
    assert wide.requests() == [file.as_uri()]


def test_the_key_numbers_can_be_read(page):
    assert page.text("h1") == "resnet_v1_50, batch 32 on 8 workers"
    assert page.texts(".figures dd:not(.quiet)") == [
        "1.64 s",
        "1.55 s",
        "3.17 \u00d7",
        "1.19 \u00d7",
        "0.650 s",
        "1.49 s",
        "2.30",
        "0.920",
        "42 %",
    ]
    assert page.texts("#step tbody tr") == [
        "Predicted step\t1.546 s",
        "Measured step\t1.639 s",
        "Unplanned step, predicted\t1.839 s",
        "Computation\t0.650 s",
        "Wire limit\t1.494 s",
    ]


def test_what_limits_the_step_and_what_would_help_can_be_read(page):
    assert page.text(".lead").startswith("Limited by the wire. Each worker must send for 1.494 s")
    assert page.texts("#limits tbody tr")[0] == (
        "global-norm clipping makes every update wait\t0.210 s"
    )
    assert page.texts("#what-if tbody tr")[:2] == [
        "twice the bandwidth\t0.710 s\t1.30 \u00d7\tcomputation becomes the bound",
        "batch 64\t1.320 s\t1.41 \u00d7\twire hidden entirely",
    ]


def test_bars_are_as_long_as_the_times_that_they_show(page):
    lengths = page.run(
        "return [...document.querySelectorAll('#step .bar')]"
        ".map(bar => bar.getBoundingClientRect().width)"
    )
    assert lengths[0] / lengths[3] == pytest.approx(
        EXPLANATION.step_s / EXPLANATION.computation_s, rel=0.01
    )


def test_there_is_a_row_for_each_group_and_the_largest_misses(page):
    assert page.texts(NAMES) == [group.name for group in EXPLANATION.groups]
    assert page.text("#count") == "54 of 54 groups"
    assert page.texts("#misses tbody th") == [group.name for group in EXPLANATION.misses[:10]]


def test_a_click_sorts_by_size_and_another_one_the_other_way(page):
    size = "#groups thead th:nth-child(2)"
    page.click(f"{size} button")
    assert page.texts(SIZES) == [*bytes_texts([group.size_bytes for group in BY_SIZE])]
    assert page.run(f"return document.querySelector('{size}').ariaSort") == "ascending"
    page.click(f"{size} button")
    assert page.texts(SIZES) == [*reversed(bytes_texts([group.size_bytes for group in BY_SIZE]))]
    page.click("#groups thead th:first-child button")
    assert page.texts(NAMES) == [group.name for group in EXPLANATION.groups]


def test_groups_are_found_by_parameter(page):
    page.type("#find", "BLOCK1/unit_1/")
    assert page.text("#count") == "4 of 54 groups"
    assert len(page.texts(NAMES)) == 4
    page.type("#find", "bottleneck_v1/shortcut/w")
    assert page.texts(NAMES) == ["group_52"]


def test_groups_are_found_by_place(page):
    page.type("#place", "deferred")
    assert page.texts(NAMES) == [group.name for group in EXPLANATION.groups if group.deferred]


def test_pointing_at_a_transfer_says_what_it_is_and_lights_it_up_on_all_workers(page):
    page.point_at('.timeline rect[data-g="3"]')
    assert re.fullmatch(r"group_3: [\d.,]+ to [\d.,]+ ms \([\d.]+ m?s\).*", page.text("#tip"))
    groups = page.run("return [...document.querySelectorAll('.lit')].map(each => each.dataset.g)")
    assert len(groups) > 8
    assert set(groups) == {"3"}


def test_a_click_at_a_transfer_leads_to_its_group(page):
    page.click('.timeline rect.in-step[data-g="7"]')
    assert page.text("tr:target .name") == "group_7"


def test_the_timeline_can_be_stretched(page):
    def width():
        return page.run("return document.querySelector('.stretch').offsetWidth")

    fitting = width()
    page.click('[data-zoom="2"]')
    assert width() == pytest.approx(2 * fitting, abs=2)
    page.click('[data-zoom="0"]')
    assert width() == fitting


def test_the_other_workers_can_be_unfolded(page):
    assert page.texts(".timeline h3")[:4] == [f"Worker {number}" for number in range(4)]
    assert "Worker 7" not in page.text(".timeline")
    page.click(".timeline summary")
    assert "Worker 7" in page.text(".timeline")


def test_a_phone_shows_cards_that_can_be_sorted_and_nothing_is_wider_than_the_screen(file):
    with browser.browser(width=390, height=800, dark=True) as phone:
        phone.open(file)
        assert phone.run("return document.documentElement.scrollWidth") == 390
        assert phone.run("return getComputedStyle(document.body).backgroundColor") == (
            "rgb(20, 22, 27)"
        )
        phone.click("#groups thead th:nth-child(2) button")
        assert phone.texts(NAMES)[0] == BY_SIZE[0].name
        assert phone.texts("#groups td.reason")[0].startswith("ready too late to be deferred")
        assert phone.messages() == []


def test_without_javascript_everything_is_there_but_what_needs_it(file):
    with browser.browser(scripts=False) as plain:
        plain.open(file)
        assert plain.text("h1") == "resnet_v1_50, batch 32 on 8 workers"
        assert plain.texts(NAMES) == [group.name for group in EXPLANATION.groups]
        assert plain.text(".controls") == ""
        assert plain.text(".zoom") == ""
        assert plain.messages() == []


def test_the_page_of_a_job_that_is_trained(wide, tmp_path, monkeypatch):
    """Nothing is made up here: the plan, its explanation and the traced steps are the product's."""
    monkeypatch.setattr("caramel.planning.what_if.explain.QUICK", Options(budget_tasks=2_000))
    job = network("adam", "clip_by_global_norm", model=fully_connected, dtype=tf.float32)
    context = job.context()
    context.name = "digits"
    model = caramel.ARModel(context, 2, analyzers=slow_facts(2))
    with model.session(trials=None) as session:
        for _ in range(3):
            session.step(job.feed)
        explanation = model.explain(session.trace(3, job.feed), measured_step_s=0.01)
    file = tmp_path / "explanation.html"
    file.write_text(html_page(explanation), encoding="utf-8")
    wide.messages(), wide.requests()
    wide.open(file)
    assert wide.text("h1") == f"{context.name} on 2 workers"
    assert wide.text(".lead").startswith("Limited by the wire. ")
    assert sorted(wide.texts(NAMES)) == sorted(group.name for group in model.plan.decision.groups)
    assert wide.texts("#misses tbody th") == [g.name for g in explanation.misses[:10]]
    limits = [text.partition("\t")[0] for text in wide.texts("#limits tbody tr")]
    assert limits == [limit.sentence for limit in explanation.limits] != []
    first, second = wide.texts("#what-if tbody tr")[:2]
    assert first.startswith("twice the bandwidth\t")
    assert second.startswith("ten times the bandwidth\t")
    assert wide.messages() == []
    assert wide.requests() == [file.as_uri()]


def test_the_page_of_a_job_with_parameter_servers(wide, tmp_path):
    """Likewise; servers' links stand behind the first worker, and the table is one of transfers."""
    job = network("adam", model=fully_connected, dtype=tf.float32)
    context = job.context()
    model = caramel.PSModel(context, 2, 2, analyzers=slow_facts(2))
    with model.session(trials=None) as session:
        for _ in range(3):
            session.step(job.feed)
        shown = model.explain(session.trace(3, job.feed), measured_step_s=0.01)
    file = tmp_path / "order.html"
    shown.save_page(file)
    wide.messages(), wide.requests()
    wide.open(file)
    assert wide.text("h1") == f"{context.name} on 2 workers and 2 servers"
    variables = [pull.variable for pull in model.plan.decision.pulls]
    assert wide.texts(NAMES) == variables
    assert wide.texts(".timeline h3") == ["Worker 0", "Server 0", "Server 1", "Worker 1"]
    assert wide.text("#orders").startswith("Orders of arrival")
    wide.type("#find", variables[0])
    assert wide.text("#count") == f"1 of {len(variables)} transfers"
    wide.click('.timeline rect[data-g="0"]')
    assert wide.text("tr:target .name") == variables[0]
    assert wide.messages() == []
    assert wide.requests()[0] == file.as_uri()


def test_in_a_notebook_the_page_is_as_long_as_it_is(wide, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><body>{framed(EXPLANATION)}</body>", encoding="utf-8")
    wide.messages()
    wide.open(file)
    height = wide.run(_TOLD_HEIGHT)
    assert height > 3000
    assert wide.messages() == []
