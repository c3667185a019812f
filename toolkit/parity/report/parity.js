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
