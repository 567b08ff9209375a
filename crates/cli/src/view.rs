//! What `antiphon join` shows in a terminal.

use std::io;
use std::time::Duration;

use antiphon_agent::participant::{Order, Participant};
use antiphon_agent::status::{PeerStatus, Signalling, Status};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};

/// The meter's left end, dBFS.
const LEAST_DB: f32 = -60.0;
const METER_CELLS: usize = 20;
/// One press of a key.
const GAIN_STEP_DB: f32 = 1.0;
const LEAST_GAIN_DB: f32 = -40.0;
const HELP: &str =
    "up/down choose · left/right gain · m mute · s solo · space mute yourself · ? help · q leave";
const LONG_HELP: &str = "
  up, down      choose somebody
  left, right   quieter, louder, by 1 dB
  0             gain 0 dB again
  m             mute them here, s: hear only them
  space         mute yourself: you send silence
  q, Ctrl-C     leave the room

  buffer        sound waiting to be played, and the delay aimed at
  lost, late    datagrams that did not come, or came after their turn
  concealed     sound made up in place of what was missing
  mouth to ear  from their microphone to your ear, measured by both clocks;
                \"at least\" where a sound card does not tell its share
";

/// Shows the room until the user leaves, or `is_over`.
///
/// # Errors
/// The terminal's.
pub(crate) fn show(participant: &Participant, is_over: impl Fn() -> bool) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut view = View::default();
    let result = loop {
        let status = participant.status.borrow().clone();
        if participant.has_ended() || is_over() {
            break Ok(());
        }
        if let Err(error) = terminal.draw(|frame| view.draw(frame, &status)) {
            break Err(error);
        }
        match event::poll(Duration::from_millis(50)) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(error) => break Err(error),
        }
        let Ok(Event::Key(key)) = event::read() else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if key.code == KeyCode::Char('q') || (is_control && key.code == KeyCode::Char('c')) {
            break Ok(());
        }
        if let Some(order) = view.handle_key(key.code, &status) {
            // A full queue: the key is pressed again.
            let _ = participant.orders.try_send(order);
        }
    };
    ratatui::restore();
    result
}

#[derive(Debug, Default)]
struct View {
    chosen: usize,
    shows_help: bool,
}

impl View {
    fn handle_key(&mut self, key: KeyCode, status: &Status) -> Option<Order> {
        self.chosen = self.chosen.min(status.peers.len().saturating_sub(1));
        match key {
            KeyCode::Char('?') => self.shows_help = !self.shows_help,
            KeyCode::Up => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down => self.chosen = (self.chosen + 1).min(status.peers.len().max(1) - 1),
            KeyCode::Char(' ') => return Some(Order::MuteSelf(!status.is_muted)),
            _ => {}
        }
        let peer = status.peers.get(self.chosen)?;
        let id = peer.id.clone();
        match key {
            KeyCode::Left => Some(Order::Gain(id, stepped(peer.gain, -GAIN_STEP_DB))),
            KeyCode::Right => Some(Order::Gain(id, stepped(peer.gain, GAIN_STEP_DB))),
            KeyCode::Char('0') => Some(Order::Gain(id, 1.0)),
            KeyCode::Char('m') => Some(Order::Mute(id, !peer.is_muted)),
            KeyCode::Char('s') => Some(Order::Solo(id, !peer.is_solo)),
            _ => None,
        }
    }

    fn draw(&self, frame: &mut Frame<'_>, status: &Status) {
        let [head, peers, foot] = Layout::vertical([
            Constraint::Length(6),
            Constraint::Min(3),
            Constraint::Length(if self.shows_help { 16 } else { 2 }),
        ])
        .areas(frame.area());
        let input = status.input_peaks.iter().copied().fold(0.0, f32::max);
        let output = status.output_peaks[0].max(status.output_peaks[1]);
        let lines = vec![
            Line::raw(summary(status)),
            Line::raw(format!(
                "you   {} {}",
                meter(input),
                if status.is_muted { "muted" } else { "" }
            )),
            Line::raw(format!("mix   {}", meter(output))),
            Line::raw(status.notice.clone().unwrap_or_default()),
        ];
        frame.render_widget(
            Paragraph::new(lines).block(Block::bordered().title("Antiphon")),
            head,
        );
        let rows = status.peers.iter().enumerate().map(|(n, peer)| {
            let style = if n == self.chosen {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            };
            Row::new(cells(peer, status.sample_rate_hz)).style(style)
        });
        let widths = [16, 28, 11, 14, 14, 26, 16].map(Constraint::Length);
        let header = Row::new([
            "",
            "",
            "gain",
            "path",
            "buffer ms",
            "lost/late/concealed",
            "mouth to ear",
        ]);
        let table = Table::new(rows, widths)
            .header(header)
            .block(Block::bordered());
        frame.render_widget(table, peers);
        let help = if self.shows_help { LONG_HELP } else { HELP };
        frame.render_widget(Paragraph::new(help), foot);
    }
}

/// The same as text, for logs and for those who do not see.
pub(crate) fn lines(status: &Status) -> Vec<String> {
    let mut lines = vec![summary(status)];
    lines.extend(status.notice.clone());
    lines.extend(status.peers.iter().map(|peer| {
        let level = peer.peaks[0].max(peer.peaks[1]);
        let [name, _, gain, path, buffer, counts, delay] = cells(peer, status.sample_rate_hz);
        format!(
            "  {name}: {} dBFS, gain {gain}, {path}, buffer {buffer} ms, lost/late/concealed {counts}, mouth to ear {delay}",
            decibel(level)
        )
    }));
    lines
}

fn summary(status: &Status) -> String {
    let signalling = match status.signalling {
        Signalling::Connecting => "no connection to the server, trying",
        Signalling::Online => "online",
    };
    let mut text = format!(
        "{signalling} · {} Hz, quantum {}, packet {} · xruns {}",
        status.sample_rate_hz, status.quantum_frames, status.packet_frames, status.xruns
    );
    if status.relay.sessions > 0 {
        let rtt = optional(status.relay.rtt_ms, "ms");
        text += &format!(
            " · server {} sessions, round trip {rtt}",
            status.relay.sessions
        );
    }
    if status.is_muted_by_owner {
        text += " · the owner muted you";
    }
    text
}

fn cells(peer: &PeerStatus, rate_hz: u32) -> [String; 7] {
    let ms = |frames: u64| frames as f64 * 1e3 / f64::from(rate_hz.max(1));
    let mut path = Vec::new();
    if peer.direct_lanes > 0 {
        path.push("direct");
    }
    if peer.is_relayed {
        path.push("relay");
    }
    if peer.is_mixed {
        path.push("mixed");
    }
    if path.is_empty() {
        path.push("connecting");
    }
    let marks = [
        (peer.is_muted, " M"),
        (peer.is_solo, " S"),
        (peer.is_muted_by_owner, " muted"),
    ];
    let marks: String = marks
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, mark)| *mark)
        .collect();
    let frames = peer.played_frames + peer.concealed_frames;
    let concealed = match frames {
        0 => "?".to_owned(),
        all => format!("{:.2} %", peer.concealed_frames as f64 * 100.0 / all as f64),
    };
    let delay = match peer.mouth_to_ear {
        None => "?".to_owned(),
        Some(m) if m.is_whole => format!("{:.1} ±{:.1} ms", m.known_ms, m.error_ms),
        Some(m) => format!("at least {:.1} ms", m.known_ms),
    };
    [
        peer.name.clone() + if peer.is_present { "" } else { " (away)" },
        meter(peer.peaks[0].max(peer.peaks[1])),
        format!("{} dB{marks}", decibel(peer.gain)),
        path.join("+"),
        format!(
            "{} / {:.1}",
            peer.buffer_frames
                .map_or("?".into(), |frames| format!("{:.1}", ms(frames))),
            ms(peer.target_frames)
        ),
        format!("{}/{}/{concealed}", peer.lost_packets, peer.late_packets),
        delay,
    ]
}

fn optional(value: Option<f64>, unit: &str) -> String {
    value.map_or("?".into(), |value| format!("{value:.1} {unit}"))
}

fn decibel(linear: f32) -> String {
    if linear > 0.0 {
        format!("{:.0}", 20.0 * linear.log10())
    } else {
        "−∞".into()
    }
}

fn meter(peak: f32) -> String {
    let db = 20.0 * peak.max(1e-9).log10();
    let share = (1.0 - db / LEAST_DB).clamp(0.0, 1.0);
    let filled = (share * METER_CELLS as f32).round() as usize;
    let bar = "█".repeat(filled) + &"·".repeat(METER_CELLS - filled);
    format!("{bar} {:>4}", decibel(peak))
}

fn stepped(gain: f32, step_db: f32) -> f32 {
    let db = 20.0 * gain.max(1e-9).log10();
    let db = if db < LEAST_GAIN_DB {
        LEAST_GAIN_DB
    } else {
        db + step_db
    };
    if db < LEAST_GAIN_DB {
        return 0.0;
    }
    10f32.powf(db / 20.0).min(4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let peer = |id: &str, gain| PeerStatus {
            id: id.into(),
            name: id.to_uppercase(),
            is_present: true,
            gain,
            ..PeerStatus::default()
        };
        Status {
            sample_rate_hz: 48_000,
            peers: vec![peer("ann", 1.0), peer("bob", 0.0)],
            ..Status::default()
        }
    }

    #[test]
    fn keys_are_for_who_is_chosen() {
        let (mut view, status) = (View::default(), status());
        let gain = view.handle_key(KeyCode::Left, &status);
        let Some(Order::Gain(id, gain)) = gain else {
            panic!("{gain:?}")
        };
        assert_eq!((id.as_str(), (gain * 1e3).round()), ("ann", 891.0));
        assert_eq!(view.handle_key(KeyCode::Down, &status), None);
        assert_eq!(
            view.handle_key(KeyCode::Down, &status),
            None,
            "bob is the last"
        );
        assert_eq!(
            view.handle_key(KeyCode::Char('m'), &status),
            Some(Order::Mute("bob".into(), true))
        );
        let louder = view.handle_key(KeyCode::Right, &status);
        assert_eq!(
            louder,
            Some(Order::Gain("bob".into(), 0.01)),
            "from silence to -40 dB"
        );
        assert_eq!(
            view.handle_key(KeyCode::Char(' '), &status),
            Some(Order::MuteSelf(true))
        );
        let alone = Status::default();
        assert_eq!(view.handle_key(KeyCode::Char('s'), &alone), None);
    }

    #[test]
    fn what_is_not_known_is_not_0() {
        let lines = lines(&status());
        assert!(lines[1].contains("ANN: −∞ dBFS"), "{lines:?}");
        assert!(lines[1].contains("buffer ? / 0.0 ms"), "{lines:?}");
        assert!(lines[1].contains("mouth to ear ?"), "{lines:?}");
    }

    #[test]
    fn a_meter_is_as_long_at_any_level() {
        for peak in [0.0, 1e-4, 0.1, 1.0, 4.0] {
            assert_eq!(meter(peak).chars().count(), METER_CELLS + 5, "{peak}");
        }
        assert!(meter(1.0).starts_with(&"█".repeat(METER_CELLS)));
    }
}
