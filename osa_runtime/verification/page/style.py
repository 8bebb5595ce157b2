"""The look of the page: one sheet, light, dark and print. The plots take their colours from here, too."""

from __future__ import annotations

# Blue, orange and green of Okabe and Ito, which stay apart for every kind of colour vision.
STYLE = """
:root {
  color-scheme: light dark;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  --paper: #ffffff; --panel: #f5f7fa; --ink: #1f2d3d; --soft: #5a6b7d; --faint: #93a1b0; --grid: #e1e7ed;
  --artifact: #0072b2; --other: #d98c00; --cumulative: #009e73;
  --pass: #0b6b4f; --fail: #b3261e; --undecided: #8a5a00;
  --pass-panel: #e6f4ee; --fail-panel: #fcebea; --undecided-panel: #fdf3de;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12181f; --panel: #1b242d; --ink: #e3e9ef; --soft: #a3b1bf; --faint: #6f7f8f; --grid: #2a3641;
    --artifact: #56b4e9; --other: #e69f00; --cumulative: #2fc79a;
    --pass: #5fd0a5; --fail: #ff8a80; --undecided: #f0c060;
    --pass-panel: #12301f; --fail-panel: #3a1a1a; --undecided-panel: #33280f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 var(--sans); }
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 44px 0 10px; padding-bottom: 5px; border-bottom: 1px solid var(--grid); }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 8px 0; max-width: 80ch; }
a { color: var(--artifact); }
code, .hash { font-family: var(--mono); font-size: 0.87em; overflow-wrap: anywhere; }
pre { background: var(--panel); border-radius: 6px; padding: 12px 14px; overflow-x: auto; font: 13px/1.5 var(--mono); }
.verdict { display: flex; gap: 22px; align-items: center; padding: 20px 24px; }
.verdict { border-radius: 10px; border-left: 8px solid; }
.verdict .word { font-size: 38px; font-weight: 800; letter-spacing: 0.03em; white-space: nowrap; }
.verdict p { margin: 4px 0 0; }
.verdict.pass { background: var(--pass-panel); border-color: var(--pass); }
.verdict.consistent { background: var(--undecided-panel); border-color: var(--undecided); }
.verdict.fail { background: var(--fail-panel); border-color: var(--fail); }
.verdict.pass .word { color: var(--pass); }
.verdict.consistent .word { color: var(--undecided); }
.verdict.fail .word { color: var(--fail); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 16px 0; }
.tile { background: var(--panel); border-radius: 8px; padding: 12px 14px; }
.tile b { display: block; font-size: 21px; line-height: 1.3; }
.tile span { color: var(--soft); font-size: 13px; display: block; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px; margin: 16px 0; }
.card { border: 1px solid var(--grid); border-radius: 8px; padding: 14px 16px; min-width: 0; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 3px 14px; margin: 0; font-size: 13.5px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
nav { font-size: 13.5px; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0; }
.failures, .notes { border-radius: 8px; padding: 12px 18px; margin: 16px 0; }
.failures { background: var(--fail-panel); }
.notes { background: var(--undecided-panel); }
.failures ul, .notes ul { margin: 0; padding-left: 18px; }
.failures li, .notes li { margin: 5px 0; overflow-wrap: anywhere; }
.long { display: block; max-height: 12em; overflow-y: auto; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; min-width: 50%; font-size: 13.5px; }
th { text-align: left; vertical-align: bottom; color: var(--soft); font-weight: 600; font-size: 12.5px; }
th, td { padding: 5px 16px 5px 0; border-bottom: 1px solid var(--grid); }
td { vertical-align: top; }
td:last-child { overflow-wrap: anywhere; }
td.num { font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.note td { border-top: 0; color: var(--soft); font-size: 13px; padding-left: 14px; }
tr:has(+ tr.note) td { border-bottom: 0; }
.badge { white-space: nowrap; font-weight: 600; }
.badge.pass { color: var(--pass); }
.badge.fail { color: var(--fail); }
.badge.undecided { color: var(--undecided); }
figure { margin: 14px 0 22px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { color: var(--soft); font-size: 13.5px; max-width: 90ch; }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--artifact); font-size: 14px; }
@media (max-width: 640px) {
  .verdict { display: block; }
  figure { overflow-x: auto; }
  figure svg { min-width: 640px; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --panel: #f5f7fa; --ink: #1f2d3d; --soft: #5a6b7d; --faint: #93a1b0; --grid: #e1e7ed;
    --artifact: #0072b2; --other: #d98c00; --cumulative: #009e73;
    --pass: #0b6b4f; --fail: #b3261e; --undecided: #8a5a00;
    --pass-panel: #e6f4ee; --fail-panel: #fcebea; --undecided-panel: #fdf3de;
  }
  @page { margin: 14mm; }
  body { font-size: 11px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  table { font-size: 10px; }
  th { font-size: 9.5px; }
  figcaption, dl, .tile span { font-size: 10px; }
  pre { white-space: pre-wrap; }
  .long { max-height: none; }
  h2 { break-after: avoid; }
  figure, tr, .card, .tile { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
