#include "text/report/report_style.h"

namespace mezzo::text {

const char* const kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #fff; --ink: #1b2230; --muted: #667085; --line: #e2e5ea; --grid: #8d95a3;
  --c1: #2563d9; --c2: #c4620a; --c3: #18936a; --c4: #b23aa8; --c5: #0f8a9d; --c6: #8a6d1f;
  --c7: #6b57d6; --c8: #c2405f; --bad: #d13b34; --hit: 37, 99, 217; --miss: 217, 95, 14;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1218; --card: #161b23; --ink: #e6e9ef; --muted: #98a2b3; --line: #2a313c; --grid: #6c7686;
    --c1: #6ba4ff; --c2: #ffad4d; --c3: #4fcf9f; --c4: #e58adb; --c5: #4cc4d8; --c6: #d3b25c;
    --c7: #a697ff; --c8: #ff8aa5; --bad: #ff7168; --hit: 47, 107, 222; --miss: 201, 92, 22;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", "PingFang SC",
    "Microsoft YaHei", sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 36px 24px 48px; }
h1 { font-size: 28px; line-height: 1.25; letter-spacing: -.01em; margin: 0; }
h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 18px 0 8px; }
h2 + .quality, h2 + .columns { margin-top: -8px; }
.card > h3:first-child { margin-top: 0; }
.sub, .unit, footer { color: var(--muted); }
.sub { margin: 4px 0 24px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 20px 0 0; }
a { color: var(--c1); }
.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 14px; }
.number, figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.number { padding: 14px 16px; }
.number .name, .number .detail { color: var(--muted); font-size: 13px; }
.number .value { font-size: 26px; line-height: 1.3; font-weight: 650; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 14px; }
.charts + .card { margin-top: 14px; }
figure { margin: 0; padding: 14px 14px 8px; break-inside: avoid; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: 2px 8px; padding: 0 4px 8px; }
figcaption .unit { font-size: 13px; }
.legend { margin-left: auto; display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--muted); }
.key::before {
  content: ""; display: inline-block; width: 16px; height: 0; margin-right: 6px; vertical-align: middle;
  border-top: 2.5px solid currentColor; border-radius: 2px;
}
.key.thin::before { opacity: .85; border-top-width: 2px; }
.key.dots::before { width: 8px; height: 8px; border: 0; background: currentColor; border-radius: 50%; }
.key.marks::before { width: 0; height: 10px; border: 0; border-left: 2px solid var(--bad); }
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); } .c4 { color: var(--c4); }
.c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); } .c8 { color: var(--c8); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--muted); font-variant-numeric: tabular-nums; }
svg .none { font-size: 15px; }
svg path { fill: none; stroke: none; stroke-linecap: round; stroke-linejoin: round; }
svg .grid { stroke: var(--grid); stroke-dasharray: 1 5; } svg .axis, svg .tick { stroke: var(--muted); }
svg .line { stroke: currentColor; stroke-width: 2.2; }
svg .thin { stroke: currentColor; stroke-width: 1; opacity: .85; }
svg .link { stroke: currentColor; stroke-width: 1.2; opacity: .85; }
svg .dot { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
svg .few { fill: currentColor; }
svg .dot:hover { r: 6px; }
svg .mark path { stroke: var(--bad); stroke-width: 2; }
svg .h .hit { pointer-events: all; }
svg .h circle { fill: currentColor; stroke: var(--card); stroke-width: 1.5; opacity: 0; }
svg .h:hover circle { opacity: 1; }
.card { padding: 16px 18px; margin-bottom: 14px; break-inside: avoid; }
.scroll { overflow-x: auto; }
.scroll table { overflow-wrap: normal; }
.scroll .pairs { width: max-content; min-width: 100%; }
.scroll .text { max-width: min(60ch, 70vw); }
.notice { margin: 0 0 14px; border-left: 4px solid var(--bad); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { font-weight: 600; text-align: left; }
.confusion { border-collapse: separate; border-spacing: 2px; font-size: 14px; overflow-wrap: normal; }
.confusion th, .confusion td { padding: 7px 10px; white-space: nowrap; }
.confusion td { text-align: right; border-radius: 5px; min-width: 44px; }
.confusion thead th { max-width: 120px; text-align: right; vertical-align: bottom; }
.confusion th { max-width: 180px; overflow: hidden; text-overflow: ellipsis; }
.confusion tbody th { position: sticky; left: 0; background: var(--card); text-align: right; }
.confusion .corner { font-size: 12px; color: var(--muted); vertical-align: bottom; }
.confusion .zero { color: var(--muted); }
.confusion .hit { background: rgba(var(--hit), var(--a, .08)); }
.confusion .miss { background: rgba(var(--miss), var(--a)); }
.confusion .hot { color: #fff; }
.confusion .edge { color: var(--muted); font-weight: 400; font-size: 13px; }
.dense { font-size: 11px; border-spacing: 1px; }
.dense th, .dense td { padding: 3px 4px; }
.dense td { min-width: 22px; border-radius: 3px; text-align: center; }
.dense .edge, .dense .corner { font-size: 11px; }
.dense thead th { text-align: left; }
.dense th { font-weight: 500; }
.densest, .densest .edge { font-size: 10px; }
.densest td, .densest .edge { padding: 3px 1px; min-width: 20px; }
.densest thead th { padding: 3px 2px; }
.dense thead th span { writing-mode: vertical-rl; max-height: 130px; overflow: hidden; text-overflow: ellipsis; }
.dense tbody th { max-width: 130px; }
pre { margin: 0; overflow-x: auto; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  "Noto Sans Mono CJK SC", monospace; }
.wrap { white-space: pre-wrap; overflow-wrap: anywhere; }
.flag { white-space: nowrap; }
.quality { display: flex; flex-wrap: wrap; gap: 0 14px; }
.quality section { flex: 1 1 auto; min-width: 0; max-width: 100%; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 0 14px;
  align-items: start; }
.pairs { width: 100%; font-size: 14px; }
.pairs th, .pairs td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
.pairs tr:last-child > * { border-bottom: 0; }
.pairs tbody th { font-weight: 400; color: var(--muted); width: 42%; }
.pairs thead th { color: var(--muted); font-size: 13px; }
.pairs .best { font-weight: 650; }
.labels td { min-width: 84px; }
.labels .bar { background: linear-gradient(90deg, rgba(var(--hit), .22) var(--w), transparent 0) content-box; }
.pairs.wide tbody th { width: auto; }
.pairs tbody .part th { padding-left: 18px; }
.text { min-width: 220px; overflow-wrap: anywhere; }
.notes { margin: 0; padding-left: 18px; }
.bad { color: var(--bad); }
details { font-size: 13px; color: var(--muted); padding: 4px; }
details .pairs th, details .pairs td { text-align: left; white-space: normal; }
summary { cursor: pointer; width: max-content; max-width: 100%; }
summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--c1); outline-offset: 2px; border-radius: 3px; }
details .scroll { max-height: 320px; overflow: auto; margin-top: 6px; }
details table { font-size: 12px; }
details th, details td { padding: 2px 14px 2px 0; text-align: right; white-space: nowrap; }
footer { margin-top: 28px; font-size: 13px; }
@media (max-width: 560px) {
  main { padding: 20px 12px 32px; }
  h1 { font-size: 23px; }
  .headline { grid-template-columns: repeat(2, 1fr); gap: 10px; }
  .number { padding: 10px 12px; }
  .number .value { font-size: 21px; }
  figure { padding: 12px 8px 6px; }
  svg text { font-size: 14px; }
  .card { padding: 12px; }
}
@media print {
  :root {
    color-scheme: light;
    --page: #fff; --card: #fff; --ink: #000; --muted: #555; --line: #ccc; --grid: #8d95a3;
    --c1: #2563d9; --c2: #c4620a; --c3: #18936a; --c4: #b23aa8; --c5: #0f8a9d; --c6: #8a6d1f;
    --c7: #6b57d6; --c8: #c2405f; --bad: #d13b34; --hit: 37, 99, 217; --miss: 217, 95, 14;
  }
  body { print-color-adjust: exact; -webkit-print-color-adjust: exact; font-size: 12px; }
  main { max-width: none; padding: 0; }
  .charts { grid-template-columns: 1fr 1fr; }
  h2, h3 { break-after: avoid; }
  details { display: none; }
}
)css";

}  // namespace mezzo::text
