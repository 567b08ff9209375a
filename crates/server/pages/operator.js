// Asks for status.json every second and shows it. Everything is set as text, so nothing in it can be markup.

const INTERVAL_MS = 1_000;
const TIMEOUT_MS = 5_000;

const element = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

const quantiles = (us) => (us ? `${whole.format(us.p50)} / ${whole.format(us.p99)}` : "–");
const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

function duration(seconds) {
  const days = Math.floor(seconds / 86_400);
  const clock = [Math.floor(seconds / 3_600) % 24, Math.floor(seconds / 60) % 60, seconds % 60];
  const text = clock.map((part) => String(part).padStart(2, "0")).join(":");
  return days > 0 ? `${days} d ${text}` : text;
}

/** Changes only what differs, so that a selection or a reader's place in the table survives. */
function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function fill(body, rows, empty) {
  const wanted = rows.length > 0 ? rows : [[empty]];
  const head = body.parentElement.tHead.rows[0];
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  for (const [at, cells] of wanted.entries()) {
    const row = body.rows[at] ?? body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    for (const [column, text] of cells.entries()) {
      const cell = row.cells[column] ?? row.insertCell();
      cell.colSpan = rows.length > 0 ? 1 : head.cells.length;
      cell.className = rows.length > 0 ? head.cells[column].className : "";
      setText(cell, String(text));
    }
  }
}

function showFigures(figures) {
  const list = element("figures");
  for (const [at, [name, value]] of figures.entries()) {
    if (!list.children[at]) {
      const group = document.createElement("div");
      group.append(document.createElement("dt"), document.createElement("dd"));
      list.append(group);
    }
    setText(list.children[at].firstChild, name);
    setText(list.children[at].lastChild, String(value));
  }
}

const MIXES = { samples: "mix", opus: "mix in Opus" };

function takes({ forwarded, mix, copies }) {
  const streams = forwarded > 0 ? [`${forwarded} forwarded`] : [];
  if (mix !== null) streams.push(MIXES[mix]);
  if (streams.length === 0) return "nothing";
  return streams.join(", ") + (copies ? ", with copies" : "");
}

function show(status) {
  const media = new Map((status.relay?.rooms ?? []).map((room) => [room.room, room]));
  showFigures([
    ["Version", status.version],
    ["Up", duration(status.uptime_s)],
    ["Rooms", whole.format(status.rooms.length)],
    ["Participants", whole.format(sum(status.rooms, "participants"))],
    ["Connections", whole.format(status.connections)],
    ["Relay, socket to socket, µs", status.relay ? quantiles(status.relay.transit_us) : "–"],
    ["Relay loop lag, µs", status.relay ? quantiles(status.relay.loop_lag_us) : "–"],
  ]);
  const rooms = status.rooms.map((room) => {
    const sound = media.get(room.room);
    const rates = ["packets_in_per_s", "packets_out_per_s"].map((field) =>
      sound ? whole.format(sum(sound.participants, field)) : "–",
    );
    return [
      room.room,
      room.participants,
      room.away,
      room.muted,
      room.locked ? "yes" : "no",
      room.sample_rate_hz,
      ...rates,
      quantiles(sound?.forward_us),
      quantiles(sound?.mix_us),
    ];
  });
  fill(element("rooms"), rooms, "Nobody is here.");
  const participants = status.rooms.flatMap(({ room }) =>
    (media.get(room)?.participants ?? [])
      .toSorted((a, b) => a.stream - b.stream)
      .map((one) => [
        room,
        one.participant,
        one.stream,
        takes(one),
        one.sessions,
        one.rtt_us === null ? "–" : tenths.format(one.rtt_us / 1_000),
        ...[one.packets_in_per_s, one.packets_out_per_s, one.lost, one.aged, one.over_rate].map(whole.format),
      ]),
  );
  fill(element("participants"), participants, "Nobody is connected to it.");
  element("relay-off").hidden = status.relay !== null;
  element("participants").closest("section").hidden = status.relay === null;
  const dropped = Object.entries(status.dropped).map(([reason, count]) => [reason, whole.format(count)]);
  const refused = status.relay?.refused ?? 0;
  if (refused > 0) dropped.push(["relay_sessions", whole.format(refused)]);
  fill(element("dropped"), dropped, "Nothing.");
}

/** Said aloud by a screen reader, so it changes only when the state does. */
function setState(text, failed) {
  setText(element("state"), text);
  element("state").classList.toggle("failed", failed);
  document.querySelector("main").classList.toggle("stale", failed);
}

const pause = element("pause");

async function update() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const status = await answer.json();
    if (paused()) return;
    show(status);
    setState("Live, every second.", false);
  } catch {
    if (!paused()) setState("The server does not answer. What is below is old; trying again.", true);
  }
}

function paused() {
  return pause.getAttribute("aria-pressed") === "true";
}

pause.addEventListener("click", () => {
  pause.setAttribute("aria-pressed", String(!paused()));
  if (paused()) setState("Paused.", false);
});

// What is wider than the screen is scrolled by the keyboard, too: not every browser gives it the focus by itself.
for (const region of document.querySelectorAll("section")) region.tabIndex = 0;

// One request at a time, and none from a page that nobody sees.
for (;;) {
  if (!paused() && !document.hidden) await update();
  await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
}
