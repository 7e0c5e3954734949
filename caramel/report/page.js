"use strict";
// Sorts and filters the table of groups, stretches the timeline, and shows what is pointed at.

const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);

all(".controls").forEach((each) => { each.hidden = false; });

// Sorting: numbers by data-v, text as it reads; rows without a number stay at the end.

function sortBy(header) {
  const column = [...header.parentNode.children].indexOf(header);
  const down = header.getAttribute("aria-sort") === "ascending";
  const body = header.closest("table").tBodies[0];
  const isNumber = header.classList.contains("number") || column === 0;
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[column];
    return [isNumber ? parseFloat(cell.dataset.v) : cell.textContent.trim(), row];
  });
  const sign = down ? -1 : 1;
  keyed.sort(([a], [b]) => {
    if (!isNumber) return sign * a.localeCompare(b, undefined, { numeric: true });
    if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
    return sign * (a - b);
  });
  body.append(...keyed.map(([, row]) => row));
  all("th", header.parentNode).forEach((each) => { each.removeAttribute("aria-sort"); });
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
}

all("th[data-sort]").forEach((header) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  header.append(button);
  button.addEventListener("click", () => sortBy(header));
});

// Filtering

const find = one("#find");
const place = one("#place");

function filter() {
  const wanted = find.value.trim().toLowerCase();
  const rows = all("#groups tbody tr");
  for (const row of rows) {
    const inPlace = !place.value || row.dataset.place === place.value;
    row.hidden = !inPlace || !row.textContent.toLowerCase().includes(wanted);
  }
  const shown = rows.filter((row) => !row.hidden).length;
  one("#count").textContent = `${shown} of ${rows.length} ${one("#count").dataset.what}`;
}

if (find) {
  find.addEventListener("input", filter);
  place.addEventListener("input", filter);
  find.form.addEventListener("submit", (event) => event.preventDefault());
}

// Stretching

let zoom = 1;
const timeline = one(".timeline");

all("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
  const middle = (timeline.scrollLeft + timeline.clientWidth / 2) / zoom;
  const factor = parseFloat(button.dataset.zoom);
  zoom = factor ? Math.min(16, Math.max(1, zoom * factor)) : 1;
  one(".stretch").style.width = `${100 * zoom}%`;
  timeline.scrollLeft = middle * zoom - timeline.clientWidth / 2;
}));

// Pointing: what it is, and where the same group is transferred on other workers.

const tip = one("#tip");
let pointed = null;
let lit = [];

function pointAt(event) {
  const block = event.target.closest(".timeline rect");
  if (block !== pointed) light(block);
  if (!block) return;
  const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? event.clientY + 18 : event.clientY - 12 - tip.offsetHeight}px`;
}

function light(block) {
  pointed = block;
  tip.hidden = !block;
  lit.forEach((each) => each.classList.remove("lit"));
  lit = [];
  if (!block) return;
  const title = block.querySelector("title");
  if (title) {  // else the browser would show it too
    block.dataset.tip = title.textContent;
    title.remove();
  }
  tip.textContent = block.dataset.tip;
  if (block.dataset.g !== undefined) lit = all(`.timeline [data-g="${block.dataset.g}"]`);
  lit.forEach((each) => each.classList.add("lit"));
}

function goTo(event) {
  const block = event.target.closest(".timeline rect[data-g]");
  if (!block || event.pointerType === "touch") return;  // a tap only shows what it is
  const row = document.getElementById(`g${block.dataset.g}`);
  row.hidden = false;
  location.hash = row.id;
}

if (timeline) {
  ["pointermove", "pointerdown"].forEach((each) => document.addEventListener(each, pointAt));
  document.addEventListener("scroll", () => light(null), true);
  timeline.addEventListener("click", goTo);
}

// In a notebook: its frame asks once how high the page is, and is told whenever that changes.

addEventListener("message", (event) => {
  if (event.data !== "caramel: height") return;
  const tell = () => {
    const height = Math.ceil(document.body.getBoundingClientRect().height);
    event.source.postMessage({ caramelHeight: height }, "*");
  };
  new ResizeObserver(tell).observe(document.body);
});
