"""The style sheet that all pages share. Nothing in it comes from data."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1e; --soft: #5c5c66; --line: #d5d5da; --band: #f3f3f6;
  --good: #11662f; --bad: #b3131b; --grey: #77777f; --orange: #c2570c; --blue: #0b62b8; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #17171a; --ink: #ececef; --soft: #a5a5b0; --line: #3d3d45; --band: #222227;
    --good: #5fd08a; --bad: #ff7b76; --grey: #a0a0aa; --orange: #f5a45d; --blue: #6cb4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 84rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; line-height: 1.35; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem; }
header { border-left: .4rem solid var(--good); padding: .2rem 0 .2rem 1rem; }
p { margin: .3rem 0; max-width: 62rem; }
p, li { overflow-wrap: anywhere; }
.soft { color: var(--soft); }
code, .name, pre { font-family: ui-monospace, monospace; font-size: .86em; }
.name { unicode-bidi: isolate; overflow-wrap: anywhere; }
figure { margin: .5rem 0 0; }
svg.chart { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); }
.grid { stroke: var(--line); stroke-width: .7; }
.curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
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
.facts { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1.2rem 3rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@media print {
  body { max-width: none; padding: 0; font-size: 9pt; }
  .wide, .scroll { overflow: visible; max-height: none; }
  thead { display: table-header-group; break-inside: avoid; }
  svg.chart { min-width: 0; }
  .facts { display: block; }
  tr, figure { break-inside: avoid; }
  h2, ul.legend { break-after: avoid; }
  * { print-color-adjust: exact; }
}
"""
