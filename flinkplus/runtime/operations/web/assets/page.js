// The page of one job: asks for its status twice a second, and shows it. The token, if given, stays in this tab.

import { drawGraph, drawRate, element, list, say, table } from "./draw.js";

const EVERY_MS = 500, WINDOW_S = 3, SPAN_S = 300, SHOWN = 20, PATIENCE_MS = 7000;
const PHASES = ["detect", "fence", "promote", "restore", "replay"];
const ENDED = ["finished", "failed", "cancelled", "stopped"];
const $ = (id) => document.getElementById(id);

let token = keepToken();
let graph = null, picked = null, seen_ms = 0, over = false, known_state = null, known_moves = null, known_run = null;
const samples = [], rates = [];

function keepToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return given ?? sessionStorage.getItem("token");
}

// --- requests

class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(body === undefined ? PATIENCE_MS : 70000) };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, options);
  const found = await response.json();
  if (!response.ok) throw new Refused(response.status, found.error ?? response.statusText);
  return found;
}

async function look() {
  if (document.hidden && known_state !== null) return;
  try {
    const status = await ask("api/status");
    const run = `${status.job.job_id} ${status.job.pid}`;
    if (run !== known_run) { // the first, or another job at the same port
      graph = await ask("api/graph");
      samples.length = rates.length = 0;
      known_state = known_moves = null;
      known_run = run;
    }
    seen_ms = Date.now();
    $("problem").hidden = true;
    $("unlock").hidden = token !== null || !$("unlock").dataset.asked;
    show(status);
  } catch (error) {
    if (error instanceof Refused && error.status === 401) needToken(error.message);
    else if (!over) trouble(error);
  }
}

function needToken(reason) {
  if (token !== null) say($("token-why"), `The job refuses this token: ${reason}`);
  token = null;
  sessionStorage.removeItem("token");
  $("unlock").hidden = false;
  $("unlock").dataset.asked = "yes";
  lock();
}

function trouble(error) {
  const reason = error instanceof Refused ? error.message : "its driver has ended, or cannot be reached";
  const since = seen_ms ? ` Last seen ${((Date.now() - seen_ms) / 1000).toFixed(0)} s ago.` : "";
  $("problem").hidden = false;
  say($("problem"), `The job does not answer: ${reason}.${since}`);
}

// --- figures

const whole = (value) => (value === null || value === undefined ? "-" : Math.round(value).toLocaleString("en"));
const ms = (value) => (value === null || value === undefined ? "-" : value.toLocaleString("en", { maximumFractionDigits: 1 }));
const percent = (value) => (value === null ? "-" : `${(value * 100).toFixed(0)} %`);

function bytes(value) {
  if (value === null || value === undefined) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${value.toFixed(at ? 1 : 0)} ${units[at]}`;
}

function duration(seconds) {
  const s = Math.floor(seconds);
  return s < 60 ? `${seconds.toFixed(1)} s` : s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

const clock = (seconds) => (seconds === null ? "-" : new Date(seconds * 1000).toLocaleTimeString("en-GB"));

// Of an event time, which may be of any unit or calendar of the user's.
function moment(milliseconds) {
  if (milliseconds === null) return "-";
  return Math.abs(milliseconds) < 2.5e14 ? new Date(milliseconds).toISOString().slice(0, 19).replace("T", " ") : String(milliseconds);
}

// How fast a counter of a subtask has grown in the last seconds; a counter that went back has begun again.
function growth(name, counter) {
  const last = samples[samples.length - 1];
  const now = last.of.get(name)?.[counter];
  if (now === null || now === undefined) return null;
  for (const sample of samples) {
    const before = sample.of.get(name)?.[counter];
    if (sample === last) break;
    if (before !== null && before !== undefined && before <= now) return (now - before) / (last.at - sample.at);
  }
  return null;
}

function takeSample(status) {
  const at = status.metrics.elapsed_s;
  if (samples.length && samples[samples.length - 1].at >= at) return;
  samples.push({ at, of: new Map(status.subtasks.map((one) => [one.subtask, one])) });
  while (samples.length > 2 && at - samples[0].at > WINDOW_S) samples.shift();
}

const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

function withRates(subtasks) {
  return subtasks.map((one) => ({
    ...one,
    in_s: growth(one.subtask, "rows_in"),
    out_s: growth(one.subtask, "rows_out"),
    busy: growth(one.subtask, "busy_s"),
  }));
}

function ofVertices(subtasks) {
  const found = new Map();
  for (const vertex of graph.vertices) {
    const own = subtasks.filter((one) => one.vertex === vertex.name);
    const marks = own.map((one) => one.watermark_ms).filter((value) => value !== null);
    const busy = own.length ? Math.max(0, ...own.map((one) => one.busy ?? 0)) : 0;
    const done = own.map((one) => one.in_s || one.out_s || 0), mean = sum(done) / Math.max(1, own.length);
    const figures = {
      vertex: vertex.name, count: own.length, busy, out_s: sum(own.map((one) => one.out_s)), in_s: sum(own.map((one) => one.in_s)),
      watermark: marks.length ? Math.min(...marks) : null, state: sum(own.map((one) => one.state_bytes)),
      blocked: own.filter((one) => one.blocked).length, running: own.filter((one) => one.state === "running").length,
      skew: mean > 0 ? Math.max(...done) / mean : null,
    };
    figures.lines = [
      `${whole(figures.in_s)} → ${whole(figures.out_s)} rows/s`,
      `busiest ${percent(busy)}${figures.blocked ? `, ${figures.blocked} blocked` : ""}${figures.skew === null ? "" : `, skew ${figures.skew.toFixed(1)}`}`,
      figures.watermark === null ? `state ${bytes(figures.state)}` : `${moment(figures.watermark)}, ${bytes(figures.state)}`,
    ];
    figures.words = `${figures.running} of ${figures.count} subtasks run, ${figures.lines.join(", ")}`;
    found.set(vertex.name, figures);
  }
  return found;
}

// --- what is shown

function show(status) {
  const { job, metrics } = status;
  takeSample(status);
  over = ENDED.includes(metrics.state);
  document.title = `${job.name}: ${metrics.state}`;
  say($("name"), job.name);
  say($("state"), metrics.state);
  $("state").className = `badge ${metrics.state === "running" || metrics.state === "finished" ? "good" : metrics.state === "failed" ? "bad" : ""}`;
  say($("summary"), `${job.job_id}; driver: process ${job.pid} on ${job.host}; parallelism ${job.parallelism}, ${job.recovery}, ${job.guarantee}, ${job.replicas} copies; for ${duration(metrics.running_s)}`);
  announce(status);
  const subtasks = withRates(status.subtasks);
  const vertices = ofVertices(subtasks);
  showNow(status, vertices);
  drawGraph($("graph"), graph, vertices);
  showSubtasks(subtasks, vertices);
  showSlots(status);
  showMoves(status);
  showCheckpoints(status.checkpoints);
  showTargets(status);
}

function announce(status) {
  const moves = status.recoveries.filter((one) => one.recovery_ms !== null);
  if (known_moves !== null && moves.length > known_moves) {
    const last = moves[moves.length - 1];
    say($("link"), `${last.mode} of ${last.subtasks.join(", ")}: new output after ${ms(last.recovery_ms)} ms`);
  } else if (status.metrics.state !== known_state) say($("link"), `The job is ${status.metrics.state}`);
  known_moves = moves.length;
  known_state = status.metrics.state;
}

function isSource(name) {
  return graph.vertices.find((vertex) => vertex.name === name).operators.some((one) => one.kind === "source");
}

function showNow(status, vertices) {
  const { metrics } = status;
  const rate = sum([...vertices.values()].filter((one) => isSource(one.vertex)).map((one) => one.out_s));
  const at = Date.now() / 1000;
  rates.push([at, rate]);
  while (rates.length && at - rates[0][0] > SPAN_S) rates.shift();
  const behind = sum(status.subtasks.map((one) => one.behind_rows));
  const catching = sum(status.chains.map((one) => one.members.filter((member) => member.catching_up).length));
  const last = status.recoveries[status.recoveries.length - 1];
  const tiles = [
    ["Rows per second", whole(rate)],
    ["Committed rows", whole(sum(Object.values(metrics.committed_rows)))],
    ["Rows behind", whole(behind)],
    ["State", `${bytes(metrics.state_bytes)}, ${whole(metrics.state_keys)} keys`],
    ["Checkpoints", `${whole(metrics.checkpoints_completed)}, ${whole(metrics.checkpoints_aborted)} aborted`],
    ["Failovers", `${metrics.failovers}, ${metrics.fallbacks} fell back`],
    ["Last recovery", last ? (last.recovery_ms === null ? "under way" : `${ms(last.recovery_ms)} ms`) : "none"],
    ["Standbys catching up", whole(catching)],
  ];
  if (status.rescaling) tiles.push(["Rescale", `to ${status.rescaling.parallelism}: ${status.rescaling.phase}`]);
  list($("tiles"), tiles, (tile) => tile[0],
    ([heading]) => element("div", {}, element("dt", {}, heading), element("dd")),
    (node, [, value]) => say(node.lastElementChild, value));
  const most = Math.max(...rates.map(([, value]) => value));
  say($("rate-text"), `Rows per second from the sources in the last five minutes: now ${whole(rate)}, at most ${whole(most)}. A dashed line marks each failover.`);
  drawRate($("rate"), rates, status.recoveries.map((one) => one.begin_s).filter((value) => value !== null), SPAN_S, whole);
}

function showSubtasks(subtasks, vertices) {
  list($("strips"), [...vertices.values()], (one) => one.vertex,
    (one) => element("div", { class: "strip", role: "group", "aria-label": `Subtasks of ${one.vertex}` }, element("span")),
    (node, one) => {
      say(node.firstElementChild, `${one.vertex}: ${one.words}`);
      const cells = node.cells ??= node.appendChild(element("div", { class: "strip" }));
      list(cells, subtasks.filter((own) => own.vertex === one.vertex), (own) => own.subtask, makeCell, fillCell);
    });
  const found = subtasks.find((one) => one.subtask === picked);
  say($("picked"), found ? describe(found) : "");
  table($("vertices"), "Figures of each vertex", [
    ["vertex", "", (one) => one.vertex], ["subtasks", "number", (one) => whole(one.count)], ["rows in /s", "number", (one) => whole(one.in_s)],
    ["rows out /s", "number", (one) => whole(one.out_s)], ["busiest", "number", (one) => percent(one.busy)], ["skew", "number", (one) => (one.skew === null ? "-" : one.skew.toFixed(2))],
    ["blocked", "number", (one) => whole(one.blocked)], ["watermark", "number", (one) => moment(one.watermark)], ["state", "number", (one) => bytes(one.state)],
  ], [...vertices.values()], (one) => one.vertex);
  table($("subtasks"), "Figures of each subtask", [
    ["subtask", "", (one) => one.subtask], ["slot", "", (one) => one.slot], ["state", "", (one) => one.state], ["rows in /s", "number", (one) => whole(one.in_s)],
    ["rows out /s", "number", (one) => whole(one.out_s)], ["busy", "number", (one) => percent(one.busy)], ["waiting", "number", (one) => whole(one.waiting_messages)],
    ["behind", "number", (one) => whole(one.behind_rows)], ["watermark", "number", (one) => moment(one.watermark_ms)], ["state", "number", (one) => bytes(one.state_bytes)], ["blocked", "text", (one) => one.blocked],
  ], subtasks, (one) => one.subtask);
}

function describe(one) {
  return `${one.subtask} on ${one.slot}: ${one.state}; ${whole(one.in_s)} rows/s in, ${whole(one.out_s)} out; busy ${percent(one.busy)}; ${whole(one.waiting_messages)} messages waiting; state ${bytes(one.state_bytes)}${one.blocked ? `; blocked: ${one.blocked}` : ""}`;
}

function makeCell(one) {
  const cell = element("button", { type: "button", class: "cell", "aria-pressed": "false" }, element("i"), element("b", {}, String(one.index)));
  cell.addEventListener("click", () => {
    picked = picked === one.subtask ? null : one.subtask;
  });
  return cell;
}

function fillCell(cell, one) {
  const away = one.state !== "running";
  cell.className = `cell${away ? " away" : ""}${one.blocked ? " blocked" : ""}`;
  cell.firstElementChild.style.height = `${Math.min(100, (one.busy ?? 0) * 100)}%`;
  const words = `${one.subtask}, ${one.state}${one.blocked ? ", blocked" : ""}, busy ${percent(one.busy)}`;
  if (cell.title !== words) {
    cell.title = words;
    cell.setAttribute("aria-label", words);
  }
  cell.setAttribute("aria-pressed", String(picked === one.subtask));
}

function showSlots(status) {
  const heads = new Map(), standbys = new Map();
  const put = (where, slot, text) => where.set(slot, [...(where.get(slot) ?? []), text]);
  for (const one of status.subtasks) put(heads, one.slot, one.state === "running" ? one.subtask : `${one.subtask} (${one.state})`);
  for (const chain of status.chains)
    for (const member of chain.members.slice(1))
      put(standbys, member.slot, `${chain.subtask}${member.catching_up ? " (catching up)" : member.lag > 0 ? ` (-${member.lag})` : ""}`);
  const hosts = new Map();
  for (const slot of status.slots) put(hosts, slot.host ?? "No process", slot);
  list($("hosts"), [...hosts], ([host]) => host,
    ([host]) => element("div", { class: "host" }, element("h3", {}, host), element("ul", { class: "slots", "aria-label": `Slots of ${host}` })),
    (node, [host, slots]) => {
      say(node.firstElementChild, `${host}${status.drained_hosts.includes(host) ? " (drained)" : ""}`);
      node.lastElementChild.classList.toggle("dense", status.slots.length > 16);
      list(node.lastElementChild, slots, (slot) => slot.slot,
        () => element("li", { class: "slot" }, element("p", {}, element("b")), element("p"), element("p", { class: "dim" })),
        (card, slot) => {
          card.className = `slot ${slot.state}`;
          say(card.children[0].firstElementChild, `${slot.slot}${slot.spare ? " (spare)" : ""}: ${slot.state}`);
          say(card.children[1], (heads.get(slot.slot) ?? ["runs nothing"]).join(", "));
          say(card.children[2], `stands by for ${(standbys.get(slot.slot) ?? ["none"]).join(", ")}; process ${slot.pid ?? "-"}, ${slot.restarts} restarts, last message ${slot.heard_ms === null ? "-" : `${whole(slot.heard_ms)} ms ago`}`);
        });
    });
}

function showMoves(status) {
  const moves = [...status.recoveries, ...status.handovers, ...status.rescales].sort((a, b) => (b.begin_s ?? 0) - (a.begin_s ?? 0)).slice(0, SHOWN);
  const longest = Math.max(1, ...moves.map((one) => one.recovery_ms ?? 0));
  $("no-moves").hidden = moves.length > 0;
  $("moves").hidden = moves.length === 0;
  list($("legend"), PHASES, (phase) => phase, (phase) => element("li", {}, element("span", { class: `swatch ${phase}` }), phase), () => {});
  table($("moves"), "Newest first; phases in milliseconds", [
    ["at", "", (one) => clock(one.begin_s)],
    ["mode", "", (one) => `${one.mode}${one.failure ? ` (${one.failure})` : ""}`],
    ["subtasks", "text", (one) => shortened(one.subtasks)],
    ["total ms", "number", (one) => (one.recovery_ms === null ? "under way" : ms(one.recovery_ms))],
    ["phases", "wide", (cell, one) => phaseBar(cell, one, longest)],
    ["why", "text", (one) => `${one.reason}${one.fallback ? `; fell back: ${one.fallback}` : ""}`],
  ], moves, (one) => `${one.begin_s} ${one.mode} ${one.failure} ${one.subtasks[0]}`);
}

function shortened(names) {
  return names.length > 6 ? `${names.slice(0, 5).join(", ")} and ${names.length - 5} more` : names.join(", ");
}

function phaseBar(cell, one, longest) {
  if (!cell.firstElementChild) {
    const bar = element("div", { class: "bar", role: "img" });
    for (const phase of PHASES) bar.append(element("i", { class: phase, title: phase }));
    cell.append(bar, element("div", { class: "phases" }));
  }
  PHASES.forEach((phase, at) => {
    const part = cell.firstElementChild.children[at], value = one[`${phase}_ms`] ?? 0;
    part.style.width = `${(value / longest) * 100}%`;
    part.hidden = value === 0;
  });
  const words = PHASES.filter((phase) => one[`${phase}_ms`] !== null).map((phase) => `${phase} ${ms(one[`${phase}_ms`])}`).join(", ");
  say(cell.lastElementChild, words);
  cell.firstElementChild.setAttribute("aria-label", `Phases in ms: ${words}`);
}

function showCheckpoints(checkpoints) {
  const last = checkpoints.slice(-SHOWN).reverse();
  const longest = Math.max(1, ...last.map((one) => one.duration_ms ?? 0));
  table($("checkpoints"), "Newest first; times in milliseconds", [
    ["id", "number", (one) => String(one.id)], ["at", "", (one) => clock(one.triggered_s)],
    ["status", "", (one) => (one.status === "pending" ? "in flight" : one.status)], ["mode", "", (one) => one.mode],
    ["new", "number", (one) => bytes(one.bytes_new)], ["all", "number", (one) => bytes(one.bytes_total)],
    ["sync", "number", (one) => ms(one.sync_ms)], ["async", "number", (one) => ms(one.async_ms)], ["durable", "number", (one) => ms(one.durable_ms)],
    ["standbys", "number", (one) => ms(one.chain_ms)], ["complete", "number", (one) => ms(one.duration_ms)],
    ["time", "wide", (cell, one) => {
      if (!cell.firstElementChild) cell.append(element("div", { class: "bar", "aria-hidden": "true" }, element("i", { class: "whole" })));
      cell.firstElementChild.firstElementChild.style.width = `${((one.duration_ms ?? 0) / longest) * 100}%`;
    }],
    ["reason", "text", (one) => one.reason],
  ], last, (one) => one.id);
}

// --- commands

function lock() {
  $("locked").hidden = token !== null;
  $("commands").hidden = token === null;
}

function showTargets(status) {
  lock();
  const names = [...status.slots.map((one) => one.slot), ...status.subtasks.map((one) => one.subtask.replace(/\[(\d+)\]$/, ":$1"))];
  list($("targets"), names, (name) => name, (name) => element("option", { value: name }, name), () => {});
}

function sure(text) {
  say($("confirm-text"), text);
  $("confirm").returnValue = "no";
  $("confirm").showModal();
  return new Promise((resolve) => $("confirm").addEventListener("close", () => resolve($("confirm").returnValue === "yes"), { once: true }));
}

function onCommand(id, body, question) {
  $(id).addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = body(new FormData($(id)));
    if (!(await sure(question(request)))) return;
    say($("done"), `${id}: under way`);
    try {
      const found = await ask(`api/commands/${id}`, request);
      say($("done"), `${id}: ${Object.entries(found).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name} ${Array.isArray(value) ? shortened(value.map(String)) : value}`).join("; ")}`);
    } catch (error) {
      say($("done"), `${id} was refused: ${error.message}`);
      if (error.status === 401) needToken(error.message);
    }
  });
}

onCommand("inject", (form) => ({ fault: form.get("fault"), target: form.get("target") }), (one) => `Inject ${one.fault} into ${one.target}?`);
onCommand("rescale", (form) => ({ parallelism: Number(form.get("parallelism")) }), (one) => `Continue the job with parallelism ${one.parallelism}?`);
onCommand("savepoint", (form) => ({ target: form.get("target"), stop: form.get("stop") !== null }), (one) => `Take a savepoint at ${one.target}${one.stop ? ", and stop the job" : ""}?`);
onCommand("cancel", () => ({}), () => "End the job now?");
$("ask-token").addEventListener("click", () => {
  $("unlock").dataset.asked = "yes";
  $("unlock").hidden = false;
  $("token").focus();
});
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("token", token);
  say($("token-why"), "This page needs the token of the job.");
  delete $("unlock").dataset.asked;
  look();
});
document.addEventListener("visibilitychange", look);

// After an answer, not at a fixed rate: a slow job is not asked faster than it answers.
async function follow() {
  await look();
  setTimeout(follow, over ? 2000 : EVERY_MS);
}
lock();
follow();
