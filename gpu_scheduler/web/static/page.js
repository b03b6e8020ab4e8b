// The web page of a queue. It shows the answers of the REST API and changes nothing by itself.
// All text reaches the document as text nodes, never as markup.
import { html, render, useEffect, useRef, useState } from "./preact.js";

const PAGE = 200, ACTIVE = ["starting", "running", "stopping"], WAITING = ["queued", "held"];
const LISTS = {
  running: { title: "Running", states: ACTIVE, order: "queue", limit: PAGE },
  queue: { title: "Queue", states: WAITING, order: "queue", limit: PAGE },
  finished: { title: "Finished", states: ["finished"], order: "finished", limit: 50 },
};
const model = {
  lists: { running: empty(), queue: empty(), finished: empty() }, gpus: [], health: null, use: null,
  search: "", problems: {}, answer: null, isDown: false, said: "", now: Date.now() / 1000, versions: new Map(),
};
const watchers = new Set();
let redraw = 0, lastEvent = null, streaming = null, saidAt = 0;

function empty() { return { jobs: [], next: null }; }
function set(values) {
  Object.assign(model, values);
  redraw ||= requestAnimationFrame(() => { redraw = 0; watchers.forEach((watch) => watch({})); });
}

// Text. Characters that would move or hide other text are shown by their numbers.
const MOVING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const safe = (text, most = 300) => {
  const shown = String(text ?? "").replace(MOVING, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return shown.length > most ? `${shown.slice(0, most)}…` : shown;
};
const gib = (mib) => (mib == null ? "n/a" : `${(mib / 1024).toFixed(1)} GiB`);
function duration(seconds) {
  const s = Math.max(0, Math.round(seconds)), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}
const named = (job) => safe(job.name ? `${job.name}` : job.command, 120);

// Requests.
class Failure extends Error {
  constructor(status, text) { super(text); this.status = status; }
}
async function request(path, options = {}) {
  const token = sessionStorage.getItem("token"), headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (options.body) headers["Content-Type"] = "application/json";
  let answer;
  try { answer = await fetch(path, { signal: AbortSignal.timeout(30_000), ...options, headers }); } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure(0, "The web server does not answer. This page tries again by itself; `gpu-scheduler start --serve` starts it.");
  }
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  const text = found.detail ?? `${answer.status} ${answer.statusText}`;
  if (answer.status === 401) {
    sessionStorage.removeItem("token");
    throw new Failure(401, `${text} Or run \`gpu-scheduler link\` on the machine, and open the link that it prints.`);
  }
  throw new Failure(answer.status, text);
}
async function get(path) {
  const answer = await request(`/api/v1/${path}`);
  const isDown = answer.headers.get("X-Scheduler") === "down", found = await answer.json();
  set({ isDown });
  return found;
}
const post = async (path, body, headers = {}) =>
  (await request(`/api/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
// Notes why something cannot be read at present; without an error, that it can.
function noted(what, error = null) {
  if (error?.name !== "AbortError") set({ problems: { ...model.problems, [what]: error?.message } });
}
// Yields the events of a stream, first one of the kind "open". The server sends something every 15 s.
async function* events(path, last, signal) {
  const headers = last == null ? {} : { "Last-Event-ID": String(last) }, mine = new AbortController();
  const stop = () => mine.abort();
  signal.addEventListener("abort", stop);
  let quiet = setTimeout(stop, 45_000);
  try {
    const answer = await request(`/api/v1/${path}`, { headers, signal: mine.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", isOpen = false; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(quiet); quiet = setTimeout(stop, 45_000);
      if (!isOpen) { isOpen = true; yield { kind: "open", data: {} }; }
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
        if (fields.data) yield { id: fields.id, kind: fields.event, data: JSON.parse(fields.data) };
      }
    }
  } finally { clearTimeout(quiet); signal.removeEventListener("abort", stop); stop(); }
}

// The lists. Much changes without an event, such as a priority or the reason why a job waits, so they are read anew.
const listQuery = (name, more = {}) => {
  const list = LISTS[name], query = new URLSearchParams({ order: list.order, limit: list.limit, ...more });
  list.states.forEach((state) => query.append("state", state));
  if (model.search) query.set("search", model.search);
  return `jobs?${query}`;
};
async function loadList(name) {
  const query = listQuery(name, { limit: Math.min(PAGE, Math.max(LISTS[name].limit, model.lists[name].jobs.length)) });
  const found = await get(query), old = model.lists[name];
  if (new URLSearchParams(query).get("search") !== (model.search || null)) return;  // the answer for an earlier search
  found.jobs = found.jobs.filter((job) => !job.cleared);
  if (old.rest && found.next) {  // pages that were asked for by hand stay until they are asked for again
    const known = new Set(found.jobs.map((job) => job.id));
    const rest = old.rest.filter((job) => !known.has(job.id));
    set({ lists: { ...model.lists, [name]: { jobs: [...found.jobs, ...rest], rest, next: old.next } } });
  } else set({ lists: { ...model.lists, [name]: found } });
}
async function loadMore(name) {
  const cursor = model.lists[name].next, page = await get(listQuery(name, { cursor, limit: PAGE })), list = model.lists[name];
  if (list.next !== cursor) return;  // asked for twice
  const rest = [...(list.rest ?? []), ...page.jobs];
  set({ lists: { ...model.lists, [name]: { jobs: [...list.jobs, ...page.jobs], rest, next: page.next } } });
}
const loadLists = () => Promise.all(Object.keys(LISTS).map(loadList));
const loadGpus = async () => { const found = await get("gpus"); set({ gpus: found.gpus, now: found.now }); };
const loadHealth = async () => set({ health: await get("health") });
const loadUse = async () => set({ use: await get("use?hours=2") });

// What is read, every how many seconds, and how soon after an event. A hidden tab reads nothing.
const LOADS = {
  lists: { load: loadLists, every: 5, after: 0.02 }, gpus: { load: loadGpus, every: 3, after: 0.5 },
  health: { load: loadHealth, every: 15, after: 0.5 }, use: { load: loadUse, every: 20, after: 5 },
};
const due = { lists: 0, gpus: 0, health: 0, use: 0 }, loadedAt = { ...due }, busy = new Set();
function soon(isNow = false) {
  for (const [name, { after }] of Object.entries(LOADS)) {
    const at = isNow ? 0 : Math.max(Date.now() + 1000 * after, loadedAt[name] + 300);
    due[name] = Math.min(due[name], at);
  }
}
function tick() {
  for (const [name, { load, every }] of Object.entries(LOADS)) {
    if (document.hidden || Date.now() < due[name] || busy.has(name)) continue;
    busy.add(name); loadedAt[name] = Date.now(); due[name] = Date.now() + 1000 * every;
    load().then(() => noted(name), (error) => noted(name, error)).finally(() => busy.delete(name));
  }
}
function note(event) {
  model.versions.set(event.job, (model.versions.get(event.job) ?? 0) + 1);
  if (Date.now() - saidAt < 5000) return;  // a screen reader could not keep up
  saidAt = Date.now();
  set({ said: `job ${event.job}: ${event.outcome ?? event.event}` });
}
async function follow() {
  streaming?.abort();
  const mine = (streaming = new AbortController());
  for (let wait = 1; !mine.signal.aborted; wait = Math.min(2 * wait, 15)) {
    try {
      for await (const { id, kind, data } of events("events", lastEvent, mine.signal)) {
        lastEvent = id ?? lastEvent; wait = 1;
        if (kind === "open") noted("events");
        if (data.job) note(data);
        soon(kind === "open" || kind === "reset");
      }
    } catch (error) { if (!mine.signal.aborted) noted("events", error); }
    if (!mine.signal.aborted) await new Promise((done) => setTimeout(done, 1000 * wait));
  }
}
document.addEventListener("visibilitychange", () => { if (document.hidden) streaming?.abort(); else follow(); });

// The log of a job, as a terminal would show it: colours, and a line that \r has replaced is gone.
class Terminal {
  lines = [[]]; style = ""; rest = ""; returned = false;
  feed(text) {
    text = this.rest + text;
    const cut = text.match(/\x1b(\[[0-9;?]*|\][^\x07\x1b]{0,200})?$/);
    this.rest = cut ? cut[0] : "";
    for (const part of text.slice(0, text.length - this.rest.length).split(/(\x1b\[[0-9;?]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^[\]]|\r|\n)/)) {
      if (part === "\n") { this.lines.push([]); this.returned = false; }
      else if (part === "\r") this.returned = true;
      else if (/^\x1b\[[0-9;]*m$/.test(part)) {
        const codes = part.slice(2, -1).split(";").filter((code) => /^(1|3[0-7]|9[0-7])$/.test(code));
        this.style = codes.map((code) => `c${code}`).join(" ");
      } else if (part && part[0] !== "\x1b") {
        if (this.returned) { this.lines[this.lines.length - 1] = []; this.returned = false; }
        const line = this.lines[this.lines.length - 1], last = line[line.length - 1];
        if (last?.[0] === this.style) last[1] = (last[1] + safe(part, 4000)).slice(0, 20_000);
        else if (line.length < 500) line.push([this.style, safe(part, 4000)]);
      }
    }
    if (this.lines.length > 2000) this.lines.splice(0, this.lines.length - 2000);
  }
}
const TAIL = 262_144;
async function tailOf(id) {  // the position from which the last part of a log begins; null for all of it
  try {
    const answer = await request(`/api/v1/jobs/${id}/log`, { headers: { Range: `bytes=-${TAIL}` } });
    const start = answer.headers.get("Content-Range")?.match(/^bytes (\d+)-/)?.[1];
    answer.body.cancel();
    return start ? `${answer.headers.get("X-Attempt")}:${start}` : null;
  } catch (error) { if (error.status === 404 || error.status === 416) return null; throw error; }
}
function Log({ id }) {
  const [lines, setLines] = useState([]), [state, setState] = useState("loading"), box = useRef(), isAtEnd = useRef(true);
  useEffect(() => {
    let last = null, stop = new AbortController(), terminal = new Terminal(), frame = 0;
    async function read() {
      const mine = stop;
      while (!mine.signal.aborted) {
        try {
          last ??= await tailOf(id);
          for await (const event of events(`jobs/${id}/log/stream`, last, mine.signal)) {
            if (event.kind === "end") { setState("complete"); return; }
            if (event.kind !== "log") continue;
            last = event.id; terminal.feed(event.data.text); setState("live");
            frame ||= requestAnimationFrame(() => { frame = 0; setLines([...terminal.lines]); });
          }
        } catch (error) { if (!mine.signal.aborted) setState(error.message); }
        await new Promise((done) => setTimeout(done, 2000));
      }
    }
    const turn = () => { stop.abort(); if (!document.hidden) { stop = new AbortController(); read(); } };
    document.addEventListener("visibilitychange", turn);
    read();
    return () => { stop.abort(); cancelAnimationFrame(frame); document.removeEventListener("visibilitychange", turn); };
  }, [id]);
  useEffect(() => { if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight; }, [lines]);
  const scrolled = ({ target }) => { isAtEnd.current = target.scrollTop + target.clientHeight > target.scrollHeight - 30; };
  return html`<h2>Log <span class="soft">${state}</span></h2>
    <pre ref=${box} tabindex="0" role="region" aria-label="Log" onScroll=${scrolled}>${lines.map((line) => html`${line.map(([style, text]) => html`<span class=${style}>${text}</span>`)}${"\n"}`)}</pre>`;
}

// Dialogs.
function Dialog({ title, onClose, children }) {
  const box = useRef();
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose}>
    <div class="tools"><h1>${title}</h1><button class="spread" onClick=${onClose}>Close</button></div><${Answers} />${children}</dialog>`;
}
// What the queue has answered, and what is wrong; also in a dialog, behind which the page cannot be reached.
function Answers() {
  const problems = [...new Set(Object.values(model.problems).filter(Boolean))];
  return html`${problems.map((text) => html`<p class="banner bad" role="alert">${safe(text, 2000)}</p>`)}
    ${model.answer && html`<p class="banner" role="status">${safe(model.answer, 2000)} <button onClick=${() => set({ answer: null })}>OK</button></p>`}`;
}
// Asks first if a change ends work. Shows the answer of the scheduler, or why it refuses.
async function change(path, body, question) {
  if (question && !(await new Promise((done) => set({ question: { text: question, done } })))) return;
  try {
    const found = await post(path, body);
    set({ answer: found.answers.map((one) => `${one.job ?? `GPU ${one.gpu}`}: ${one.text}`).join("; ") });
  } catch (error) { set({ answer: error.message }); }
  soon(true);
}
function Question({ text, done }) {
  const end = (answer) => { set({ question: null }); done(answer); };
  return html`<${Dialog} title="Are you sure?" onClose=${() => end(false)}><p>${text}</p>
    <div class="tools"><button class="main" onClick=${() => end(true)}>Yes</button><button onClick=${() => end(false)}>No</button></div><//>`;
}
function Actions({ job }) {
  const jobs = [job.id], text = `job ${job.id} (${named(job)})`;
  const button = (label, path, body = {}, question = null) =>
    html`<button class=${question ? "end" : ""} onClick=${() => change(path, { jobs, ...body }, question)}>${label}</button>`;
  const active = ACTIVE.includes(job.state), [priority, setPriority] = useState(job.priority);
  return html`<div class="tools">
    ${job.state !== "finished" && button("Cancel", "cancel", {}, `Cancel ${text}?${active ? " Its work ends." : ""}`)}
    ${active && button("Preempt", "preempt", {}, `Preempt ${text}? It saves its work and waits until it is resumed.`)}
    ${job.state === "queued" && button("Hold", "hold")} ${job.state === "held" && button("Release", "release")}
    ${job.state === "finished" && button("Retry", "retry")}
    ${WAITING.includes(job.state) && html`<label>Priority <input type="number" min="0" value=${priority} onInput=${(e) => setPriority(Number(e.target.value))} /></label>
      ${button("Set priority", "priority", { priority })}`}</div>`;
}
function JobDialog({ id, onClose }) {
  const [found, setFound] = useState(null), [why, setWhy] = useState(null), [problem, setProblem] = useState(null);
  const listed = Object.values(model.lists).flatMap((list) => list.jobs).find((job) => job.id === id);
  useEffect(() => {
    get(`jobs/${id}`).then(setFound).catch((error) => setProblem(error.status === 404 ? `There is no job ${id}.` : error.message));
    get(`jobs/${id}/why`).then(setWhy).catch(() => setWhy({ checks: [] }));
  }, [id, listed?.state, model.versions.get(id)]);
  if (problem) return html`<${Dialog} title=${`Job ${id}`} onClose=${onClose}><p>${problem}</p><//>`;
  const job = listed ?? found?.job;
  if (!job) return html`<${Dialog} title=${`Job ${id}`} onClose=${onClose}><p>Loading…</p><//>`;
  const facts = {
    Command: job.command, State: `${job.outcome ?? job.state}${job.exit_code != null ? `, exit code ${job.exit_code}` : ""}`,
    Reason: job.reason, GPUs: job.engine ? `${job.engine.name} ${job.engine.node}` : job.gpus.join(", "),
    Progress: progress(job), "Peak memory": Object.entries(job.peaks).map(([gpu, mib]) => `GPU ${gpu}: ${gib(mib)}`).join(", "),
    Declared: job.vram_declared == null ? null : gib(job.vram_declared), Warnings: job.warnings.join("; "), Log: job.log, Source: job.source,
  };
  return html`<${Dialog} title=${safe(`Job ${id}${job.name ? `: ${job.name}` : ""}`, 100000)} onClose=${onClose}>
    <${Actions} job=${job} />
    <dl>${Object.entries(facts).filter(([, value]) => value).map(([key, value]) => html`<dt class="soft">${key}</dt><dd class=${key === "Command" ? "line" : ""}>${safe(value, 100000)}</dd>`)}</dl>
    ${why?.checks.length ? html`<h2>Why</h2><dl>${why.checks.map((check) => html`<dt class=${check.grade === "ok" ? "soft" : check.grade}>${check.grade}: ${safe(check.check)}</dt>
      <dd>${safe(check.message, 2000)}${check.remedy && html` <em>${safe(check.remedy, 1000)}</em>`}</dd>`)}</dl>` : ""}
    ${job.attempts > 0 && html`<${Log} id=${id} />`}<//>`;
}
const FIELDS = ["name", "gpus", "share", "vram", "priority", "timeout", "after", "conda"];
function Submit({ onClose }) {
  const [given, setGiven] = useState({ command: "", cwd: "" }), [preview, setPreview] = useState(null), [problem, setProblem] = useState(null);
  const key = useRef(crypto.randomUUID?.() ?? String(Math.random()));
  const attributes = Object.fromEntries(FIELDS.filter((name) => given[name]).map((name) => [name, given[name]]));
  const body = { command: given.command, attributes, ...(given.cwd ? { cwd: given.cwd } : {}) };
  const put = (name) => (event) => { setGiven({ ...given, [name]: event.target.value }); setPreview(null); };
  const guilty = problem && (["command", "cwd", ...FIELDS].find((name) => new RegExp(`\\b${name}\\b`).test(problem)) ?? "command");
  const fault = (name) => guilty === name && html`<span id="problem" class="bad" role="alert">${problem}</span>`;
  const field = (name, more = {}) => html`<div><label>${name}<input class="wide" value=${given[name] ?? ""} onInput=${put(name)} ...${more}
    aria-invalid=${guilty === name} aria-describedby=${guilty === name ? "problem" : undefined} /></label>${fault(name)}</div>`;
  const send = async (event) => {
    event.preventDefault(); setProblem(null);
    try {
      if (!preview) return setPreview(await post("preview", body));
      const made = await post("jobs", body, { "Idempotency-Key": key.current });
      set({ answer: `queued as job ${made.ids.join(", ")}` }); soon(true); onClose();
    } catch (error) { setProblem(safe(error.message, 2000)); }
  };
  return html`<${Dialog} title="Submit a job" onClose=${onClose}><form onSubmit=${send}>
    <label>command<textarea rows="3" required value=${given.command} onInput=${put("command")} aria-invalid=${guilty === "command"}></textarea></label>${fault("command")}
    <div class="fields">${FIELDS.map((name) => field(name))}${field("cwd", { placeholder: "folder of the server" })}</div>
    ${preview && html`<h2>This will be queued</h2>${preview.jobs.map((job) => html`<pre>${safe(job.command, 5000)}</pre><p class="soft">in ${safe(job.cwd, 1000)}</p>`)}
      ${preview.warnings.map((text) => html`<p class="warn">Warning: ${safe(text, 1000)}</p>`)}`}
    <p class="tools"><button class="main">${preview ? "Queue it" : "Preview"}</button></p></form><//>`;
}

// The parts of the page.
function progress(job) {
  const found = job.progress;
  if (!found || found.current == null) return "";
  const percent = found.percent == null ? "" : `${Math.round(found.percent)} %, `;
  return `${percent}${found.unit} ${found.current}${found.total == null ? "" : `/${found.total}`}${found.eta_s == null ? "" : `, ${duration(found.eta_s)} left`}`;
}
function Spark({ gpu }) {
  const samples = (model.use?.samples ?? []).map((one) => [one.at, one.gpus.find((other) => other.index === gpu.index)]).filter(([, one]) => one);
  if (samples.length < 2) return "";
  const end = samples[samples.length - 1][0];
  const points = (value) => samples.filter(([, one]) => value(one) != null).map(([at, one]) => `${300 - (end - at) / 6},${31 - 30 * Math.min(1, value(one))}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 300 32" preserveAspectRatio="none" role="img" aria-label="memory and load of the last 30 minutes">
    <polyline class="used" points=${points((one) => one.memory_used_mib != null && gpu.memory_total_mib ? one.memory_used_mib / gpu.memory_total_mib : null)} />
    <polyline class="load" points=${points((one) => (one.load_percent == null ? null : one.load_percent / 100))} /></svg>`;
}
function Gpu({ gpu }) {
  const total = gpu.memory_total_mib || 1, used = gpu.memory_used_mib ?? 0;
  let at = 0;
  const parts = model.lists.running.jobs.filter((job) => gpu.jobs.includes(job.id)).map((job) => {
    const mib = Math.min(job.peaks[gpu.index] ?? 0, used - at), from = at;
    at += Math.max(0, mib);
    return { job, mib, from };
  });
  const paused = gpu.state === "paused", reasons = [gpu.fault, gpu.pause_reason && `paused ${gpu.pause_reason}`, gpu.suspicion && `jobs ${gpu.suspicion.jobs.join(", ")} failed on it`,
    gpu.claims?.length && `${gpu.claims.length} claims of other programs`, gpu.claims_problem, gpu.reserved_for.length && `reserved for job ${gpu.reserved_for.join(", ")}`].filter(Boolean);
  const states = { lost: "bad", suspect: "bad", paused: "warn", claimed: "warn", reserved: "warn", available: "good" };
  return html`<section class="card"><h3>GPU ${gpu.index} <span class=${states[gpu.state] ?? ""}>${gpu.state}</span>
      <button onClick=${() => change(paused ? "gpus/resume" : "gpus/pause", { gpus: [gpu.index] })}>${paused ? "Resume" : "Pause"}<span class="hidden"> GPU ${gpu.index}</span></button></h3>
    <p class="soft">${safe(gpu.name)}</p>
    <svg class="bar" viewBox=${`0 0 ${total} 10`} preserveAspectRatio="none" role="img" aria-label=${`${gib(used)} of ${gib(gpu.memory_total_mib)} used`}>
      ${parts.map(({ job, mib, from }) => html`<rect class="job" x=${from} y="0" width=${Math.max(0, mib)} height="10"><title>job ${job.id}: at most ${gib(mib)}</title></rect>`)}
      <rect class="others" x=${at} y="0" width=${Math.max(0, used - at)} height="10"><title>others: ${gib(used - at)}</title></rect></svg>
    <p>${gib(gpu.memory_used_mib)} of ${gib(gpu.memory_total_mib)} used, load ${gpu.load_percent == null ? "n/a" : `${Math.round(gpu.load_percent)} %`}, ${Math.round(gpu.allocated * 100)} % allocated</p>
    <p class="soft">${parts.map(({ job, mib }) => html`<a href=${`#job/${job.id}`}>job ${job.id}</a> (${named(job)}) ${mib > 0 ? gib(mib) : ""} `)}${used - at > 0 ? `others ${gib(used - at)}` : ""}</p>
    ${reasons.length ? html`<p class="warn">${safe(reasons.join("; "), 1000)}</p>` : ""}<${Spark} gpu=${gpu} /></section>`;
}
// Runs that overlap on a GPU, because they share it, get rows of their own.
function rowsOf(runs, now) {
  const ends = [];
  const rows = runs.map((run) => {
    const free = ends.findIndex((end) => end <= run.started_at), row = free < 0 ? ends.length : free;
    ends[row] = run.ended_at ?? now;
    return [run, row];
  });
  return [rows, Math.max(1, ends.length)];
}
function Lane({ gpu, use }) {
  const width = 1000, from = use.now - 3600 * use.hours, x = (at) => Math.max(0, ((at - from) / (3600 * use.hours)) * width);
  const [rows, n] = rowsOf(use.runs.filter((run) => run.gpus.includes(gpu.index)), use.now), height = 16 / n;
  return html`<span>GPU ${gpu.index}</span><svg class="lane" viewBox=${`0 0 ${width} 18`} preserveAspectRatio="none" role="img" aria-label=${`jobs that ran on GPU ${gpu.index}`}>
    ${rows.map(([run, row]) => html`<rect class=${run.outcome == null ? "running" : run.outcome === "completed" ? "completed" : "failed"} fill=${run.outcome == null || run.outcome === "completed" ? null : "url(#stripes)"} x=${x(run.started_at)} y=${1 + row * height} height=${height}
      width=${Math.max(2, x(run.ended_at ?? use.now) - x(run.started_at))}><title>${safe(`job ${run.job} ${run.name ?? ""}: ${run.outcome ?? "running"}`)}</title></rect>`)}</svg>`;
}
function Lanes() {
  const use = model.use;
  if (!use?.runs.length) return "";
  return html`<h2>The last ${use.hours} hours <span class="soft">green: completed, red stripes: failed or ended otherwise, blue frame: running${use.reserved_idle_s >= 60 ? `; reserved GPUs were idle for ${duration(use.reserved_idle_s)}` : ""}</span></h2>
    <svg class="hidden"><pattern id="stripes" class="stripes" width="6" height="18" patternUnits="userSpaceOnUse"><rect class="back" width="6" height="18" /><rect class="front" width="3" height="18" /></pattern></svg>
    <div class="lanes">${model.gpus.map((gpu) => html`<${Lane} key=${gpu.index} gpu=${gpu} use=${use} />`)}</div>`;
}
function Rows({ name }) {
  const list = model.lists[name], { title } = LISTS[name], runs = [];
  for (const job of list.jobs) {  // equal reasons of neighbours share one cell
    const last = runs[runs.length - 1];
    if (name === "queue" && last && last[0].reason === job.reason) last.push(job); else runs.push([job]);
  }
  const last = (job) => (name === "running" ? progress(job) : job.reason);
  const counts = model.health?.counts ?? {}, total = LISTS[name].states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
  return html`<section><h2 id=${name}>${title} <span class="soft">${model.search ? `${list.jobs.length}${list.next ? "+" : ""} found` : total}</span></h2>
    ${list.jobs.length ? html`<table aria-labelledby=${name}><thead><tr><th class="id">Job</th><th class="what">What</th><th class="state">State</th><th class="few">${name === "queue" ? "Priority" : "GPUs"}</th>
      <th>${name === "running" ? "Progress" : "Reason"}</th></tr></thead>
    <tbody>${runs.flatMap((jobs) => jobs.map((job, n) => html`<tr key=${job.id}><td class="id"><a href=${`#job/${job.id}`}>${job.id}</a></td><td class="name" title=${safe(job.command)}>${named(job)}</td>
      <td class=${job.outcome && job.outcome !== "completed" ? "bad" : ""}>${job.infeasible ? "infeasible" : (job.outcome ?? job.state)}</td>
      <td class="few">${name === "queue" ? job.priority : (job.engine?.node || job.gpus.join(", "))}</td>
      ${n === 0 && html`<td class="reason" rowspan=${jobs.length}>${safe(last(job), 500)}${name === "running" && job.started_at ? html` <span class="soft">${duration(model.now - job.started_at)}</span>` : ""}</td>`}</tr>`))}</tbody></table>`
    : html`<p class="soft">${model.search ? `There is no job here that contains “${safe(model.search)}”.` : "none"}</p>`}
    ${list.next && html`<p><button onClick=${() => loadMore(name).catch((error) => noted("lists", error))}>Show more<span class="hidden"> of ${title}</span></button></p>`}</section>`;
}
function address() {
  const [, kind, value] = location.hash.match(/^#(job|gpu|search)\/(.*)$/) ?? [];
  try { return { kind, value: decodeURIComponent(value ?? "") }; } catch { return { kind, value }; }
}
function App() {
  const [, draw] = useState({}), [where, setWhere] = useState(address()), [isSubmitting, setSubmitting] = useState(false), before = useRef("#");
  useEffect(() => {
    watchers.add(draw);
    const turn = () => {
      if (location.hash.startsWith("#link=")) return location.reload();
      const found = address();
      setWhere(found);
      if (found.kind !== "job") before.current = location.hash || "#";
      const search = found.kind === "search" ? found.value : found.kind ? model.search : "";
      if (search !== model.search) { set({ search, lists: { running: empty(), queue: empty(), finished: empty() } }); due.lists = 0; }
    };
    turn();
    addEventListener("hashchange", turn);
    return () => { watchers.delete(draw); removeEventListener("hashchange", turn); };
  }, []);
  const back = () => { location.hash = before.current; };
  const health = model.health, isJob = where.kind === "job", wrong = isJob ? !/^[1-9][0-9]{0,14}$/.test(where.value)
    : where.kind === "gpu" && model.gpus.length > 0 && !model.gpus.some((gpu) => String(gpu.index) === where.value);
  const gpus = where.kind === "gpu" && !wrong ? model.gpus.filter((gpu) => String(gpu.index) === where.value) : model.gpus;
  return html`<header><h1>GPU jobs</h1><span class="soft">${health && Object.entries(health.counts).map(([state, n]) => `${n} ${state}`).join(", ")}</span>
      <label class="spread"><span class="hidden">Search jobs</span><input type="search" placeholder="search jobs" key=${model.search} defaultValue=${model.search}
        onChange=${(event) => { location.hash = event.target.value ? `#search/${encodeURIComponent(event.target.value)}` : "#"; }} /></label>
      <button class="main" onClick=${() => setSubmitting(true)}>Submit a job</button></header>
    <main><${Answers} />
    ${model.isDown && html`<p class="banner bad">No scheduler runs for this queue: running jobs go on, and no job starts. \`gpu-scheduler start\` starts it.</p>`}
    ${(health?.health_issues ?? []).map((one) => html`<p class="banner">${safe(`${one.subject} ${one.path} ${one.problem}; ${one.remedy}`, 2000)}</p>`)}
    ${health?.malformed_count > 0 && html`<p class="banner">${health.malformed_count} malformed lines in the jobs file; \`gpu-scheduler lint\` shows them.</p>`}
    ${wrong && html`<p class="banner">There is no ${where.kind === "gpu" ? "GPU" : "job"} ${safe(where.value)}.</p>`}
    <h2 class="hidden">GPUs</h2><div class="cards">${gpus.map((gpu) => html`<${Gpu} key=${gpu.index} gpu=${gpu} />`)}</div>
    <${Lanes} />${Object.keys(LISTS).map((name) => html`<${Rows} key=${name} name=${name} />`)}</main>
    <div class="hidden" aria-live="polite">${model.said}</div>
    ${isJob && !wrong && html`<${JobDialog} key=${where.value} id=${Number(where.value)} onClose=${back} />`}
    ${isSubmitting && html`<${Submit} onClose=${() => setSubmitting(false)} />`}
    ${model.question && html`<${Question} ...${model.question} />`}`;
}

// A link of `gpu-scheduler link` is exchanged for a token, and leaves the address bar first.
const link = location.hash.match(/^#link=(.+)$/);
if (link) {
  history.replaceState(null, "", "/");
  await post("session", { secret: link[1] }).then((found) => sessionStorage.setItem("token", found.token), (error) => noted("link", error));
}
document.getElementById("app").replaceChildren();
render(html`<${App} />`, document.getElementById("app"));
if (!document.hidden) follow();
setInterval(tick, 50);
