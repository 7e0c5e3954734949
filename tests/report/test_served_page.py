"""The page of a step with parameter servers: the same page, in its own words."""

from __future__ import annotations

import html
import re

import pytest

from caramel.core.errors import PlanError
from caramel.core.names import pulled_from
from caramel.core.timeline import Span, Timeline
from caramel.planning.serving.explain import explain_order
from caramel.report.page import html_page
from caramel.report.shown_order import ShownOrder
from tests.planning.test_ahead import ORDER, WORKER, plan_of
from tests.planning.test_explain_step import explained
from tests.report.test_page import Outline


def texts(page: str) -> str:
    return re.sub(
        r"\s+",
        " ",
        html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.S)),
    )


def test_the_page_tells_of_transfers_and_draws_the_servers_links():
    page = html_page(explained(frozenset({"last"})))
    Outline(page)
    text = texts(page)
    for part in (
        "train on 1 worker and 1 server",
        "on /job:ps/task:0; 1 of 2 are sent ahead. Order: by TIC.",
        "Limited by the wire.",
        "Worker 0",
        "Server 0",
        "parameter, sent ahead for the next step",
        "gradient of first",
        "Transfers in order of transfer",
        "2 of 2 transfers",
        "1, in order /job:ps/task:0 1",
        "2, ahead /job:ps/task:0",
        "'forward_first' needs it",
    ):
        assert part in text, part
    assert "roup" not in text


def test_what_was_measured_of_orders_is_on_it():
    spans = [Span("receive", pulled_from(0, 0, n), k, k + 1.0) for k, n in enumerate(ORDER)]
    page = html_page(explained(measured=(Timeline((*spans, Span("compute", "op", 0.0, 4.0))),)))
    assert 'id="orders"' in page
    for part in ("Orders of arrival 1 of all workers in 1 traced steps", "U 6.00 s", "L 4.00 s"):
        assert part in texts(page), part
    assert 'id="orders"' not in html_page(explained())


def test_without_times_there_is_a_table_and_no_page(tmp_path):
    shown = ShownOrder.of(explain_order(plan_of(), "by TIC", None), None)
    with pytest.raises(PlanError, match=r"a page needs times, .* give PSModel\(profile="):
        shown.save_page(tmp_path / "page.html")
    assert shown._repr_html_().startswith("<pre>")


def test_what_is_explained_can_be_saved_and_shown_in_a_notebook(tmp_path):
    plan = plan_of()
    shown = ShownOrder.of(explain_order(plan, "by TIC", WORKER), explained())
    shown.save_page(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == html_page(explained())
    assert shown._repr_html_().startswith("<iframe")
    assert [each.variable for each in shown.transfers] == list(ORDER)
