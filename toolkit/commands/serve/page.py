"""The page at `/`: a form with the fields of a request, the answer, and the same request for a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element

from toolkit.commands.serve.requests import MAX_TEXTS, Service
from toolkit.pages.document import POLICY, document
from toolkit.pages.markup import element
from toolkit.terminal.progress import format_number

STYLE = """
main { max-width: 62rem; }
label { display: block; margin: .7rem 0 .15rem; font-weight: 600; }
label::first-letter { text-transform: uppercase; }
textarea, input, select, button { font: inherit; color: inherit; background: var(--paper); border-radius: .3rem;
  border: 1px solid var(--grey); padding: .4rem .6rem; width: 100%; }
input, select { height: 2.4rem; }
textarea { display: block; height: 6rem; resize: vertical; }
#question { height: 3.2rem; }
#context { height: 12rem; }
a { color: var(--blue); }
.options { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: 0 1rem;
  align-items: end; }
button { margin-top: 1rem; width: auto; padding: .45rem 1.3rem; font-weight: 600; cursor: pointer;
  background: var(--blue); border-color: var(--blue); color: var(--paper); }
:focus-visible { outline: 3px solid var(--orange); outline-offset: 1px; }
#answer { min-height: 3.5rem; margin-top: 1.2rem; }
#answer[aria-busy=true] { opacity: .5; }
.said { font-size: 1.25rem; font-weight: 600; }
.error { color: var(--bad); }
.bars { width: 100%; max-width: 44rem; font-size: 1rem; }
.bars th { width: 30%; overflow-wrap: anywhere; }
.bars td:last-child { width: 4rem; padding-right: 0; text-align: right; font-variant-numeric: tabular-nums; }
.bars div { height: .8rem; margin-top: .35rem; background: var(--blue); border-radius: .15rem; }
.whole, pre { white-space: pre-wrap; overflow: auto; max-height: 22rem; margin: .3rem 0 .8rem; padding: .6rem .8rem;
  overflow-wrap: anywhere; background: var(--band); }
mark { background: color-mix(in srgb, var(--orange) 35%, var(--paper)); color: inherit; }
h3 { font-size: .95rem; margin: 1rem 0 .15rem; }
"""
#: Script of the page. Text of the user or the model becomes text nodes, never markup.
SCRIPT = r"""
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
  document.querySelector("mark")?.scrollIntoView({block: "nearest"});
}

form.addEventListener("input", tell);
form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
// A link may hold what is asked: #text=...&text_pair=...
const linked = [...new URLSearchParams(location.hash.slice(1))]
  .map(([name, value]) => [form.elements.namedItem(name), value]).filter(([field]) => field);
for (const [field, value] of linked) field.value = value;
tell();
if (linked.length) form.requestSubmit();
"""


def build_page(about: Mapping[str, Any], service: Service) -> str:
    """Return the HTML of the page; ``about`` is the description of the run, as ``/model`` answers."""
    options = [_form_field(name, service) for name in service.request.model_fields if name not in service.texts]
    form = element(
        "form",
        *(_form_field(name, service) for name in service.texts),
        element("div", *options, class_="options"),
        element("button", "Generate" if options else "Predict"),
        data_path=service.path,
    )
    header = element("header", element("h1", about["run"]), *(element("p", line) for line in _describe_model(about)))
    main = element("main", form, *_answer_elements(service))
    body = element("body", header, main, element("script", SCRIPT))
    return document(f"{about['run']}: {about['task']}", STYLE, body, f"{POLICY}; connect-src 'self'")


def _describe_model(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that describe the model and its metrics."""
    yield f"{about['model']} for {about['task']}"
    for split_name, numbers in about["metrics"].items():
        metrics = [f"{name} {format_number(value)}" for name, value in numbers.items() if isinstance(value, float)]
        yield f"{split_name}: {', '.join(metrics[:4])}"


def _form_field(name: str, service: Service) -> Element:
    """Return a field of the form with its label."""
    field = service.request.model_fields[name]
    attributes: dict[str, Any] = {"id": name, "name": name, "required": "required" if field.is_required() else None}
    if name in service.texts:
        entry = element("textarea", dir="auto", **attributes)
    elif name == "control":
        entry = element("select", *(element("option", code) for code in service.codes), **attributes)
    else:
        entry = element(
            "input", type="text" if name == "stop" else "number", step="any", value=field.default, **attributes
        )
    return element("div", element("label", name.replace("_", " "), for_=name), entry)


def _answer_elements(service: Service) -> Iterator[Element]:
    """Yield the elements for the answer and for the same request from a program, which the script fills."""
    yield element("section", element("noscript", "This page needs JavaScript."), id="answer", aria_live="polite")
    yield element("h2", "From a program")
    several = f"For {' and '.join(service.texts)} a list of up to {MAX_TEXTS} may be sent. The run is described at "
    yield element("p", several, element("a", "/model", href="/model"), ".", class_="soft")
    for name, title in (("sent", f"POST {service.path}"), ("shell", "In a shell"), ("received", "Answer")):
        yield element("h3", title, id=f"{name}-title")
        yield element("pre", id=name, tabindex=0, role="region", aria_labelledby=f"{name}-title")
