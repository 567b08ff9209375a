/** The pages: a room with its phases, and the start page. */

import "./style.css";
import { type Accessor, createEffect, createMemo, Match, on, Show, Switch } from "solid-js";
import { render } from "solid-js/web";
import type { Participant, StudioApi } from "../model";
import { Announcer, announce } from "./announcer";
import { Company } from "./company";
import { Home } from "./home";
import { Icon } from "./icon";
import { keepFocus } from "./keep-focus";
import { createLasting } from "./lasting";
import { Lobby } from "./lobby";
import { Wordmark } from "./mark";
import { barWords, ownChanges, whyUnheard } from "./own-words";
import { PageTitle } from "./page-title";
import { participantName } from "./participant";
import { PathChanges } from "./path-words";
import { Problems } from "./problems";
import { MuteMyself, Room } from "./room";
import { Shortcuts } from "./shortcuts";
import { useView, ViewProvider } from "./view";

/** A room's page. */
export function mount(root: HTMLElement, studio: StudioApi): void {
  render(
    () => (
      <ViewProvider studio={studio}>
        <RoomPage />
      </ViewProvider>
    ),
    root,
  );
}

/** The start page, `/`. */
export function mountHome(root: HTMLElement): void {
  document.title = "Antiphon: play together, from anywhere";
  render(() => <Home />, root);
}

function RoomPage() {
  const view = useView();
  const phase = createMemo(() => view.state().phase);
  const screen = createMemo(() => (phase() === "joining" ? "lobby" : phase()));
  const isServerGone = createServerGone();
  announceRoom();
  return (
    <div class="page" ref={(page) => keepFocus(page)}>
      <a class="skip" href="#main">
        {phase() === "joined" ? "Skip to the room" : "Skip to content"}
      </a>
      <header class="bar" classList={{ pinned: phase() === "joined" }}>
        <Wordmark playing={phase() === "joined"} />
        <Shortcuts />
        <Show when={phase() === "joined"}>
          <MuteMyself />
          <button type="button" class="button leave" onClick={() => view.studio.leave()}>
            <Icon name="log-out" />
            <span class="label">Leave</span>
          </button>
          {/* Read out where it is said in full. */}
          <Show when={barWords(view.state(), isServerGone())}>
            {(words) => (
              <p class="bar-words" aria-hidden="true">
                {words()}
              </p>
            )}
          </Show>
        </Show>
      </header>
      <main id="main" tabindex="-1">
        <Signalling isGone={isServerGone()} />
        <Switch>
          <Match when={screen() === "lobby"}>
            <Lobby />
          </Match>
          <Match when={screen() === "joined"}>
            <Room />
          </Match>
          <Match when={screen() === "left"}>
            <Ending title="You left the room" action="Rejoin">
              Whoever is still there plays on. The link still works, for you as for them.
            </Ending>
          </Match>
          <Match when={screen() === "removed"}>
            <Ending title="The room's owner removed you">If you do not know why, ask them.</Ending>
          </Match>
          <Match when={screen() === "failed"}>
            <Ending title="You are not in the room" action="Try again">
              Check your connection to the Internet, then try again. Your settings are kept.
            </Ending>
          </Match>
        </Switch>
      </main>
      <Announcer />
    </div>
  );
}

/** Of a moment nobody needs to know, nor who is removed, whose connection ends just before the room. */
const GONE_MS = 1_000;

function createServerGone(): Accessor<boolean> {
  const view = useView();
  const isGone = createMemo(() => {
    const { signalling, phase } = view.state();
    return phase === "joined" && signalling !== "online";
  });
  return createLasting(isGone, GONE_MS);
}

/** Sound needs no server once it flows: say so, or people leave while they could play. */
function Signalling(props: { isGone: boolean }) {
  return (
    <p class="signalling" role="status">
      {props.isGone &&
        "The server does not answer. You go on playing with those you reach directly; the page keeps trying."}
    </p>
  );
}

/** @param props.action what the way back in is called, if there is one */
function Ending(props: { title: string; action?: string; children: string }) {
  const view = useView();
  const fromServer = createMemo(() => view.problems().find(({ id }) => id === "server"));
  return (
    <div class="ending">
      <PageTitle>{props.title}</PageTitle>
      <Problems severity="error" />
      <Problems severity="warning" />
      {/* Where the server has said why, that tells what to do. */}
      <Show when={fromServer() === undefined}>
        <p class="lead">{props.children}</p>
      </Show>
      <div class="actions">
        {/* Where its own action helps, to join again fails again. */}
        <Show when={fromServer()?.action === undefined && props.action}>
          <button
            type="button"
            class="button primary large"
            onClick={() => void view.attempt(() => view.studio.rejoin())}
          >
            <Icon name="rotate" />
            {props.action}
          </button>
          {/* Some of the sound settings, and the loop-back, are there only. */}
          <button
            type="button"
            class="button large"
            onClick={() => void view.attempt(() => view.studio.toLobby())}
          >
            Check your sound first
          </button>
        </Show>
        <a class="button large" href="/">
          Go to the start
        </a>
      </div>
    </div>
  );
}

/** Tells screen readers who comes and goes, and everyone, by the tab's title, how many are here. */
function announceRoom(): void {
  const view = useView();
  const joined = createMemo(() => view.state().phase === "joined");
  const people = createMemo(() => view.state().participants.filter((p) => !p.isLoop));
  const company = new Company();
  createEffect(() => {
    document.title = joined() ? `${people().length + 1} in the room · Antiphon` : "Antiphon";
  });
  createEffect(
    on([joined, people], ([isIn, now], before) => {
      if (!isIn) return;
      if (!before?.[0]) {
        const others =
          now.length === 0 ? "You are in. Nobody else is here yet." : `You are in, with ${names(now)}.`;
        const why = whyUnheard(view.state());
        announce(why === null ? others : `${others} ${why}`);
      } else {
        const changes = company.changes(performance.now(), before[1], now);
        if (changes.length > 0) announce(changes.join(" "));
      }
    }),
  );
  createEffect(
    on(view.state, (now, before) => {
      for (const sentence of ownChanges(before, now)) announce(sentence);
    }),
  );
  const paths = new PathChanges();
  createEffect(() => {
    const stats = view.stats();
    if (!joined() || stats === null) return;
    const peers = stats.peers.flatMap((peer) => {
      const person = people().find(({ id }) => id === peer.id);
      return person === undefined ? [] : [{ ...peer, name: participantName(person) }];
    });
    const changes = paths.add(stats.timeMs, peers);
    if (changes.length > 0) announce(changes.join(" "));
  });
}

const names = (people: readonly Participant[]) => people.map(participantName).join(", ");
