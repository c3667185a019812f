"""What `report.html` adds to the style sheet of all pages. Nothing in it comes from a run."""

from toolkit.pages import excerpts, plot

STYLE = (
    plot.STYLE
    + excerpts.STYLE
    + """
header.skipped { border-color: var(--orange); }
.verdict { color: var(--good); font-weight: 600; }
.skipped .verdict { color: var(--orange); }
a { color: var(--blue); }
h3 { font-size: .95rem; margin: 0 0 .15rem; overflow-wrap: anywhere; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem;
  max-width: min(62rem, calc(100vw - 2.5rem)); position: sticky; left: 0; }
main table, footer table { min-width: min(30rem, 100%); }
table + table, div + table, .wide + .scroll { margin-top: 1.2rem; }
.facts table { margin-top: 0; }
table.numbers th[scope=row] { min-width: 4.5rem; }
table.numbers td { font-variant-numeric: tabular-nums; }
table.texts td { white-space: nowrap; }
table.texts td:last-child { white-space: normal; min-width: 18rem; }
table.compared th[scope=row] { position: sticky; left: 0; background: var(--paper); }
table.compared td { min-width: 5.5rem; max-width: 24rem; overflow-wrap: anywhere; }
table.beside td { min-width: 4rem; }
table.beside td:nth-child(3), table.beside td:nth-child(5) { min-width: 14rem; }
.headline { font-size: 1.05rem; }
.headline td { padding-right: 1.6rem; }
.scroll thead th { position: sticky; top: 0; }
.scroll { max-height: 32rem; }
table.matrix { font-size: .78rem; }
table.matrix th, table.matrix td { border: 1px solid var(--paper); padding: .12rem .3rem; white-space: nowrap; }
table.matrix td { text-align: right; font-variant-numeric: tabular-nums; min-width: 1.6rem; }
table.matrix caption { font-size: .9rem; }
table.matrix tbody th { position: sticky; left: 0; background: var(--paper); }
table.upright thead th { vertical-align: bottom; }
table.upright thead th span { writing-mode: vertical-rl; transform: rotate(180deg); }
td.none { color: var(--line); }
"""
    + "\n".join(
        f".{kind}.shade{shade} {{ background: color-mix(in srgb, var(--{colour}) {8 + 6 * shade}%, var(--paper)); }}"
        for kind, colour in (("right", "blue"), ("wrong", "orange"))
        for shade in range(1, 9)
    )
    + """
article.answer { border-left: .2rem solid var(--line); padding-left: .8rem; margin: .9rem 0; break-inside: avoid; }
.passage { white-space: pre-wrap; font-size: .92em; }
mark { color: inherit; background: none; padding: 0 .05em; }
mark.ours { background: color-mix(in srgb, var(--orange) 30%, var(--paper)); }
mark.theirs { border-bottom: .15em solid var(--blue); }
@media (max-width: 40rem) {
  body { padding: 1rem .7rem 3rem; } .track { width: 2.4rem; } .headline { font-size: .9rem; }
  .headline th, .headline td { padding-right: .7rem; } .headline thead th { min-width: 4.5rem; } }
@media print { details:not([open]) > :not(summary) { display: none; } table.matrix { font-size: 6.5pt; } }
@page { margin: 12mm; }
"""
)
