"""Style rules of ``parity.html`` in addition to the rules of all pages, and its script, for all reports."""

from toolkit.pages import plot

STYLE = (
    plot.STYLE
    + """
header.drift { border-color: var(--bad); }
header.inconclusive { border-color: var(--soft); }
.verdict { color: var(--good); letter-spacing: .04em; }
.inconclusive .verdict { color: var(--soft); }
.drift .verdict, .failed-row td:last-child { color: var(--bad); font-weight: 600; }
.skipped-row { color: var(--soft); }
svg.chart { min-width: 42rem; }
.layer { fill: var(--band); }
.r32 { stroke: var(--grey); stroke-dasharray: 5 3; }
.p32 { stroke: var(--orange); }
.p64, .bound { stroke: var(--blue); }
.r16 { stroke: var(--grey); stroke-dasharray: 2 3; }
.p16 { stroke: var(--good); }
.bound { stroke-dasharray: 1 4; }
circle { fill: var(--paper); stroke-width: 1; stroke-dasharray: none; }
circle.failed { fill: var(--bad); stroke: var(--bad); }
#tensors { width: 100%; font-size: .82rem; }
#tensors thead th { position: sticky; top: 0; }
#tensors td { white-space: nowrap; font-variant-numeric: tabular-nums; }
#tensors th[scope=row] { min-width: 16rem; font-size: .76rem; }
table.findings th[scope=row] { min-width: 6.5rem; }
table.findings td:last-child { min-width: 7.5rem; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--blue); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
form { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; align-items: center; margin: .4rem 0; }
input[type=search] { width: 18rem; max-width: 100%; }
@page { size: landscape; margin: 12mm; }
@media print {
  form { display: none; }
  #tensors thead th { position: static; }
  #tensors { font-size: 7.5pt; }
  #tensors th[scope=row] { min-width: 0; font-size: 7pt; }
  svg.chart { min-width: 0; }
}
"""
)

SCRIPT = """
"use strict";
const table = document.getElementById("tensors"), body = table.tBodies[0], form = document.forms[0];
const rows = [...body.rows];
const value = (row, column) => row.cells[column].textContent;
const number = text => text === "inf" ? Infinity : Number(text);
function sortBy(head) {
  const column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending";
  const keys = new Map(rows.map(row => [row, value(row, column)]));
  const numeric = head.dataset.sort === "number";
  rows.sort((one, other) => {
    const a = keys.get(one), b = keys.get(other);
    return (numeric ? number(a) - number(b) || 0 : a.localeCompare(b, "en", {numeric: true})) * (down ? -1 : 1);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}
function filter() {
  const text = form.text.value.toLowerCase();
  const wanted = [[1, form.kind.value], [2, form.dtype.value], [9, form.result.value]];
  let shown = 0;
  for (const row of rows) {
    row.hidden = !(value(row, 0).toLowerCase().includes(text)
      && wanted.every(([column, choice]) => !choice || value(row, column) === choice));
    shown += !row.hidden;
  }
  form.count.value = shown + " of " + rows.length;
}
for (const head of table.tHead.rows[0].cells) head.firstChild.addEventListener("click", () => sortBy(head));
form.addEventListener("input", filter);
form.addEventListener("submit", event => event.preventDefault());
filter();
"""
