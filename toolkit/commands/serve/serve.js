"use strict";
const form = document.querySelector("form"), at = (name) => document.getElementById(name);
const path = form.dataset.path, most = 12;

function make(tag, name, ...children) {
  const made = document.createElement(tag);
  made.className = name;
  made.append(...children);
  return made;
}

function asked() {
  const body = {};
  for (const field of form.elements)
    if (field.name && field.value !== "") body[field.name] = field.type === "number" ? +field.value : field.value;
  return body;
}

function tell() {
  const json = at("sent").textContent = JSON.stringify(asked()), quoted = json.replaceAll("'", "'\\''");
  at("program").hidden = ![...form.querySelectorAll("textarea")].some((field) => field.value);
  at("shell").textContent = `curl ${location.origin}${path} -H 'Content-Type: application/json' -d '${quoted}'`;
}

function bars(shares) {
  return make("table", "bars", ...shares.map(([label, share]) => {
    const name = make("th", "", label), bar = make("div", "");
    [name.scope, name.dir, bar.style.width] = ["row", "auto", `${100 * share}%`];
    return make("tr", "", name, make("td", "", bar), make("td", "", share.toFixed(3)));
  }));
}

function labels(row, notes) {
  const shares = Object.entries(row).filter(([name]) => name.startsWith("probability_"))
    .map(([name, share]) => [name.slice(12), share ?? 0]).sort((one, other) => other[1] - one[1]);
  const said = row.predicted_labels?.join(", ") ?? row.predicted_label;
  const parts = [make("p", "said", said || "no label"), bars(shares.slice(0, most)), ...notes];
  if (shares.length > most)
    parts.push(make("details", "", make("summary", "", `${shares.length - most} more`), bars(shares.slice(most))));
  return parts;
}

function marked(before, text, after) {
  const whole = make("div", "whole", before, make("mark", "", text), after);
  [whole.dir, whole.tabIndex] = ["auto", 0];
  return whole;
}

function found(row, context) {
  const numbers = make("p", "soft", `score ${row.score.toFixed(3)}, probability ${row.probability.toFixed(3)}`);
  if (!row.predicted_answer) return [make("p", "said", "no answer"), numbers];
  const letters = [...context], start = row.answer_start, end = start + [...row.predicted_answer].length;
  const parts = [letters.slice(0, start), letters.slice(start, end), letters.slice(end)].map((part) => part.join(""));
  return [make("p", "said", row.predicted_answer), numbers, marked(...parts)];
}

function entities(found, text) {
  const letters = [...text], parts = [];
  let past = 0;
  for (const one of found) {
    parts.push(letters.slice(past, one.start).join(""));
    parts.push(make("mark", "", one.text, make("small", "", ` ${one.label} ${one.score.toFixed(2)}`)));
    past = one.end;
  }
  const whole = make("div", "whole", ...parts, letters.slice(past).join(""));
  [whole.dir, whole.tabIndex] = ["auto", 0];
  return [make("p", "soft", `${found.length} ${found.length === 1 ? "entity" : "entities"}`), whole];
}

function shown(reply, body) {
  if (reply.error) return [make("p", "error", reply.error)];
  const notes = Object.keys(reply.notes).map((note) => make("p", "soft", `note: ${note}`));
  const row = reply.predictions?.[0], text = reply.generated_texts?.[0] ?? row?.predicted_answer;
  if (row?.predicted_entities) return [...entities(row.predicted_entities, body.text), ...notes];
  if (row?.predicted_label !== undefined || row?.predicted_labels) return labels(row, notes);
  if (row?.predicted_value !== undefined) return [make("p", "said", +row.predicted_value.toPrecision(6)), ...notes];
  if (text === undefined || text === null) return notes;
  return [...(row ? found(row, body.context) : [make("p", "soft", body.prompt ?? ""), marked("", text, "")]), ...notes];
}

let last = 0;
async function ask() {
  const number = ++last, body = asked(), headers = {"Content-Type": "application/json"};
  at("answer").setAttribute("aria-busy", true);
  const reply = await fetch(path, {method: "POST", headers, body: JSON.stringify(body)})
    .then((response) => response.json()).catch(() => ({error: "the server does not answer"}));
  if (number !== last) return;
  at("answer").setAttribute("aria-busy", false);
  at("answer").replaceChildren(...shown(reply, body));
  at("received").textContent = JSON.stringify(reply, null, 1);
  at("reply").hidden = false;
  document.querySelector("mark")?.scrollIntoView({block: "nearest"});
}

form.addEventListener("input", tell);
form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
for (const button of document.querySelectorAll("[data-fields]"))
  button.addEventListener("click", () => {
    for (const [name, value] of Object.entries(JSON.parse(button.dataset.fields))) form.elements.namedItem(name).value = value;
    tell();
    form.requestSubmit();
  });
for (const button of document.querySelectorAll("[data-copies]"))
  button.addEventListener("click", () => {
    const block = at(button.dataset.copies);
    getSelection().selectAllChildren(block);  // for a browser that forbids copying over plain HTTP
    navigator.clipboard?.writeText(block.textContent).then(() => { button.textContent = "Copied"; }, () => {});
  });
// A link may hold what is asked: #text=...&text_pair=...
const linked = [...new URLSearchParams(location.hash.slice(1))]
  .map(([name, value]) => [form.elements.namedItem(name), value]).filter(([field]) => field);
for (const [field, value] of linked) field.value = value;
tell();
if (linked.length) form.requestSubmit();
