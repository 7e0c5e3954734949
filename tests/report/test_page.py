"""The page's text: whole, escaped, self-contained and small. A browser looks at it elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from caramel.core.timeline import Timeline
from caramel.report.markup import Markup, element, joined, raw
from caramel.report.page import html_page
from caramel.report.page_groups import groups_table
from tests.support.explanations import SMALL, many_groups, resnet, trained

VOID = {"input", "link", "meta"}


class Outline(HTMLParser):
    """Checks that every element ends where it must, and collects elements and their attributes."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


# Markup -----------------------------------------------------------------------------------------


def test_text_is_escaped_and_elements_are_not():
    assert element("b", "1 < 2", element("i", "a & b")) == "<b>1 &lt; 2<i>a &amp; b</i></b>"
    assert joined("<", Markup("<hr>"), None) == "&lt;<hr>"


def test_attributes_are_escaped_and_left_out_if_they_are_not_set():
    made = element("td", title='"<', class_="x", data_v=3, hidden=True, id=None, lang=False)
    assert made == '<td title="&quot;&lt;" class="x" data-v="3" hidden></td>'


def test_elements_without_content_have_no_end():
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_a_script_cannot_end_itself():
    assert raw("script", "1 < 2\n") == "<script>\n1 < 2\n</script>"
    with pytest.raises(ValueError, match="contains its end tag"):
        raw("script", "'</SCRIPT>'")


# The page ---------------------------------------------------------------------------------------


def test_a_row_of_the_table_has_everything_about_a_group():
    rows = re.findall(r"<tr id=.*?</tr>", groups_table(SMALL))
    assert len(rows) == 2
    assert rows[1].startswith(
        '<tr id="g1" data-place="in-step"><th scope="row" data-v="1">'
        '<span class="name">early</span>'
        "<details><summary>2 parameters</summary><ul><li>conv/kernel</li><li>conv/bias</li></ul>"
        '</details></th><td class="number" data-v="2097152" data-label="Size">2.10 MB</td>'
        '<td class="place" data-label="Place"><span class="key in-step"></span>in-step</td>'
        '<td data-label="Pattern">shuffle</td>'
        '<td class="number" data-v="2" data-label="Depth">2</td>'
        '<td class="number" data-v="0.35" data-label="Ready">350.0</td>'
        '<td class="number" data-v="0.01" data-label="Needed">10.0</td>'
        '<td class="number" data-v="0.5" data-label="Predicted">350.0\u2013500.0</td>'
        '<td class="picture" data-label="Window, two steps"><svg height="22"'
    )
    assert rows[1].endswith(
        '<td class="reason" data-label="Reason">ready last, needed first'
        "<small>Waits for late</small></td></tr>"
    )


def test_the_small_picture_of_a_deferred_group_shows_its_transfer_in_the_next_step():
    row = re.findall(r"<tr id=.*?</tr>", groups_table(SMALL))[0]
    # Two steps of 0.5 s: ready at 0.2 s, sent from 0.5 s to 0.6 s, needed at 0.6 s.
    assert '<rect x="20%" width="40%" y="1" height="20" class="window">' in row
    assert '<rect x="50%" width="10%" y="4" height="14" class="deferred">' in row


HOSTILE = """</script><script>alert(1)</script><img src=x onerror='alert(2)'>"&amp;"""


@pytest.mark.parametrize("measured", [False, True])
def test_no_name_can_become_part_of_the_page_itself(measured):
    group = replace(SMALL.groups[0], name=HOSTILE, members=(HOSTILE, "b"), reason=HOSTILE)
    other = replace(SMALL.groups[1], members=(HOSTILE,), waits_for=(HOSTILE,), pattern=HOSTILE)
    spans = tuple(replace(span, name=HOSTILE) for span in SMALL.predicted.spans)
    hostile = replace(
        SMALL,
        job=HOSTILE,
        planner=HOSTILE,
        why=HOSTILE,
        predicted=Timeline(spans),
        groups=(group, other),
        limits=(replace(SMALL.limits[0], sentence=HOSTILE),),
        what_if=(replace(SMALL.what_if[0], change=HOSTILE, note=HOSTILE),),
    )
    if measured:
        hostile = trained(hostile)
    page = html_page(hostile)
    outline = Outline(page)
    assert len(outline.all("script")) == 1
    assert outline.all("img") == []
    assert page.count("&lt;/script&gt;&lt;script&gt;alert(1)") > 15
    assert not any("onerror" in attributes for _, attributes in outline.elements)


@pytest.mark.parametrize("workers", [2, 8])
def test_the_page_is_well_formed_and_complete(workers):
    explanation = trained(resnet(workers))
    outline = Outline(html_page(explanation))
    assert len([row for row in outline.all("tr") if row.get("id", "").startswith("g")]) == 54
    assert all("scope" in header for header in outline.all("th"))
    assert all("aria-label" in picture for picture in outline.all("svg"))
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [link["href"].removeprefix("#") for link in outline.all("a")]
    assert len(targets) == 1 + 10  # the words, and the misses
    assert set(targets) <= set(ids)


def test_the_page_refers_to_nothing_outside_itself():
    page = html_page(trained(resnet(2)))
    assert re.findall(r"https?:|//[a-z]|url\(|@import|\ssrc=", page) == []
    assert set(re.findall(r'href="([^"]*)"', page)) <= {
        "data:,",
        "#words",
        *(f"#g{number}" for number in range(54)),
    }
    policy = Outline(page).all("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'; ")


def test_a_page_of_one_worker_without_groups_is_whole():
    alone = replace(
        SMALL, workers=1, groups=(), limits=(), what_if=(), predicted=Timeline(), wire_limit_s=0.0
    )
    page = html_page(alone)
    Outline(page)
    assert "<h1>tiny on 1 worker</h1>" in page
    assert "<h2>Groups</h2>" not in page
    assert "<h2>What would help</h2>" not in page


@pytest.mark.slow
def test_sixteen_workers_and_three_hundred_groups_fit_into_five_megabytes():
    large = trained(many_groups(resnet(16), 6))
    assert len(large.groups) == 324
    assert len(html_page(large).encode()) < 5_000_000


def test_reports_do_not_need_tensorflow():
    code = (
        "import sys, caramel.report.page, caramel.report.table\n"
        "assert 'tensorflow' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_batch_and_the_day_are_told_and_columns_without_entries_are_not():
    groups = tuple(replace(group, waits_for=(), reason="") for group in SMALL.groups)
    what_if = (replace(SMALL.what_if[0], note=""),)
    known = replace(SMALL, groups=groups, what_if=what_if, examples=48, made="2026-11-28 17:05")
    page = html_page(known)
    assert "48 examples of each worker in a step, made 2026-11-28 17:05." in page
    names = re.findall(r"<th[^>]*>([^<]*)</th>", page)
    assert {"Change", "Predicted step", "Training faster", "Size"} < set(names)
    assert not {"Note", "Reason", "Measured", "Late"} & set(names)
