//! JACK, or PipeWire in its clothes (`pw-jack`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use antiphon_core::SampleRate;
use antiphon_jack::{Client, Cycle, Events, Handler, InPort, OutPort};

use super::{CardConfig, Device, RateSource};
use crate::clock::now_ns;
use crate::duplex::{DeviceDelays, Duplex, Faults, MAX_QUANTUM_FRAMES};

/// Ports of a running JACK server.
pub struct JackDevice {
    client: Client,
    rate: SampleRate,
    card: CardConfig,
    /// Which of the card's inputs each of ours is for.
    chosen: Vec<usize>,
    inputs: Vec<InPort>,
    outputs: Vec<OutPort>,
    /// Full names of these and of those.
    in_names: Vec<String>,
    out_names: Vec<String>,
}

/// How playing ended.
enum End {
    /// It was told to.
    Stopped,
    /// The server is gone.
    Gone,
    /// The server did not let it begin.
    Refused(String),
}

impl std::fmt::Debug for JackDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JackDevice")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

// SAFETY: JACK's client functions may be called from any thread; only one at a time has the device.
unsafe impl Send for JackDevice {}

/// In place of a card's name: connect nothing, somebody else will.
pub const NO_CARD: &str = "none";

/// Between two looks at the graph, and so many of them after the cards' ports have changed all are there.
const LOOK: Duration = Duration::from_millis(50);
const SETTLED_LOOKS: u32 = 6;

const GONE: &str = "the JACK server is gone: start it again, at the same rate";

/// Connects to the server.
///
/// # Errors
/// In words for the user: no JACK, or no server.
pub fn connect() -> Result<Client, String> {
    Client::open("antiphon")
}

/// Names of the sound cards' ports, as JACK has them.
pub fn list(client: &Client) -> Vec<String> {
    let describe = |ports: Vec<String>, what: &str| {
        ports
            .into_iter()
            .map(|port| format!("{what}  {port}"))
            .collect::<Vec<_>>()
    };
    let mut lines = describe(client.microphones(), "in ");
    lines.extend(describe(client.speakers(), "out"));
    lines
}

/// Those whose names begin so.
fn of(name: &Option<String>, mut ports: Vec<String>) -> Vec<String> {
    ports.retain(|port| name.as_ref().is_none_or(|name| port.starts_with(name)));
    ports
}

/// The card whose port comes first, where nobody named one: what goes is not replaced by another, and left and right are of the same.
fn choose(name: &mut Option<String>, ports: &[String]) {
    let card_of = |port: &String| port.rfind(':').map(|end| port[..=end].to_owned());
    *name = name.take().or_else(|| ports.first().and_then(card_of));
}

impl JackDevice {
    /// Of the server: its rate, and the ports whose full names begin as the card's do, by default those of the first card that there is,
    /// and none for [`NO_CARD`]. The quantum is asked for the server's whole graph.
    ///
    /// # Errors
    /// In words for the user: no such card, a rate that no room has, a quantum that it refuses.
    pub fn new(client: Client, mut card: CardConfig) -> Result<Self, String> {
        let hz = client.sample_rate_hz();
        let rate = SampleRate::from_hz(hz).ok_or_else(|| {
            format!("JACK runs at {hz} Hz: a room has 44100, 48000, 88200 or 96000")
        })?;
        if let Some(frames) = card.quantum_frames
            && client.quantum_frames() as usize != frames
            && !client.set_quantum_frames(frames as u32)
        {
            return Err(format!(
                "JACK refuses a quantum of {frames} frames; it has {}",
                client.quantum_frames()
            ));
        }
        let mut ports = client.microphones();
        ports.append(&mut client.speakers());
        for name in [&card.input, &card.output].into_iter().flatten() {
            if name != NO_CARD && !ports.iter().any(|port| port.starts_with(name)) {
                return Err(format!(
                    "no sound card's port begins with \"{name}\": --list-devices shows them all"
                ));
            }
        }
        choose(&mut card.input, &client.microphones());
        choose(&mut card.output, &client.speakers());
        let chosen = card.inputs(of(&card.input, client.microphones()).len());
        // As many as now, whatever comes back.
        card.inputs = Some(chosen.clone());
        let inputs: Result<Vec<_>, _> = (1..=chosen.len())
            .map(|n| client.in_port(&format!("capture_{n}")))
            .collect();
        let outputs: Result<Vec<_>, _> = (1..=2)
            .map(|n| client.out_port(&format!("playback_{n}")))
            .collect();
        let (inputs, in_names) = inputs?.into_iter().unzip();
        let (outputs, out_names) = outputs?.into_iter().unzip();
        Ok(Self {
            client,
            rate,
            card,
            chosen,
            inputs,
            outputs,
            in_names,
            out_names,
        })
    }
}

impl Device for JackDevice {
    fn rate(&self) -> SampleRate {
        self.rate
    }

    fn rate_source(&self) -> RateSource {
        RateSource::Server
    }

    fn input_channels(&self) -> usize {
        self.chosen.len()
    }

    fn output_channels(&self) -> usize {
        2
    }

    fn run(self: Box<Self>, mut duplex: Duplex, stop: Arc<AtomicBool>) -> Result<(), String> {
        let mut device = *self;
        let (card, rate) = (device.card.clone(), device.rate);
        let mut is_first = true;
        loop {
            let end;
            (duplex, end) = device.play(duplex, &stop);
            match end? {
                End::Stopped => return Ok(()),
                End::Refused(why) if is_first => return Err(why),
                // One that was found again, and dies before it lets us run, is gone as any other.
                End::Refused(_) | End::Gone => {}
            }
            is_first = false;
            let open = || {
                let device = Self::new(connect()?, card.clone())?;
                let is_fit = device.rate == rate;
                is_fit.then_some(device).ok_or("it has another rate".into())
            };
            match super::found_again(&mut duplex, &stop, GONE, open) {
                Some(found) => device = found,
                None => return Ok(()),
            }
        }
    }
}

impl JackDevice {
    /// Until `stop` is set or the server is gone; gives the duplex back. Fails, in words for the user, where the rate is none of the room's.
    fn play(self, duplex: Duplex, stop: &AtomicBool) -> (Duplex, Result<End, String>) {
        let Self {
            client,
            rate,
            card,
            chosen,
            in_names,
            out_names,
            ..
        } = self;
        // Of the card's ports, those for each of ours. A port that nothing is connected to hears silence; who has no card may connect
        // something else.
        let microphones = || of(&card.input, client.microphones());
        let wanted = |microphones: &[String]| -> Vec<_> {
            let speakers = of(&card.output, client.speakers());
            let to_hear = chosen.iter();
            let to_hear = to_hear.map(|&input| microphones.get(input).cloned());
            let to_play = (0..2).map(|n| speakers.get(n).cloned());
            to_hear.chain(to_play).collect()
        };
        let own: Vec<_> = in_names.iter().chain(&out_names).collect();
        let mut links = Links::new(wanted(&microphones()));
        let latencies = Arc::new(Latencies::default());
        let (gone, faults) = (Arc::new(AtomicBool::new(false)), duplex.faults());
        let process = Process {
            duplex,
            graph: Graph::default(),
            rate,
            latencies: latencies.clone(),
            captured: vec![0.0; self.inputs.len() * MAX_QUANTUM_FRAMES],
            inputs: self.inputs,
            outputs: self.outputs,
            heard: vec![0.0; 2 * MAX_QUANTUM_FRAMES],
            events: Arc::new(Reported {
                gone: gone.clone(),
                faults: faults.clone(),
            }),
        };
        let (process, ran) = client.run(process, || {
            let is_linked = |port: &str| client.capture_latency_frames(port).is_some();
            let is_wanted = |card: &Option<String>| card.as_deref() != Some(NO_CARD);
            let mut has_links = false;
            while !stop.load(Ordering::Acquire) {
                if gone.load(Ordering::Acquire) {
                    return Ok(End::Gone);
                }
                if has_links {
                    client.check_rate(rate.hz())?;
                }
                let microphones = microphones();
                let wanted = wanted(&microphones);
                for n in links.review(&wanted, |n| is_linked(own[n])) {
                    let Some(port) = &wanted[n] else { continue };
                    let (from, to) = if n < in_names.len() {
                        (port, own[n])
                    } else {
                        (own[n], port)
                    };
                    if let Err(why) = client.connect(from, to) {
                        links.handle_refusal(n, why);
                    }
                }
                let silent = (0..chosen.len())
                    .filter(|&n| {
                        !microphones.is_empty() && wanted[n].is_none() && !is_linked(own[n])
                    })
                    .map(|n| chosen[n]);
                faults.set_refused(links.refusal().or_else(|| super::absence(silent)));
                // They change with the graph.
                let capture = in_names
                    .iter()
                    .find_map(|port| client.capture_latency_frames(port));
                let playback = out_names
                    .iter()
                    .find_map(|port| client.playback_latency_frames(port));
                has_links = capture.is_some() || playback.is_some();
                let misses = [
                    (
                        &faults.no_input,
                        capture.is_none() && is_wanted(&card.input),
                    ),
                    (
                        &faults.no_output,
                        playback.is_none() && is_wanted(&card.output),
                    ),
                ];
                for (fault, is_missed) in misses {
                    fault.store(is_missed, Ordering::Relaxed);
                }
                latencies
                    .capture
                    .store(capture.unwrap_or(UNKNOWN), Ordering::Relaxed);
                latencies
                    .playback
                    .store(playback.unwrap_or(UNKNOWN), Ordering::Relaxed);
                thread::sleep(LOOK);
            }
            Ok(End::Stopped)
        });
        (
            process.duplex,
            ran.unwrap_or_else(|why| Ok(End::Refused(why))),
        )
    }
}

/// Which of a card's ports each of ours is linked to. Cards come and go.
struct Links {
    /// Last, while there was a port for it.
    linked: Vec<Option<String>>,
    /// At the last look, and since how many looks so.
    seen: Vec<Option<String>>,
    looks: u32,
    /// Why each is not, by the server's word when it was last asked.
    refused: Vec<Option<String>>,
}

impl Links {
    /// What is there at first is there to stay.
    fn new(seen: Vec<Option<String>>) -> Self {
        Self {
            linked: vec![None; seen.len()],
            refused: vec![None; seen.len()],
            seen,
            looks: SETTLED_LOOKS,
        }
    }

    /// Which of ours to link now to what is `wanted` for them. What somebody has linked or unlinked otherwise stays so, as long as the
    /// card does.
    fn review(
        &mut self,
        wanted: &[Option<String>],
        is_linked: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        if wanted == self.seen {
            self.looks += 1;
        } else {
            // A card's ports come one by one.
            (self.seen, self.looks) = (wanted.to_vec(), 0);
        }
        let mut due = Vec::new();
        for (n, (port, linked)) in wanted.iter().zip(&mut self.linked).enumerate() {
            if port.is_none() || is_linked(n) {
                self.refused[n] = None;
            }
            if port.is_none() {
                *linked = None;
            } else if self.looks >= SETTLED_LOOKS && port != linked && !is_linked(n) {
                linked.clone_from(port);
                due.push(n);
            }
        }
        due
    }

    /// It is tried again as soon as if the card had just come.
    fn handle_refusal(&mut self, n: usize, why: String) {
        (self.linked[n], self.refused[n], self.looks) = (None, Some(why), 0);
    }

    fn refusal(&self) -> Option<String> {
        self.refused.iter().flatten().next().cloned()
    }
}

struct Reported {
    gone: Arc<AtomicBool>,
    faults: Arc<Faults>,
}

impl Events for Reported {
    fn xrun(&self) {
        self.faults.xruns.fetch_add(1, Ordering::Relaxed);
    }

    fn server_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

const UNKNOWN: u32 = u32::MAX;
/// Who is away from the graph for longer has more than a gap.
const MOST_MISSED_NS: u64 = 100_000_000;

/// Of the ports, frames, as they were when last asked.
struct Latencies {
    capture: AtomicU32,
    playback: AtomicU32,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            capture: AtomicU32::new(UNKNOWN),
            playback: AtomicU32::new(UNKNOWN),
        }
    }
}

impl Latencies {
    /// RT: no alloc, no lock, O(1).
    fn delays(&self, quantum: u32, rate: SampleRate) -> DeviceDelays {
        let frames = |of: &AtomicU32| match of.load(Ordering::Relaxed) {
            UNKNOWN => None,
            frames => Some(i64::from(frames)),
        };
        let ns = |frames: i64| frames * 1_000_000_000 / i64::from(rate.hz());
        DeviceDelays {
            input_ns: frames(&self.capture).map(|capture| ns(capture - i64::from(quantum))),
            output_ns: frames(&self.playback).map(ns),
        }
    }
}

/// Follows the graph's clock. RT: no alloc, no lock, O(1).
#[derive(Default)]
struct Graph {
    newest: Option<Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    start: u32,
    frames: u32,
    /// When it was run, ns of the local clock.
    at_ns: u64,
    /// The graph's clock had gone on since the one before: one that stands still tells nothing.
    has_moved: bool,
}

/// What a cycle is to those before it.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// The graph passed so many frames without us, since we were too late.
    After(u32),
    /// The one before, again: who was too late for one cycle may be woken twice in the next.
    Again,
}

impl Graph {
    /// A cycle of `frames` frames that begins with frame `start` runs at `now_ns`. Where the graph's clock has gone on by more than time has it was
    /// set, and nothing missed.
    fn place(&mut self, start: u32, frames: u32, rate: SampleRate, now_ns: u64) -> Place {
        let before = self.newest;
        self.newest = Some(Seen {
            start,
            frames,
            at_ns: now_ns,
            has_moved: before.is_some_and(|before| start != before.start),
        });
        let Some(before) = before else {
            return Place::After(0);
        };
        let passed_ns = now_ns.saturating_sub(before.at_ns);
        let most = passed_ns.min(MOST_MISSED_NS) * u64::from(rate.hz()) / 1_000_000_000;
        let is_same = (start, frames) == (before.start, before.frames);
        if is_same && before.has_moved && most < u64::from(frames) / 4 * 3 {
            return Place::Again;
        }
        let missed = start.wrapping_sub(before.start.wrapping_add(before.frames));
        Place::After(if u64::from(missed) <= most { missed } else { 0 })
    }
}

struct Process {
    duplex: Duplex,
    graph: Graph,
    rate: SampleRate,
    latencies: Arc<Latencies>,
    inputs: Vec<InPort>,
    outputs: Vec<OutPort>,
    captured: Vec<f32>,
    heard: Vec<f32>,
    events: Arc<Reported>,
}

impl Handler for Process {
    fn process(&mut self, cycle: &Cycle<'_>) {
        let frames = cycle.frames as usize;
        let place = (self.graph).place(cycle.start(), cycle.frames, self.rate, now_ns());
        if let Place::After(missed) = place
            && missed > 0
        {
            self.duplex.miss(missed);
        }
        // It is still in `heard`, unless it was rendered in parts.
        let is_rendered = place == Place::Again && frames <= MAX_QUANTUM_FRAMES;
        self.duplex
            .set_delays(self.latencies.delays(cycle.frames, self.rate));
        // A longer cycle than the engine renders is rendered in parts.
        for begin in (0..frames).step_by(MAX_QUANTUM_FRAMES) {
            let part = MAX_QUANTUM_FRAMES.min(frames - begin);
            let captured = &mut self.captured[..self.inputs.len() * part];
            for (port, samples) in self.inputs.iter().zip(captured.chunks_exact_mut(part)) {
                samples.copy_from_slice(&cycle.heard(port)[begin..begin + part]);
            }
            let heard = &mut self.heard[..self.outputs.len() * part];
            if !is_rendered {
                self.duplex.process(captured, heard);
            }
            for (port, samples) in self.outputs.iter_mut().zip(heard.chunks_exact(part)) {
                cycle.to_play(port)[begin..begin + part].copy_from_slice(samples);
            }
        }
    }

    fn events(&self) -> Arc<dyn Events> {
        self.events.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nobody_names_a_card_it_is_one_and_stays_that_one() {
        let headset = ["Headset Mono:capture_MONO"];
        let laptop = ["Built-in Audio:capture_FL", "Built-in Audio:capture_FR"];
        let ports = |cards: &[&[&str]]| -> Vec<String> {
            cards
                .iter()
                .copied()
                .flatten()
                .map(|&port| port.to_owned())
                .collect()
        };
        let both = ports(&[&headset, &laptop]);
        let chosen = |name: Option<&str>, ports: &[String]| {
            let mut name = name.map(str::to_owned);
            choose(&mut name, ports);
            name
        };
        let first = chosen(None, &both);
        assert_eq!(of(&first, both.clone()), headset, "not the next one's, too");
        assert_eq!(of(&first, ports(&[&laptop])), [""; 0], "it is gone");
        let turned = ports(&[&laptop, &headset]);
        assert_eq!(
            of(&first, turned.clone()),
            headset,
            "it is back, as the last"
        );
        assert_eq!(of(&chosen(None, &turned), turned.clone()), laptop);
        let system = ports(&[&["system:capture_1", "system:capture_2"]]);
        assert_eq!(chosen(None, &system).as_deref(), Some("system:"));
        assert_eq!(chosen(None, &[]), None, "the first that comes");
        for name in ["Built", "Built-in Audio:capture_FR", NO_CARD] {
            assert_eq!(chosen(Some(name), &both).as_deref(), Some(name), "as asked");
        }
    }

    #[test]
    fn what_the_graph_passes_without_us_is_missed_unless_its_clock_was_set() {
        let (mut graph, rate) = (Graph::default(), SampleRate::Hz48000);
        let near_its_end = u32::MAX - 100;
        let mut place = |start: u32, us: u64| {
            graph.place(near_its_end.wrapping_add(start), 64, rate, us * 1_000)
        };
        let after = Place::After;
        assert_eq!(place(0, 100_000), after(0), "the first");
        assert_eq!(place(64, 101_300), after(0));
        assert_eq!(place(192, 104_000), after(64), "one cycle was too late");
        assert_eq!(place(256, 105_300), after(0));
        assert_eq!(place(384, 108_000), after(64), "another, woken twice");
        assert_eq!(place(384, 108_100), Place::Again);
        assert_eq!(place(448, 109_300), after(0));
        assert_eq!(place(100_000, 110_600), after(0), "set");
        assert_eq!(place(100_064, 111_900), after(0));
        assert_eq!(place(100_000, 113_200), after(0), "put back");
        assert_eq!(place(400_064, 6_113_200), after(0), "away for long");
        for us in [6_114_500, 6_114_600, 6_114_700, 6_117_000] {
            let found = place(400_064, us);
            assert_eq!(found, after(0), "a clock that stands still");
        }
    }

    #[test]
    fn a_card_that_is_back_is_linked_again_and_what_a_user_unlinked_is_not() {
        let ports = |names: [&str; 2]| {
            let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
            names.map(named).to_vec()
        };
        let (card, gone, other) = (ports(["a1", "a2"]), ports(["", ""]), ports(["b1", "b2"]));
        let mut links = Links::new(card.clone());
        let mut after = |wanted: &[Option<String>], is_linked: bool| {
            let due = (0..=SETTLED_LOOKS).map(|_| links.review(wanted, |_| is_linked));
            due.flatten().collect::<Vec<_>>()
        };
        assert_eq!(after(&card, false), [0, 1], "at first");
        assert_eq!(after(&card, false), [0; 0], "a user unlinked it");
        assert_eq!(after(&gone, false), [0; 0]);
        assert_eq!(
            after(&ports(["a2", ""]), true),
            [0; 0],
            "linked by something else"
        );
        assert_eq!(after(&gone, false), [0; 0]);
        assert_eq!(after(&card, false), [0, 1], "it is back");
        assert_eq!(after(&other, false), [0, 1], "another in its place");
        assert_eq!(after(&card, true), [0; 0], "the first is back, too");
        // One port comes after the other, and then the order is another.
        let mut links = Links::new(gone);
        for wanted in [ports(["a2", ""]), card.clone()] {
            assert_eq!(links.review(&wanted, |_| false), [0; 0]);
        }
        let due = (0..SETTLED_LOOKS).flat_map(|_| links.review(&card, |_| false));
        assert_eq!(due.collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_link_that_is_refused_is_tried_again_and_news_only_until_it_is_there() {
        let wanted = vec![Some("a1".to_owned()), Some("a2".to_owned())];
        let mut links = Links::new(wanted.clone());
        assert_eq!(links.review(&wanted, |_| false), [0, 1]);
        links.handle_refusal(1, "busy".into());
        let is_first_linked = |n| n == 0;
        for why in ["busy", "forbidden"] {
            let due = (1..SETTLED_LOOKS).flat_map(|_| links.review(&wanted, is_first_linked));
            assert_eq!(due.collect::<Vec<_>>(), [0; 0]);
            assert!(links.refusal().is_some());
            assert_eq!(links.review(&wanted, is_first_linked), [1]);
            links.handle_refusal(1, why.into());
            assert_eq!(links.refusal().as_deref(), Some(why));
        }
        links.review(&wanted, |_| true);
        assert_eq!(links.refusal(), None, "somebody linked it");
        links.handle_refusal(0, "busy".into());
        links.review(&[None, wanted[1].clone()], |n| n == 1);
        assert_eq!(links.refusal(), None, "its card has gone");
    }

    #[test]
    fn a_card_s_latency_counts_the_quantum_that_a_block_s_time_leaves_out_already() {
        let latencies = Latencies::default();
        let delays = || latencies.delays(64, SampleRate::Hz48000);
        assert_eq!(delays(), DeviceDelays::default());
        latencies.capture.store(64 + 48, Ordering::Relaxed);
        latencies.playback.store(128, Ordering::Relaxed);
        let known = DeviceDelays {
            input_ns: Some(1_000_000),
            output_ns: Some(2_666_666),
        };
        assert_eq!(delays(), known);
        // A virtual card has a block before its sound could have lasted so long.
        latencies.capture.store(0, Ordering::Relaxed);
        assert_eq!(delays().input_ns, Some(-1_333_333));
    }
}
