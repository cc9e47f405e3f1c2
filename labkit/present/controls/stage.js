// Draws what a server does while it does it: slot lanes, KV cells, answers.
//
// The kernel sends frames (labkit/analyze/live.py); between two of them the time axis moves on by itself, so that
// the picture flows. Answers and errors are untrusted: they are only ever set as textContent.

const MIN_SPAN_S = 5, MAX_SPAN_S = 30, KEPT_S = 60;
const DRAW_EVERY_MS = 50;
const LEASE_S = 15, HIDDEN_LEASE_S = 150, RENEW_EVERY_MS = 5000;
const LANE = 34, GUTTER = 78, AXIS = 22, RIGHT = 14;
const TEXT_LIMIT = 4000;

class Stage {
  constructor(model, el) {
    this.model = model;
    this.root = make("div", "labkit-stage", el);
    this.note = make("div", "labkit-note", this.root);
    this.canvas = make("canvas", "labkit-lanes", this.root);
    this.canvas.setAttribute("role", "img");
    this.kv = make("div", "labkit-kv", this.root);
    this.answers = make("div", "labkit-answers", this.root);
    this.forget();
    this.drawn = 0;
    this.frames = 0;
    this.listen();
    this.say({ hello: true });
    this.lease();
  }

  forget() {
    this.state = { t: 0, slots: 0, open: [], requests: [], kv: {}, running: false, title: "" };
    this.spans = [];
    this.marks = new Map();
    this.texts = new Map();
    this.cards = new Map();
    this.boxes = [];
    this.kvKey = "";
    this.answers.replaceChildren();
    this.kv.replaceChildren();
  }

  listen() {
    this.onMessage = (message) => this.take(message);
    this.model.on("msg:custom", this.onMessage);
    this.onLeave = () => { this.say({ here: LEASE_S }); this.leaving = true; };
    this.onShow = () => { this.leaving = false; this.lease(); };
    this.onVisible = () => { this.lease(); this.dirty = true; };
    window.addEventListener("pagehide", this.onLeave);
    window.addEventListener("pageshow", this.onShow);
    document.addEventListener("visibilitychange", this.onVisible);
    this.resized = new ResizeObserver(() => { this.dirty = true; this.draw(); });
    this.resized.observe(this.root);
    this.themed = new MutationObserver(() => { this.dirty = true; this.draw(); });
    this.themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
    this.renewal = setInterval(() => this.lease(), RENEW_EVERY_MS);
    this.counting = setInterval(() => this.count(), 1000);
    const loop = () => { this.animation = requestAnimationFrame(loop); this.tick(); };
    loop();
  }

  dispose() {
    this.model.off("msg:custom", this.onMessage);
    window.removeEventListener("pagehide", this.onLeave);
    window.removeEventListener("pageshow", this.onShow);
    document.removeEventListener("visibilitychange", this.onVisible);
    cancelAnimationFrame(this.animation);
    clearInterval(this.renewal);
    clearInterval(this.counting);
    this.resized.disconnect();
    this.themed.disconnect();
    this.root.remove();
  }

  // A server runs only as long as somebody can see it: the kernel ends it when the lease runs out.
  // A page that is left becomes hidden too, right after it has said so.
  lease() {
    if (!this.leaving) this.say({ here: document.hidden ? HIDDEN_LEASE_S : LEASE_S });
  }

  say(message) {
    try {
      this.model.send(message);
    } catch {
      // the kernel has gone, and its servers with it
    }
  }

  count() {
    this.root.dataset.fps = this.drawn;
    this.root.dataset.framesPerSecond = this.frames;
    this.drawn = 0;
    this.frames = 0;
    this.canvas.setAttribute("aria-label", this.sentence());
  }

  // --- frames in ---------------------------------------------------------------------------------

  take(frame) {
    if (frame.kind !== "frame") return;
    this.frames += 1;
    if (frame.all) this.forget();
    this.arrived = performance.now();
    this.spans.push(...frame.spans);
    for (const [label, times] of Object.entries(frame.marks)) {
      const kept = this.marks.get(label) ?? [];
      kept.push(...times);
      this.marks.set(label, kept);
    }
    for (const [label, text] of Object.entries(frame.text)) {
      this.texts.set(label, ((this.texts.get(label) ?? "") + text).slice(-TEXT_LIMIT));
    }
    this.state = frame;
    this.trim();
    this.dirty = true;
    this.tell();
    this.fillKv();
    this.fillAnswers();
  }

  trim() {
    const since = this.state.t - KEPT_S;
    this.spans = this.spans.filter((span) => span[4] >= since);
    for (const [label, times] of this.marks) {
      const first = times.findIndex((t) => t >= since);
      if (first > 0) times.splice(0, first);
    }
  }

  tell() {
    const { title, deferred } = this.state;
    const waiting = this.state.requests.filter((r) => r.state === "deferred").map((r) => r.label);
    const parts = [title];
    if (waiting.length) parts.push(`waiting without a slot: ${waiting.join(", ")}`);
    if (deferred) parts.push(`the server counts ${deferred} deferred`);
    this.note.textContent = parts.filter(Boolean).join(" · ");
    const busy = this.state.open.map((span) => `${span[0]}:${span[1] || "?"}:${span[2]}`);
    this.root.dataset.busy = busy.join(" ");
    this.root.dataset.waiting = waiting.join(" ");
  }

  sentence() {
    const doing = { held: "waits on it", prefill: "is in prefill", decode: "decodes" };
    const words = this.state.open.map((span) => `slot ${span[0]}: ${span[1] || "another client"} ${doing[span[2]]}`);
    return words.length ? words.join("; ") : "all slots idle";
  }

  // --- lanes -------------------------------------------------------------------------------------

  now() {
    const since = this.state.running ? (performance.now() - this.arrived) / 1000 : 0;
    return this.state.t + Math.min(since, 1);
  }

  tick() {
    const due = performance.now() - (this.last ?? 0) >= DRAW_EVERY_MS;
    if (due && (this.dirty || this.state.running)) this.draw();
  }

  // The window: from the first thing that is kept to now, not longer than MAX_SPAN_S.
  window() {
    const starts = [...this.spans, ...this.state.open].map((span) => span[3])
      .concat(this.state.requests.map((r) => r.sent));
    const end = this.state.running || !starts.length ? this.now() : this.lastEnd();
    const first = starts.length ? Math.min(...starts) : end - MIN_SPAN_S;
    const span = Math.min(MAX_SPAN_S, Math.max(MIN_SPAN_S, (end - first) * 1.02));
    const from = end - first > MAX_SPAN_S ? end - MAX_SPAN_S : first - 0.01 * span;
    return { from, to: from + span, now: end, zero: first };
  }

  lastEnd() {
    const ends = this.spans.map((span) => span[4]).concat(this.state.requests.map((r) => r.end ?? r.sent));
    return ends.length ? Math.max(...ends) : this.state.t;
  }

  draw() {
    const queue = this.queue();
    const lanes = Math.max(1, this.state.slots);
    const width = Math.max(300, this.root.clientWidth);
    const height = LANE * (lanes + queue.length) + AXIS + 8;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.ink = inks(this.root);
    const view = this.window();
    const scale = (width - GUTTER - RIGHT) / (view.to - view.from);
    this.x = (t) => GUTTER + (Math.min(Math.max(t, view.from), view.to) - view.from) * scale;
    this.axis(pen, view, width, height);
    for (let slot = 0; slot < lanes; slot++) this.lane(pen, slot, slot * LANE, width);
    for (const span of this.spans) this.span(pen, span, span[4], view);
    for (const span of this.state.open) this.span(pen, span, view.now, view);
    this.ticks(pen, view);
    queue.forEach((request, row) => this.waiting(pen, request, (lanes + row) * LANE, view));
    if (this.state.running) this.nowLine(pen, view, height);
    this.dirty = false;
    this.last = performance.now();
    this.drawn += 1;
  }

  // Who waits, or waited inside this window, without a slot.
  queue() {
    const held = new Map();
    for (const span of [...this.spans, ...this.state.open]) {
      if (!held.has(span[1]) || span[3] < held.get(span[1])) held.set(span[1], span[3]);
    }
    const until = (r) => [held.get(r.label), r.first, r.end].find((t) => t !== undefined && t !== null);
    const rows = this.state.requests.map((r) => ({ ...r, until: until(r) }));
    return rows.filter((r) => r.state === "deferred" || (r.until ?? r.sent) - r.sent > 0.25).slice(-12);
  }

  axis(pen, view, width, height) {
    const step = [0.5, 1, 2, 5, 10].find((s) => (view.to - view.from) / s <= 12) ?? 10;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.ink.quiet;
    pen.strokeStyle = this.ink.rule;
    pen.lineWidth = 1;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    const first = Math.ceil((view.from - view.zero) / step) * step;
    for (let s = first; view.zero + s <= view.to; s += step) {
      const x = Math.round(this.x(view.zero + s)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, height - AXIS);
      pen.stroke();
      if (x < width - RIGHT - 4) pen.fillText(`${+s.toFixed(1)} s`, x, height - 6);
    }
  }

  lane(pen, slot, y, width) {
    pen.fillStyle = slot % 2 ? "transparent" : this.ink.band;
    pen.fillRect(GUTTER, y, width - GUTTER - RIGHT, LANE);
    pen.fillStyle = this.ink.text;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.font = "12px system-ui, sans-serif";
    pen.fillText(`slot ${slot}`, 4, y + LANE / 2);
  }

  span(pen, [slot, label, kind, start], end, view) {
    if (end < view.from) return;
    const x = this.x(start), right = this.x(end), y = slot * LANE + 6, h = LANE - 12;
    const w = Math.max(2, right - x), tone = this.tone(label);
    pen.lineWidth = 1.5;
    pen.strokeStyle = tone;
    if (kind === "held") {
      pen.setLineDash([4, 3]);
      pen.strokeRect(x + 0.75, y, w - 1.5, h);
      pen.setLineDash([]);
    } else {
      pen.globalAlpha = kind === "prefill" ? 0.75 : 0.22;
      pen.fillStyle = tone;
      pen.fillRect(x, y, w, h);
      pen.globalAlpha = 1;
    }
    if (w > 16) this.name(pen, label || "other", x + 5, y + h / 2, kind === "prefill" ? this.ink.paper : this.ink.text);
  }

  name(pen, text, x, y, tone) {
    pen.font = "bold 12px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillStyle = tone;
    pen.fillText(text, x, y);
  }

  ticks(pen, view) {
    for (const request of this.state.requests) {
      if (request.slot === null) continue;
      const y = request.slot * LANE + LANE - 12;
      pen.strokeStyle = this.tone(request.label);
      pen.lineWidth = 1;
      pen.beginPath();
      let last = -2;
      for (const t of this.marks.get(request.label) ?? []) {
        if (t < view.from) continue;
        const x = this.x(t);
        if (x - last < 1.5) continue; // one mark a pixel is all that an eye can tell
        pen.moveTo(x, y);
        pen.lineTo(x, y + 6);
        last = x;
      }
      pen.stroke();
    }
  }

  waiting(pen, request, y, view) {
    const x = this.x(request.sent), until = request.state === "deferred" ? view.now : request.until;
    const right = this.x(until ?? view.now), tone = this.tone(request.label);
    pen.strokeStyle = tone;
    pen.lineWidth = 1.5;
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(x, y + LANE / 2);
    pen.lineTo(right, y + LANE / 2);
    pen.stroke();
    pen.setLineDash([]);
    pen.font = "12px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillStyle = this.ink.quiet;
    pen.fillText("no slot yet", 4, y + LANE / 2);
    const seconds = Math.max(0, (until ?? view.now) - request.sent).toFixed(1);
    const words = `${request.label} ${request.state === "deferred" ? "waits" : "waited"} ${seconds} s`;
    pen.fillStyle = this.ink.paper;
    const wide = pen.measureText(words).width + 8;
    pen.fillRect(x + 4, y + 6, wide, LANE - 12);
    this.name(pen, words, x + 8, y + LANE / 2, tone);
  }

  nowLine(pen, view, height) {
    const x = Math.round(this.x(view.now)) + 0.5;
    pen.strokeStyle = this.ink.accent;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, 0);
    pen.lineTo(x, height - AXIS);
    pen.stroke();
  }

  tone(label) {
    const request = this.state.requests.find((r) => r.label === label);
    return this.ink.dark ? lighter(request?.colour ?? "#8C8C8C") : request?.colour ?? "#8C8C8C";
  }

  // --- KV cells ----------------------------------------------------------------------------------

  fillKv() {
    const { kv, slots } = this.state;
    if (!kv.pool || !slots) return this.kv.replaceChildren();
    const key = `${kv.unified} ${kv.pool} ${slots}`;
    if (key !== this.kvKey) this.buildKv(key);
    const share = kv.unified ? kv.pool : Math.floor(kv.pool / slots);
    this.boxes.forEach((box, slot) => {
      const inside = this.state.requests.filter((r) => r.cells > 0 && (kv.unified || r.slot === slot));
      const used = inside.reduce((sum, r) => sum + r.cells, 0);
      const who = kv.unified ? "one pool for all slots" : `box of slot ${slot}`;
      box.words.textContent = `${who}: ${used.toLocaleString("en")} of ${share.toLocaleString("en")} cells`;
      box.bar.classList.toggle("labkit-full", used > 0.9 * share);
      box.bar.replaceChildren(...inside.map((r) => this.cells(r, share)));
    });
  }

  buildKv(key) {
    this.kvKey = key;
    const count = this.state.kv.unified ? 1 : this.state.slots;
    this.kv.replaceChildren();
    this.boxes = Array.from({ length: count }, () => {
      const box = make("div", "labkit-box", this.kv);
      return { words: make("div", "labkit-box-words", box), bar: make("div", "labkit-bar", box) };
    });
  }

  cells(request, share) {
    const part = make("div", "labkit-cells");
    part.style.width = `${Math.min(100, (100 * request.cells) / share)}%`;
    part.style.background = this.tone(request.label);
    part.textContent = request.cells > 0.05 * share ? request.label : "";
    part.title = `${request.label}: ${request.cells} cells`;
    return part;
  }

  // --- answers -----------------------------------------------------------------------------------

  fillAnswers() {
    for (const request of this.state.requests) {
      let card = this.cards.get(request.label);
      if (!card) {
        card = make("div", "labkit-answer", this.answers);
        card.head = make("div", "labkit-answer-head", card);
        card.chip = make("span", "labkit-chip", card.head);
        card.words = make("span", "labkit-answer-words", card.head);
        card.body = make("div", "labkit-answer-text", card);
        card.dataset.label = request.label;
        this.cards.set(request.label, card);
      }
      this.fillCard(card, request);
    }
  }

  fillCard(card, request) {
    card.dataset.state = request.state;
    card.chip.textContent = request.label;
    card.chip.style.background = request.colour;
    card.words.textContent = status(request);
    const text = request.error || this.texts.get(request.label) || "";
    if (card.body.textContent !== text) {
      card.body.textContent = text;
      card.body.scrollTop = card.body.scrollHeight;
    }
  }
}

function status(request) {
  const ttft = request.first === null ? "" : `, first token after ${(request.first - request.sent).toFixed(2)} s`;
  const tokens = `${request.tokens} of ${request.max_tokens} tokens`;
  const words = {
    deferred: "waits without a slot",
    held: `on slot ${request.slot}, no token yet`,
    decode: `on slot ${request.slot}, ${tokens}${ttft}`,
    done: `done: ${tokens}${ttft}`,
    failed: `${request.outcome.replace("_", " ")} after ${tokens}`,
  };
  return words[request.state];
}

function make(tag, name, parent) {
  const element = document.createElement(tag);
  element.className = name;
  if (parent) parent.append(element);
  return element;
}

function inks(element) {
  const style = getComputedStyle(element);
  const read = (name, other) => style.getPropertyValue(name).trim() || other;
  const dark = document.body.dataset.jpThemeLight === "false";
  return {
    dark,
    text: read("--jp-ui-font-color1", "#1a1a1a"),
    quiet: read("--jp-ui-font-color2", "#5f6368"),
    rule: read("--jp-border-color2", "#e3e5e8"),
    band: read("--jp-layout-color2", "#f6f7f8"),
    paper: read("--jp-layout-color1", "#ffffff"),
    accent: read("--jp-brand-color1", "#0072b2"),
  };
}

function lighter(hex) {
  const part = (i) => parseInt(hex.slice(i, i + 2), 16);
  return `rgb(${[1, 3, 5].map((i) => Math.round(part(i) + (255 - part(i)) * 0.4)).join(",")})`;
}

function render({ model, el }) {
  const stage = new Stage(model, el);
  return () => stage.dispose();
}

export default { render };
