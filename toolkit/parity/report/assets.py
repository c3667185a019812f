"""The style sheet and the script of ``parity.html``. Nothing in them comes from a report."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1e; --soft: #5c5c66; --line: #d5d5da; --band: #f3f3f6;
  --good: #11662f; --bad: #b3131b; --r32: #77777f; --p32: #c2570c; --p64: #0b62b8; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #17171a; --ink: #ececef; --soft: #a5a5b0; --line: #3d3d45; --band: #222227;
    --good: #5fd08a; --bad: #ff7b76; --r32: #a0a0aa; --p32: #f5a45d; --p64: #6cb4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; line-height: 1.35; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem; }
header { border-left: .4rem solid var(--good); padding: .2rem 0 .2rem 1rem; }
header.drift { border-color: var(--bad); }
header.inconclusive { border-color: var(--soft); }
.verdict { color: var(--good); letter-spacing: .04em; }
.inconclusive .verdict { color: var(--soft); }
.drift .verdict, .failed-row td:last-child { color: var(--bad); font-weight: 600; }
p { margin: .3rem 0; max-width: 62rem; overflow-wrap: anywhere; }
.soft, .skipped-row { color: var(--soft); }
code, .name, pre { font-family: ui-monospace, monospace; font-size: .86em; }
.name { unicode-bidi: isolate; overflow-wrap: anywhere; }
figure { margin: .5rem 0 0; }
svg.chart { display: block; width: 100%; min-width: 42rem; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: .7; }
.layer { fill: var(--band); }
.curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
.r32 { stroke: var(--r32); stroke-dasharray: 5 3; }
.p32 { stroke: var(--p32); }
.p64, .bound { stroke: var(--p64); }
.bound { stroke-dasharray: 1 4; }
circle { fill: var(--paper); stroke-width: 1; stroke-dasharray: none; }
circle.failed { fill: var(--bad); stroke: var(--bad); }
.hover { fill: transparent; }
.hover:hover { fill: var(--ink); fill-opacity: .12; }
ul.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; list-style: none; margin: 0 0 .3rem; padding: 0;
  font-size: .9rem; }
ul.legend svg { width: 2.2rem; height: .7rem; margin-right: .45rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .18rem .7rem .18rem 0; text-align: left; vertical-align: top; font-weight: 400;
  border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; background: var(--paper); }
.wide, .scroll { overflow: auto; }
.scroll { max-height: 80vh; }
#tensors { width: 100%; font-size: .82rem; }
#tensors thead th { position: sticky; top: 0; }
#tensors td { white-space: nowrap; font-variant-numeric: tabular-nums; }
#tensors th[scope=row] { min-width: 16rem; font-size: .76rem; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--p64); }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
form { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; align-items: center; margin: .4rem 0; }
input[type=search] { width: 18rem; max-width: 100%; }
.facts { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1.2rem 3rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@page { size: landscape; margin: 12mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 9pt; }
  form { display: none; }
  .wide, .scroll { overflow: visible; max-height: none; }
  thead { display: table-header-group; break-inside: avoid; }
  #tensors thead th { position: static; }
  #tensors { font-size: 7.5pt; }
  #tensors th[scope=row] { min-width: 0; font-size: 7pt; }
  svg.chart { min-width: 0; }
  .facts { display: block; }
  tr, figure { break-inside: avoid; }
  h2, ul.legend { break-after: avoid; }
  * { print-color-adjust: exact; }
}
"""

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
