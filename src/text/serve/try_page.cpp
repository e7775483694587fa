#include "text/serve/try_page.h"

#include "text/report/report_style.h"

namespace mezzo::text {
namespace {

const char* const kStyle = R"css(
[hidden] { display: none !important; }
main.try { max-width: 760px; }
form { display: grid; gap: 12px; }
label { display: grid; gap: 4px; font-weight: 600; }
label .unit { font-weight: 400; }
textarea, select, input {
  font: inherit; font-weight: 400; color: inherit; background: var(--page); border: 1px solid var(--muted); border-radius: 8px;
  padding: 8px 10px; width: 100%;
}
textarea { resize: vertical; min-height: 92px; }
button {
  font: inherit; font-weight: 600; color: #fff; background: #2563d9; border: 0; border-radius: 8px; padding: 9px 18px;
  cursor: pointer;
}
button[type=button] { color: var(--c1); background: none; }
button:disabled { opacity: .55; cursor: default; }
:focus-visible { outline: 3px solid var(--c1); outline-offset: 2px; }
.error { border-left: 4px solid var(--bad); }
.answer { overflow-wrap: anywhere; }
.answer p { margin: 0 0 8px; }
.label { font-size: 22px; font-weight: 650; }
.scores { width: 100%; }
.scores th { font-weight: 400; padding: 2px 12px 2px 0; }
.scores td { text-align: right; padding: 2px 0; white-space: nowrap; }
.scores td:nth-child(2) { width: 55%; }
@media (max-width: 480px) { .scores td:nth-child(2) { width: 40%; } }
.scores td:last-child { padding-left: 12px; }
.scores meter { display: block; width: 100%; height: 10px; }
.scores meter::-webkit-meter-bar { height: 10px; border: 0; border-radius: 5px; background: var(--line); }
.scores meter::-webkit-meter-optimum-value { background: var(--c1); border-radius: 5px; }
.scores meter::-moz-meter-bar { background: var(--c1); border-radius: 5px; }
mark { background: rgba(var(--hit), .22); color: inherit; border-radius: 4px; padding: 1px 4px; }
mark small { color: var(--muted); margin-left: 4px; }
pre { white-space: pre-wrap; margin: 0; font-size: 13px; }
)css";

}  // namespace

std::string try_page(bool asks_token) {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>mezzo</title>\n"
      "<link rel=\"icon\" href=\"data:,\">\n<style>";
  page += kReportStyle;
  page += kStyle;
  page +=
      "</style>\n<script src=\"page.js\" defer></script>\n</head>\n<body>\n<main class=\"try\">\n<h1>Try a text</h1>\n"
      "<p class=\"sub\" id=\"about\">&nbsp;</p>\n<form class=\"card\" id=\"form\">\n"
      "<label id=\"models\" hidden>Model<select id=\"model\"></select></label>\n";
  if (asks_token) {
    page += "<label>Token<input id=\"token\" type=\"password\" autocomplete=\"off\" required></label>\n";
  }
  page +=
      "<label>Text<textarea id=\"text\" required autofocus></textarea></label>\n"
      "<label id=\"pair\" hidden><span>Second text <span class=\"unit\">(of a pair; may be empty)</span></span>"
      "<input id=\"text_pair\"></label>\n<div><button id=\"go\">Predict</button>"
      "<button type=\"button\" id=\"example\">Example</button></div>\n</form>\n"
      "<div id=\"answer\" role=\"status\" aria-live=\"polite\"></div>\n"
      "<noscript><p class=\"card\">Without JavaScript: POST {\"text\": \"…\"} to /predict.</p></noscript>\n"
      "</main>\n</body>\n</html>\n";
  return page;
}

const char* const kTryScript = R"js("use strict";
const by = id => document.getElementById(id);
const make = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};
const percent = score => (100 * score).toFixed(1) + " %";
let models = [];

async function ask(path, body) {
  const headers = {};
  if (by("token")) headers.Authorization = "Bearer " + by("token").value;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body)});
  } catch {
    throw new Error("the server does not answer");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function chosen() {
  return models[Math.max(0, by("model").selectedIndex)];
}

function describe() {
  const {task, labels, precision, max_length, reads_pairs, reads_windows} = chosen();
  const count = labels.length === 1 ? "1 output" : labels.length + " labels";
  by("about").textContent = `${task.replaceAll("_", " ")}, ${count}, ${precision}` +
      (reads_windows ? "" : `, reads ${max_length} tokens of a text`);
  by("pair").hidden = !reads_pairs;
}

async function load() {
  models = (await ask("models")).models;
  by("model").replaceChildren(...models.map(({name}) => make("option", name)));
  by("models").hidden = models.length < 2;
  describe();
}

function bars(scores) {
  const table = make("table", undefined, "scores");
  const ordered = Object.entries(scores).sort((a, b) => b[1] - a[1]);
  for (const [label, score] of ordered.slice(0, 20)) {
    const row = table.insertRow();
    const head = make("th", label);
    head.scope = "row";
    const meter = make("meter");
    meter.value = score;
    meter.setAttribute("aria-label", label);
    row.append(head);
    row.insertCell().append(meter);
    row.append(make("td", percent(score)));
  }
  const parts = [table];
  if (ordered.length > 20) parts.push(make("p", `and ${ordered.length - 20} more`, "unit"));
  return parts;
}

function marked(text, entities) {
  const paragraph = make("p");
  const points = Array.from(text);
  let from = 0;
  for (const {entity_group, start, end} of entities) {
    paragraph.append(points.slice(from, start).join(""));
    const mark = make("mark", points.slice(start, end).join(""));
    mark.append(make("small", entity_group));
    paragraph.append(mark);
    from = end;
  }
  paragraph.append(points.slice(from).join(""));
  return paragraph;
}

function labelled(words, labels) {
  const paragraph = make("p");
  words.forEach((word, i) => {
    const mark = make("mark", word);
    mark.append(make("small", labels[i] ?? "–"));
    paragraph.append(mark, " ");
  });
  return paragraph;
}

function show(answer) {
  const card = make("div", undefined, "card answer");
  if (answer.entities) card.append(marked(answer.text, answer.entities));
  else if (answer.words) card.append(labelled(answer.words, answer.labels));
  else if (answer.value !== undefined) card.append(make("p", String(answer.value), "label"));
  else card.append(make("p", [answer.labels ?? answer.label ?? []].flat().join(", ") || "no label", "label"));
  if (answer.scores) card.append(...bars(answer.scores));
  const details = make("details");
  details.append(make("summary", "JSON"), make("pre", JSON.stringify(answer, null, 2)));
  card.append(details);
  by("answer").replaceChildren(card);
}

function complain(error) {
  by("answer").replaceChildren(make("p", error.message, "card error"));
}

by("model").addEventListener("change", describe);
by("example").addEventListener("click", () => {
  by("text").value = "The train was late again, but the staff were kind and helped us at once.";
  by("text_pair").value = by("pair").hidden ? "" : "The staff were helpful.";
  by("form").requestSubmit();
});
by("form").addEventListener("submit", async event => {
  event.preventDefault();
  by("go").disabled = true;
  try {
    if (!models.length) await load();
    const body = {text: by("text").value, model: chosen().name};
    if (!by("pair").hidden && by("text_pair").value) body.text_pair = by("text_pair").value;
    show(await ask("predict", body));
  } catch (error) {
    complain(error);
  }
  by("go").disabled = false;
});
by("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) by("form").requestSubmit();
});
const begin = () => load().catch(complain);
if (by("token")) by("token").addEventListener("change", begin);
else begin();
)js";

}  // namespace mezzo::text
