//! What `antiphon join` shows in a terminal.

use std::io;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use antiphon_agent::participant::{Order, Participant};
use antiphon_agent::relay::RelayStatistics;
use antiphon_agent::signalling::Moderation;
use antiphon_agent::status::{PeerStatus, SentStatus, Signalling, Status};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{self, EnterAlternateScreen};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState, Wrap};
use ratatui::{DefaultTerminal, Frame, Terminal};

/// The meter's left end, dBFS.
const LEAST_DB: f32 = -60.0;
/// Of one's own meters.
const METER_CELLS: usize = 20;
const SMALL_METER_CELLS: usize = 8;
/// From so many columns on there is room for all figures; a terminal has 80 at first. Below the other only for what one plays by.
const WIDE: u16 = 120;
const SMALL: u16 = 70;
/// Below so many lines frames take too much.
const LOW: u16 = 12;
/// One press of a key.
const GAIN_STEP_DB: f32 = 1.0;
const PAN_STEP: f32 = 0.1;
const HELP: &str = "? keys · q leave · ↑↓ choose · ←→ gain · m mute · s solo · space mute me";
const LONG_HELP: &str = "\
up, down      choose somebody
left, right   quieter, louder, by 1 dB; 0: gain 0 dB again
, .           further to the left, to the right, by a tenth
m, s          mute them here; solo: hear only those
space         mute yourself: you send silence
M, X          as the room's owner: mute for everyone; X twice: remove them
?; q, Ctrl-C  back to the room; leave it. Ctrl-Z: stop for a while

sent as       what goes there directly; ↓ less than you chose: too slow a way
buffer        sound waiting to be played / aimed at; –: see the mix's row
lost, late    datagrams that did not come, or came after their turn
concealed     of the last 4 s, sound made up in place of what was missing
mouth to ear  from their microphone to your ear, measured by both clocks;
              ≥ where a sound card does not tell its share";

/// Shows the room in the terminal until the user leaves, or `is_over`, and gives it back then.
///
/// # Errors
/// The terminal's.
pub(crate) fn show(
    mut terminal: DefaultTerminal,
    participant: &Participant,
    is_over: impl Fn() -> bool,
) -> io::Result<()> {
    let mut view = View::default();
    // On a thread of its own: reading a terminal that was closed never ends.
    let (say, told) = mpsc::channel();
    thread::spawn(move || while say.send(event::read()).is_ok() {});
    heed_stop();
    heed_panics();
    let result = loop {
        if IS_STOPPED.swap(false, Ordering::AcqRel)
            && let Err(error) = stop_for_a_while(&mut terminal)
        {
            break Err(error);
        }
        let status = participant.status.borrow().clone();
        if participant.has_ended() || is_over() {
            break Ok(());
        }
        if IS_GIVEN_BACK.swap(false, Ordering::AcqRel)
            && let Err(error) = take(&mut terminal)
        {
            break Err(error);
        }
        view.follow(&status);
        if let Err(error) = terminal.draw(|frame| view.draw(frame, &status)) {
            break Err(error);
        }
        let key = match told.recv_timeout(Duration::from_millis(50)) {
            Ok(Ok(Event::Key(key))) => key,
            Ok(Err(error)) => break Err(error),
            Ok(Ok(_)) | Err(_) => continue,
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        if is_leave(key) {
            break Ok(());
        }
        if is_control(key, 'z') {
            stop();
        }
        if let Some(order) = view.handle_key(key, &status) {
            // A full queue: the key is pressed again.
            let _ = participant.orders.try_send(order);
        }
    };
    if restore().is_err() {
        // It was closed: its destructor would complain there, and panic because that fails.
        std::mem::forget(terminal);
    }
    result
}

/// Without a view, or before the process ends at once. A terminal that takes nothing is not waited for.
pub(crate) fn give_back() {
    if !terminal::is_raw_mode_enabled().is_ok_and(|is_up| is_up) {
        return;
    }
    let (say, told) = mpsc::channel();
    thread::spawn(move || {
        let _ = restore();
        let _ = say.send(());
    });
    let _ = told.recv_timeout(Duration::from_millis(200));
}

fn restore() -> io::Result<()> {
    ratatui::try_restore()?;
    execute!(io::stdout(), cursor::Show)
}

/// Somebody wants the program stopped, as a shell does for Ctrl-Z.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on that waits until the terminal has been given back. Not where whoever started us ignores it.
fn heed_stop() {
    #[cfg(unix)]
    {
        extern "C" fn note(_: libc::c_int) {
            IS_STOPPED.store(true, Ordering::Release);
        }
        // SAFETY: what the handler does is allowed in one.
        unsafe {
            let before = libc::signal(libc::SIGTSTP, note as *const () as libc::sighandler_t);
            if before == libc::SIG_IGN {
                libc::signal(libc::SIGTSTP, before);
            }
        }
    }
}

fn stop() {
    // SAFETY: it is ignored, handled, or stops this process.
    #[cfg(unix)]
    unsafe {
        libc::raise(libc::SIGTSTP);
    }
}

/// Until somebody has it go on.
fn stop_for_a_while(terminal: &mut DefaultTerminal) -> io::Result<()> {
    restore()?;
    // SAFETY: there is a default.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGTSTP, libc::SIG_DFL);
    }
    stop();
    heed_stop();
    take(terminal)
}

/// A panic has given the terminal back, as ratatui has it on every thread; many are caught, and the view goes on.
static IS_GIVEN_BACK: AtomicBool = AtomicBool::new(false);

/// From now on that is noted.
fn heed_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        before(info);
        IS_GIVEN_BACK.store(true, Ordering::Release);
    }));
}

/// Again, after it was given back.
fn take(terminal: &mut DefaultTerminal) -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    // A new one draws everything. Clearing the old one would ask the terminal, whose answers another thread reads.
    *terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    Ok(())
}

fn is_leave(key: KeyEvent) -> bool {
    plain(key) == KeyCode::Char('q') || is_control(key, 'c')
}

fn is_control(key: KeyEvent, letter: char) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char(letter)
}

/// A key that is pressed by itself, or with Shift. With another it means something else, to the terminal or to the user's fingers.
fn plain(key: KeyEvent) -> KeyCode {
    if (key.modifiers).intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        KeyCode::Null
    } else {
        key.code
    }
}

#[derive(Debug, Default)]
struct View {
    /// Whose row is chosen, and which it is; if they left, who is there now.
    chosen: Option<String>,
    row: usize,
    shows_help: bool,
    /// Who goes if the key is pressed again.
    removing: Option<String>,
}

impl View {
    /// Keeps to who is chosen, wherever in the list that is now.
    fn follow(&mut self, status: &Status) {
        let chosen = (status.peers.iter()).position(|peer| self.chosen.as_ref() == Some(&peer.id));
        self.choose(chosen.unwrap_or(self.row), status);
    }

    fn choose(&mut self, row: usize, status: &Status) {
        self.row = row.min(status.peers.len().saturating_sub(1));
        self.chosen = status.peers.get(self.row).map(|peer| peer.id.clone());
    }

    fn handle_key(&mut self, key: impl Into<KeyEvent>, status: &Status) -> Option<Order> {
        let key = plain(key.into());
        self.follow(status);
        let removing = self.removing.take();
        match key {
            KeyCode::Char('?') => self.shows_help = !self.shows_help,
            KeyCode::Up => self.choose(self.row.saturating_sub(1), status),
            KeyCode::Down => self.choose(self.row + 1, status),
            KeyCode::Char(' ') => return Some(Order::ToggleMuteSelf),
            _ => {}
        }
        let peer = status.peers.get(self.row)?;
        let id = peer.id.clone();
        if status.is_owner && !id.is_empty() {
            match key {
                KeyCode::Char('M') if peer.is_muted_by_owner => {
                    return Some(Order::Moderate(id, Moderation::Unmute));
                }
                KeyCode::Char('M') => return Some(Order::Moderate(id, Moderation::Mute)),
                KeyCode::Char('X') if removing.as_ref() == Some(&id) => {
                    return Some(Order::Moderate(id, Moderation::Remove));
                }
                KeyCode::Char('X') => {
                    self.removing = Some(id);
                    return None;
                }
                _ => {}
            }
        }
        match key {
            KeyCode::Left => Some(Order::Louder(id, -GAIN_STEP_DB)),
            KeyCode::Right => Some(Order::Louder(id, GAIN_STEP_DB)),
            KeyCode::Char('0') => Some(Order::ResetGain(id)),
            KeyCode::Char(',') => Some(Order::Right(id, -PAN_STEP)),
            KeyCode::Char('.') => Some(Order::Right(id, PAN_STEP)),
            KeyCode::Char('m') => Some(Order::ToggleMute(id)),
            KeyCode::Char('s') => Some(Order::ToggleSolo(id)),
            _ => None,
        }
    }

    fn draw(&self, frame: &mut Frame<'_>, status: &Status) {
        let area = frame.area();
        let is_small = area.width < SMALL || area.height < LOW;
        let block = |title| match is_small {
            true => Block::new(),
            false => Block::bordered().title(title),
        };
        let frames = if is_small { 0 } else { 2 };
        let lines_of = |words: &str| lines_of(words, area.width.saturating_sub(frames));
        let (sound, server) = (sound_words(status), server_words(status));
        let news = news(status).collect::<Vec<_>>().join(" · ");
        let heights = if self.shows_help {
            // It is as long as a terminal is high.
            [1, 1, 2, 0]
        } else if is_small {
            let least = [lines_of(&sound), lines_of(&server), 2];
            // One musician at least, below the titles, and the last line.
            let left = area.height.saturating_sub(least.iter().sum::<u16>() + 3);
            let wanted = if news.is_empty() { 0 } else { lines_of(&news) };
            [least[0], least[1], 2, wanted.min(left)]
        } else {
            [lines_of(&sound), lines_of(&server), 2, lines_of(&news)]
        };
        let [head, room, foot] = Layout::vertical([
            Constraint::Length(frames + heights.iter().sum::<u16>()),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(area);
        let input = status.input_peaks.iter().copied().fold(0.0, f32::max);
        let output = status.output_peaks[0].max(status.output_peaks[1]);
        let own = match own_words(status) {
            "" if is_small && status.is_owner && status.is_locked => "yours, and locked",
            "" => room_words(status),
            words => words,
        };
        let cells = if is_small {
            SMALL_METER_CELLS
        } else {
            METER_CELLS
        };
        let meters = format!(
            "you   {} {own}\nmix   {}",
            meter(input, cells),
            meter(output, cells)
        );
        let border = block("Antiphon");
        let parts = Layout::vertical(heights.map(Constraint::Length)).areas(border.inner(head));
        frame.render_widget(border, head);
        for (words, part) in [sound, server, meters, news]
            .into_iter()
            .zip::<[Rect; 4]>(parts)
        {
            frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), part);
        }
        if self.shows_help {
            let help = Paragraph::new(LONG_HELP).block(block("Keys and figures"));
            frame.render_widget(help, room);
        } else if status.peers.is_empty() {
            let words = match status.signalling {
                Signalling::Online => "Nobody else is here yet. Others come in by the same link.",
                Signalling::Connecting => "",
            };
            let words = Paragraph::new(words).wrap(Wrap { trim: true });
            frame.render_widget(words.block(block("")), room);
        } else {
            self.draw_peers(frame, room, block(""), status);
        }
        let removing = (status.peers.iter())
            .find(|peer| self.removing.as_ref() == Some(&peer.id))
            .map(|peer| format!("X again removes {}; any other key does not", peer.name));
        let words = removing.unwrap_or_else(|| HELP.into());
        frame.render_widget(Paragraph::new(words), foot);
    }

    fn draw_peers(&self, frame: &mut Frame<'_>, area: Rect, block: Block<'_>, status: &Status) {
        let columns: &[Column] = if area.width >= WIDE {
            &WIDE_COLUMNS
        } else if area.width >= SMALL {
            &NARROW_COLUMNS
        } else {
            &SMALL_COLUMNS
        };
        let cells = |peer| {
            let figures = Figures::of(peer, status);
            Row::new(columns.iter().map(move |(_, _, cell)| cell(peer, &figures)))
        };
        let widths = columns.iter().map(|&(_, width, _)| match width {
            0 => Constraint::Min(12),
            _ => Constraint::Length(width),
        });
        let table = Table::new(status.peers.iter().map(cells), widths)
            .header(Row::new(columns.iter().map(|&(title, _, _)| title)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(block);
        // Scrolls until the chosen one is to be seen.
        let row = self.row.min(status.peers.len() - 1);
        let mut state = TableState::default().with_selected(row);
        frame.render_stateful_widget(table, area, &mut state);
    }
}

/// What is not as it should be. None of it hides another.
fn news(status: &Status) -> impl Iterator<Item = &str> {
    let all = [&status.offline, &status.refused, &status.notice];
    all.into_iter().flatten().map(String::as_str)
}

/// Lines that words take, at least 1, at most 6: broken between words.
fn lines_of(words: &str, width: u16) -> u16 {
    let (mut lines, mut column) = (1, 0);
    for word in words.split_whitespace() {
        // In columns: of many scripts each character takes two.
        let length = Span::raw(word).width();
        let end = if column == 0 {
            length
        } else {
            column + 1 + length
        };
        if end > usize::from(width) && column > 0 {
            (lines, column) = (lines + 1, length);
        } else {
            column = end;
        }
    }
    lines.min(6)
}

/// Its title, its width (0: what is left), and what stands in it.
type Column = (&'static str, u16, fn(&PeerStatus, &Figures) -> String);

/// Of 40 columns.
const SMALL_COLUMNS: [Column; 4] = [
    ("", 0, |peer, _| placed_name(peer)),
    ("dBFS", 9, |peer, _| level(peer, 4)),
    ("gain dB", 8, |peer, _| gain(peer)),
    ("to ear", 8, |_, figures| figures.delay.replace(' ', "")),
];
/// Inside of 80 columns with a border.
const NARROW_COLUMNS: [Column; 7] = [
    ("", 0, |peer, _| placed_name(peer)),
    ("dBFS", 13, |peer, _| level(peer, 8)),
    ("gain dB", 8, |peer, _| gain(peer)),
    ("path", 12, |_, figures| figures.path.clone()),
    ("buffer ms", 9, |_, figures| figures.buffer.clone()),
    ("concealed", 9, |_, figures| figures.concealed.clone()),
    ("to ear ms", 9, |_, figures| figures.delay.clone()),
];
const WIDE_COLUMNS: [Column; 10] = [
    ("", 0, |peer, _| placed_name(peer)),
    ("dBFS", 21, |peer, _| level(peer, 16)),
    ("gain dB", 8, |peer, _| gain(peer)),
    ("path", 12, |_, figures| figures.path.clone()),
    ("sent as", 9, |peer, _| {
        peer.sent.map_or(String::new(), |sent| {
            let mark = if sent.rung > 0 { "↓" } else { "" };
            format_words(sent.format, sent.opus_bps) + mark
        })
    }),
    ("buffer ms", 11, |_, figures| figures.buffer.clone()),
    ("lost", 6, |peer, _| count(peer.lost_packets)),
    ("late", 6, |peer, _| count(peer.late_packets)),
    ("concealed", 9, |_, figures| figures.concealed.clone()),
    ("mouth to ear ms", 15, |_, figures| figures.delay.clone()),
];

fn name(peer: &PeerStatus) -> String {
    peer.name.clone() + if peer.is_present { "" } else { " (away)" }
}

fn placed_name(peer: &PeerStatus) -> String {
    format!("{} {}", name(peer), pan_words(peer.pan))
}

/// Where it is heard, in percent of the way to one side; nothing in the middle.
fn pan_words(pan: f32) -> String {
    let percent = (100.0 * pan).round() as i32;
    match percent {
        0 => String::new(),
        1.. => format!("R{percent}"),
        _ => format!("L{}", -percent),
    }
}

fn level(peer: &PeerStatus, cells: usize) -> String {
    if peer.is_muted_by_owner {
        ["muted for all", "muted all"][usize::from(cells < 8)].into()
    } else if peer.is_muted {
        "muted".into()
    } else if only_listens(peer) {
        ["only listens", "listens"][usize::from(cells < 8)].into()
    } else {
        meter(peer.peaks[0].max(peer.peaks[1]), cells)
    }
}

fn gain(peer: &PeerStatus) -> String {
    decibel(peer.gain) + if peer.is_solo { " solo" } else { "" }
}

fn own_words(status: &Status) -> &'static str {
    if status.is_muted_by_owner {
        "the owner muted you: nobody hears you"
    } else if status.is_muted {
        "muted: you send silence"
    } else {
        ""
    }
}

/// What one may do there, and what others must.
fn room_words(status: &Status) -> &'static str {
    match (status.is_owner, status.is_locked) {
        (true, true) => "the room is yours, and locked",
        (true, false) => "the room is yours",
        (false, _) => "",
    }
}

/// One's own sound. What is not known yet is not in it.
fn sound_words(status: &Status) -> String {
    let mut words = Vec::new();
    if status.sample_rate_hz > 0 {
        words.push(format!("{} Hz", status.sample_rate_hz));
    }
    if status.quantum_frames > 0 {
        words.push(format!("quantum {}", status.quantum_frames));
    }
    if status.packet_frames > 0 {
        words.push(format!("packet {}", status.packet_frames));
    }
    words.push(format!("xruns {}", status.xruns));
    let missing = match (status.has_no_input, status.has_no_output) {
        (true, true) => Some("no sound card is connected"),
        (true, false) => Some("no microphone is connected"),
        (false, true) => Some("no output is connected"),
        (false, false) => None,
    };
    words.extend(missing.map(str::to_owned));
    words.join(" · ")
}

fn server_words(status: &Status) -> String {
    let signalling = match (status.signalling, &status.id) {
        (Signalling::Online, _) => "online",
        (Signalling::Connecting, None) => "connecting to the server",
        (Signalling::Connecting, Some(_)) => {
            "the server is gone, trying again; what comes directly goes on"
        }
    };
    let relay = &status.relay;
    if let Some(why) = (relay.trouble.as_ref()).filter(|_| status.signalling == Signalling::Online)
    {
        return format!("{signalling} · {why}");
    }
    if status.signalling != Signalling::Online || relay.sessions == 0 {
        return signalling.to_owned();
    }
    let rtt = (relay.rtt_ms).map_or("?".into(), |rtt_ms| format!("{rtt_ms:.1} ms"));
    let sessions = if relay.sessions == 1 {
        "session"
    } else {
        "sessions"
    };
    let sent = (relay.sent).map_or(String::new(), |sent| {
        format!(" · sent {}", sent_words(&sent))
    });
    let statistics = relay.statistics.as_ref();
    let refused = if statistics.is_some_and(|statistics| statistics.mix_refused) {
        ", mixes enough already"
    } else {
        ""
    };
    let missing_share = statistics.and_then(RelayStatistics::missing_share);
    let lost = match missing_share.filter(|share| *share > 0.0) {
        Some(share) => format!(", {:.1} % lost on the way there", 100.0 * share),
        None => String::new(),
    };
    format!(
        "{signalling} · {} {sessions}, round trip {rtt}{refused}{lost}{sent}",
        relay.sessions
    )
}

/// The same as text, for logs and for those who do not see.
pub(crate) fn lines(status: &Status) -> Vec<String> {
    let mut lines = vec![format!(
        "{} · {}",
        server_words(status),
        sound_words(status)
    )];
    let own = [room_words(status), own_words(status)].into_iter();
    lines.extend(own.filter(|words| !words.is_empty()).map(str::to_owned));
    lines.extend(news(status).map(str::to_owned));
    lines.extend(status.peers.iter().map(|peer| {
        let figures = Figures::of(peer, status);
        let pan = match pan_words(peer.pan) {
            words if words.is_empty() => words,
            words => format!(", pan {words}"),
        };
        let marks = [
            (peer.is_muted, ", muted"),
            (peer.is_solo, ", solo"),
            (peer.is_muted_by_owner, ", muted for all by the owner"),
        ];
        let marks: String = (marks.iter().filter(|(is, _)| *is))
            .map(|(_, mark)| *mark)
            .collect();
        let (level, stream) = if is_in_mix(peer) {
            Default::default()
        } else if only_listens(peer) {
            let stream = formats(peer) + ", sends no sound, only listens";
            (String::new(), stream)
        } else {
            (
                format!("{} dBFS, ", decibel(peer.peaks[0].max(peer.peaks[1]))),
                format!(
                    "{}, buffer {} ms, {} lost, {} late, {} concealed in the last 4 s",
                    formats(peer),
                    figures.buffer,
                    peer.lost_packets,
                    peer.late_packets,
                    figures.concealed,
                ),
            )
        };
        let delay = if only_listens(peer) {
            String::new()
        } else {
            format!(", mouth to ear {} ms", figures.delay)
        };
        format!(
            "  {}: {level}gain {} dB{pan}{marks}, {}{stream}{delay}",
            name(peer),
            decibel(peer.gain),
            figures.path,
        )
    }));
    lines
}

/// Of whom nothing is heard but in the mix.
fn is_in_mix(peer: &PeerStatus) -> bool {
    peer.is_mixed && !peer.id.is_empty()
}

/// By its own word. What came of it before is past.
fn only_listens(peer: &PeerStatus) -> bool {
    peer.captures == Some(false)
}

/// A peer's, as text. "?" is what is not known, "–" what there is not.
struct Figures {
    path: String,
    /// Waiting / aimed at, ms.
    buffer: String,
    concealed: String,
    /// Mouth to ear, ms.
    delay: String,
}

impl Figures {
    fn of(peer: &PeerStatus, status: &Status) -> Self {
        let ms =
            |frames: u64| ms_words(frames as f64 * 1e3 / f64::from(status.sample_rate_hz.max(1)));
        let ways = [
            (peer.is_heard_directly, "direct"),
            (peer.is_relayed, "relay"),
            (peer.is_mixed, "mixed"),
        ];
        let ways: Vec<_> = (ways.iter().filter(|(is, _)| *is))
            .map(|(_, way)| *way)
            .collect();
        let has_no_stream = is_in_mix(peer) || only_listens(peer);
        let concealed_share = (peer.hearing).and_then(|hearing| hearing.concealed_share);
        Self {
            path: if !ways.is_empty() {
                ways.join("+")
            } else if peer.direct_lanes > 0 || status.relay.sessions > 0 {
                "silent".into()
            } else {
                "connecting".into()
            },
            buffer: if has_no_stream {
                "–".into()
            } else {
                format!(
                    "{}/{}",
                    peer.buffer_frames.map_or("?".into(), ms),
                    ms(peer.target_frames)
                )
            },
            concealed: match concealed_share {
                _ if has_no_stream || peer.is_muted_by_owner => "–".into(),
                None => "?".into(),
                Some(share) => format!("{:.2} %", 100.0 * share),
            },
            delay: match peer.mouth_to_ear {
                _ if only_listens(peer) => "–".into(),
                None => "?".into(),
                Some(m) if m.is_whole => {
                    format!("{} ±{}", ms_words(m.known_ms), ms_words(m.error_ms))
                }
                Some(m) => format!("≥ {}", ms_words(m.known_ms)),
            },
        }
    }
}

/// What comes from a peer and what its lanes are sent, for lines.
fn formats(peer: &PeerStatus) -> String {
    let comes = (peer.format).map(|format| format!(", comes in {}", format_words(format, None)));
    let goes = (peer.sent).map(|sent| format!(", sent {}", sent_words(&sent)));
    [comes, goes].into_iter().flatten().collect()
}

fn sent_words(sent: &SentStatus) -> String {
    let mut words = format_words(sent.format, sent.opus_bps);
    if sent.rung > 0 {
        words += " because the way there is too slow";
    }
    if sent.copies {
        words += ", with copies";
    }
    words
}

/// `format`: as a status calls it.
fn format_words(format: &str, opus_bps: Option<u32>) -> String {
    match (format, opus_bps) {
        ("opus", Some(bps)) => format!("Opus {}", bps / 1_000),
        ("opus", None) => "Opus".into(),
        (samples, _) => format!("{} bits", &samples[1..]),
    }
}

/// A tenth matters only of what is short.
fn ms_words(ms: f64) -> String {
    if ms < 99.95 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

/// In 6 columns.
fn count(number: u64) -> String {
    match number {
        ..100_000 => number.to_string(),
        100_000..1_000_000 => format!("{}k", number / 1_000),
        _ => format!("{:.1}M", number as f64 / 1e6),
    }
}

fn decibel(linear: f32) -> String {
    if linear > 0.0 {
        format!("{:.0}", 20.0 * linear.log10())
    } else {
        "−∞".into()
    }
}

fn meter(peak: f32, cells: usize) -> String {
    let db = 20.0 * peak.max(1e-9).log10();
    let share = (1.0 - db / LEAST_DB).clamp(0.0, 1.0);
    let filled = (share * cells as f32).round() as usize;
    let bar = "█".repeat(filled) + &"·".repeat(cells - filled);
    format!("{bar} {:>4}", decibel(peak))
}

#[cfg(test)]
mod tests {
    use antiphon_agent::status::{HeardStatus, MouthToEarStatus};
    use ratatui::backend::TestBackend;

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
    fn a_panic_that_is_caught_is_noted_once_the_terminal_has_been_given_back() {
        static HAD_NOTED: AtomicBool = AtomicBool::new(true);
        // In place of ratatui's.
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            HAD_NOTED.store(IS_GIVEN_BACK.load(Ordering::Acquire), Ordering::Release);
            before(info);
        }));
        heed_panics();
        let caught = thread::spawn(|| panic::catch_unwind(|| panic!("as a test")).is_err());
        assert!(caught.join().expect("it was caught"));
        assert!(IS_GIVEN_BACK.load(Ordering::Acquire));
        assert!(!HAD_NOTED.load(Ordering::Acquire), "not before");
    }

    #[test]
    fn keys_are_for_who_is_chosen() {
        let (mut view, status) = (View::default(), status());
        let ann = || "ann".to_owned();
        assert_eq!(
            view.handle_key(KeyCode::Left, &status),
            Some(Order::Louder(ann(), -1.0))
        );
        assert_eq!(view.handle_key(KeyCode::Down, &status), None);
        assert_eq!(
            view.handle_key(KeyCode::Down, &status),
            None,
            "bob is the last"
        );
        let bob = || "bob".to_owned();
        for (key, order) in [
            (KeyCode::Right, Order::Louder(bob(), 1.0)),
            (KeyCode::Char('0'), Order::ResetGain(bob())),
            (KeyCode::Char(','), Order::Right(bob(), -0.1)),
            (KeyCode::Char('.'), Order::Right(bob(), 0.1)),
            (KeyCode::Char('m'), Order::ToggleMute(bob())),
            (KeyCode::Char('s'), Order::ToggleSolo(bob())),
            (KeyCode::Char(' '), Order::ToggleMuteSelf),
        ] {
            assert_eq!(view.handle_key(key, &status), Some(order));
        }
        let alone = Status::default();
        assert_eq!(view.handle_key(KeyCode::Char('s'), &alone), None);
    }

    #[test]
    fn where_one_is_heard_is_said_in_percent() {
        let words = [-0.2, 0.0, 0.1, 1.0].map(pan_words);
        assert_eq!(words, ["L20", "", "R10", "R100"]);
    }

    #[test]
    fn an_owner_mutes_at_once_and_removes_when_asked_twice() {
        let (mut view, mut status) = (View::default(), status());
        let mut press = |key, status: &Status| {
            let order = view.handle_key(KeyCode::Char(key), status);
            let asks = screen(&view, status, 80, 24).contains("X again removes ANN");
            (order, asks)
        };
        for key in ['M', 'X', 'X'] {
            assert_eq!(press(key, &status), (None, false), "not the owner");
        }
        status.is_owner = true;
        let moderate = |action| Some(Order::Moderate("ann".into(), action));
        assert_eq!(press('M', &status), (moderate(Moderation::Mute), false));
        assert_eq!(press('X', &status), (None, true));
        assert_eq!(press('?', &status), (None, false));
        assert_eq!(press('X', &status), (None, true));
        assert_eq!(press(' ', &status), (Some(Order::ToggleMuteSelf), false));
        assert_eq!(press('X', &status), (None, true));
        assert_eq!(press('X', &status), (moderate(Moderation::Remove), false));
        status.peers[0].is_muted_by_owner = true;
        assert_eq!(press('M', &status), (moderate(Moderation::Unmute), false));
        // The server's mix is nobody.
        status.peers[0].id = String::new();
        assert_eq!(press('M', &status), (None, false));
    }

    #[test]
    fn a_letter_with_control_or_alt_is_not_the_letter() {
        let (mut view, mut status) = (View::default(), status());
        status.is_owner = true;
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        for key in ['s', 'm', ' ', '0', '?'] {
            assert_eq!(view.handle_key(control(key), &status), None, "{key}");
        }
        assert!(!view.shows_help);
        let alt = KeyEvent::new(KeyCode::Char('s'), KeyModifiers::ALT);
        assert_eq!(view.handle_key(alt, &status), None);
        // Any other key means that nobody is removed.
        for key in [
            KeyCode::Char('X').into(),
            control('X'),
            KeyCode::Char('X').into(),
        ] {
            assert_eq!(view.handle_key(key, &status), None);
        }
        let leaves = [KeyCode::Char('q').into(), control('c'), control('q')].map(is_leave);
        assert_eq!(leaves, [true, true, false]);
    }

    #[test]
    fn what_is_not_known_is_not_0() {
        let lines = lines(&status());
        assert!(lines[1].contains("ANN: −∞ dBFS"), "{lines:?}");
        assert!(lines[1].contains("buffer ?/0.0 ms"), "{lines:?}");
        assert!(lines[1].contains("mouth to ear ?"), "{lines:?}");
    }

    #[test]
    fn what_is_made_up_is_of_the_last_seconds_and_not_of_who_is_muted() {
        let mut status = busy();
        (
            status.peers[0].played_frames,
            status.peers[0].concealed_frames,
        ) = (1 << 30, 1);
        let concealed = |status: &Status| Figures::of(&status.peers[0], status).concealed;
        assert_eq!(concealed(&status), "10.00 %");
        status.peers[0].is_muted_by_owner = true;
        assert_eq!(concealed(&status), "–");
        status.peers[0] = PeerStatus::default();
        assert_eq!(concealed(&status), "?");
    }

    #[test]
    fn a_path_is_the_way_that_sound_comes_and_not_one_that_is_open() {
        let mut status = status();
        let path = |status: &Status| Figures::of(&status.peers[0], status).path;
        assert_eq!(path(&status), "connecting");
        status.peers[0].direct_lanes = 2;
        assert_eq!(path(&status), "silent", "it sends nothing there");
        status.peers[0].is_relayed = true;
        assert_eq!(path(&status), "relay");
        status.peers[0].is_heard_directly = true;
        assert_eq!(path(&status), "direct+relay");
        status.peers[0] = PeerStatus::default();
        status.relay.sessions = 1;
        assert_eq!(path(&status), "silent", "it only listens");
    }

    #[test]
    fn a_meter_is_as_long_at_any_level() {
        for peak in [0.0, 1e-4, 0.1, 1.0, 4.0] {
            assert_eq!(meter(peak, 8).chars().count(), 8 + 5, "{peak}");
        }
        assert!(meter(1.0, 8).starts_with(&"█".repeat(8)));
    }

    fn screen(view: &View, status: &Status, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal
            .draw(|frame| view.draw(frame, status))
            .expect("drawn");
        terminal.backend().to_string()
    }

    fn busy() -> Status {
        let mut status = status();
        status.signalling = Signalling::Online;
        status.id = Some("me".into());
        (status.quantum_frames, status.packet_frames) = (1_024, 512);
        status.is_muted_by_owner = true;
        (status.relay.sessions, status.relay.rtt_ms) = (4, Some(123.4));
        status.relay.statistics = Some(RelayStatistics {
            received: 979,
            missing: 21,
            ..RelayStatistics::default()
        });
        let peer = &mut status.peers[0];
        (peer.name, peer.gain, peer.is_solo) = ("Arpeggio".into(), 0.016, true);
        (peer.is_heard_directly, peer.is_relayed) = (true, true);
        (peer.buffer_frames, peer.target_frames) = (Some(1_234), 2_345);
        peer.hearing = Some(HeardStatus {
            is_mixed: false,
            concealed_share: Some(0.1),
            lost_share: None,
            late_share: None,
            buffer_frames: None,
        });
        peer.format = Some("s24");
        peer.sent = Some(SentStatus {
            format: "opus",
            opus_bps: Some(128_000),
            rung: 2,
            copies: true,
            copies_sent: 1,
            switches: 2,
        });
        peer.mouth_to_ear = Some(MouthToEarStatus {
            known_ms: 45.6,
            error_ms: 1.2,
            is_whole: true,
        });
        status
    }

    #[test]
    fn all_of_it_fits_80_columns() {
        let screen = screen(&View::default(), &busy(), 80, 24);
        for whole in [
            "4 sessions, round trip 123.4 ms, 2.1 % lost on the way there",
            "the owner muted you: nobody hears you",
            "q leave",
            "dBFS          gain dB  path         buffer ms concealed to ear ms",
            "Arpeggio",
            "-36 solo direct+relay 25.7/48.9 10.00 %   45.6 ±1.2",
        ] {
            assert!(screen.contains(whole), "{whole}:\n{screen}");
        }
    }

    #[test]
    fn a_server_that_does_not_answer_has_no_round_trip() {
        let mut status = busy();
        status.relay.rtt_ms = None;
        let words = server_words(&status);
        assert!(
            words.starts_with("online · 4 sessions, round trip ?"),
            "{words}"
        );
    }

    #[test]
    fn a_server_that_mixes_enough_already_is_said_to() {
        let mut status = busy();
        let statistics = status.relay.statistics.as_mut().expect("figures");
        statistics.mix_refused = true;
        let words = "4 sessions, round trip 123.4 ms, mixes enough already, 2.1 %";
        assert!(screen(&View::default(), &status, 80, 24).contains(words));
        assert!(lines(&status)[0].contains(words));
    }

    #[test]
    fn what_is_sent_is_said() {
        let wide = screen(&View::default(), &busy(), 120, 24);
        let row = "direct+relay Opus 128↓ 25.7/48.9   0      0      10.00 %   45.6 ±1.2";
        assert!(wide.contains(row), "{wide}");
        let lines = lines(&busy());
        let words = ", direct+relay, comes in 24 bits, sent Opus 128 because the way there is too slow, with copies, buffer ";
        assert!(lines.iter().any(|line| line.contains(words)), "{lines:?}");
    }

    #[test]
    fn of_who_is_heard_in_the_mix_nothing_is_said_that_is_the_mix_s() {
        let mut status = busy();
        (status.peers[0].is_mixed, status.peers[0].is_heard_directly) = (true, false);
        let lines = lines(&status);
        let line = lines
            .iter()
            .find(|line| line.contains("Arpeggio"))
            .expect("a line");
        for unknown in ["dBFS", "buffer", "concealed"] {
            assert!(!line.contains(unknown), "{line}");
        }
        assert!(line.contains("mouth to ear 45.6 ±1.2 ms"), "{line}");
        let screen = screen(&View::default(), &status, 120, 24);
        assert!(!screen.contains("10.00 %"), "{screen}");
    }

    #[test]
    fn who_only_listens_is_said_to() {
        let mut status = busy();
        status.peers[0].captures = Some(false);
        let lines = lines(&status);
        let words = ", sent Opus 128 because the way there is too slow, with copies, sends no sound, only listens";
        assert!(lines.iter().any(|line| line.ends_with(words)), "{lines:?}");
        for width in [80, 120] {
            let screen = screen(&View::default(), &status, width, 24);
            assert!(screen.contains("only listens"), "{screen}");
            assert!(!screen.contains("10.00 %"), "{screen}");
        }
    }

    #[test]
    fn a_small_terminal_shows_who_is_there_how_loud_and_how_to_leave() {
        let mut status = busy();
        status.notice =
            Some("the network thread has no real-time priority: it is not allowed".into());
        (status.peers[0].peaks, status.peers[0].gain) = ([0.25; 2], 0.5);
        for width in [40, 50, 60, 80, 120] {
            for height in [9, 24] {
                let screen = screen(&View::default(), &status, width, height);
                for words in ["Arpeggio", "-12", "-6 solo", "? keys · q leave", "45.6"] {
                    assert!(
                        screen.contains(words),
                        "{width} x {height}, {words}:\n{screen}"
                    );
                }
                let has_frames = width >= 70 && height >= 12;
                assert_eq!(screen.contains('│'), has_frames, "{screen}");
            }
            let quiet = screen(&View::default(), &self::status(), width, 9);
            for name in ["ANN", "BOB"] {
                assert!(quiet.contains(name), "{quiet}");
            }
        }
    }

    #[test]
    fn long_figures_are_not_cut_in_the_middle() {
        let mut status = busy();
        let peer = &mut status.peers[0];
        (peer.buffer_frames, peer.target_frames) = (Some(5_784), 6_250);
        (peer.lost_packets, peer.late_packets) = (1_234_567, 999_999);
        peer.mouth_to_ear = Some(MouthToEarStatus {
            known_ms: 1_234.5,
            error_ms: 123.4,
            is_whole: true,
        });
        let narrow = screen(&View::default(), &status, 80, 24);
        assert!(
            narrow.contains(" 120/130   10.00 %   1234 ±123"),
            "{narrow}"
        );
        let wide = screen(&View::default(), &status, 120, 24);
        assert!(wide.contains(" 1.2M   999k   10.00 % "), "{wide}");
        assert_eq!([0, 99_999, 100_000].map(count), ["0", "99999", "100k"]);
        status.relay.trouble = Some(
            format!(
                "the server's relay does not answer on UDP 443: {}",
                "word ".repeat(8)
            ) + "timed out",
        );
        let said = screen(&View::default(), &status, 80, 24);
        assert!(said.contains("timed out"), "{said}");
    }

    #[test]
    fn help_is_whole_and_says_the_way_back() {
        let mut view = View::default();
        view.handle_key(KeyCode::Char('?'), &status());
        let mut busy = busy();
        busy.notice = Some("it is slow here, for there is no priority ".repeat(5));
        let screen = screen(&view, &busy, 80, 24);
        for line in LONG_HELP.lines() {
            assert!(screen.contains(line), "{line}:\n{screen}");
        }
    }

    #[test]
    fn who_is_chosen_is_seen_in_a_full_room() {
        let mut status = status();
        status.peers = (0..31)
            .map(|n| PeerStatus {
                id: n.to_string(),
                name: format!("player {n}"),
                ..PeerStatus::default()
            })
            .collect();
        let mut view = View::default();
        assert!(!screen(&view, &status, 80, 24).contains("player 30"));
        for _ in 0..40 {
            view.handle_key(KeyCode::Down, &status);
        }
        assert!(screen(&view, &status, 80, 24).contains("player 30"));
    }

    #[test]
    fn who_is_chosen_stays_so_wherever_the_others_go() {
        let (mut view, mut status) = (View::default(), status());
        view.handle_key(KeyCode::Down, &status);
        let mute =
            |view: &mut View, status: &Status| match view.handle_key(KeyCode::Char('m'), status) {
                Some(Order::ToggleMute(id)) => id,
                order => panic!("{order:?}"),
            };
        let newcomer = PeerStatus {
            id: "cyd".into(),
            ..PeerStatus::default()
        };
        status.peers.insert(0, newcomer);
        assert_eq!(mute(&mut view, &status), "bob");
        status.peers.drain(..2);
        assert_eq!(mute(&mut view, &status), "bob");
        // Who is there now; also seen before the next key is pressed.
        status.peers = vec![status.peers[0].clone(), status.peers[0].clone()];
        (status.peers[0].id, status.peers[1].id) = ("dan".into(), "eve".into());
        view.follow(&status);
        status.peers.swap(0, 1);
        assert_eq!(mute(&mut view, &status), "dan");
    }

    #[test]
    fn that_the_room_is_one_s_own_and_locked_is_said() {
        let mut status = status();
        let said = |status: &Status| {
            let small = screen(&View::default(), status, 40, 24);
            let whole = screen(&View::default(), status, 80, 24);
            (small, whole, lines(status).join("\n"))
        };
        status.is_locked = true;
        let (small, whole, lines) = said(&status);
        for text in [small, whole, lines] {
            assert!(
                !text.contains("yours") && !text.contains("locked"),
                "{text}"
            );
        }
        for (is_locked, words, short) in [
            (false, "the room is yours", "the room is yours"),
            (true, "the room is yours, and locked", "yours, and locked"),
        ] {
            (status.is_owner, status.is_locked) = (true, is_locked);
            let (small, whole, lines) = said(&status);
            for (text, words) in [(small, short), (whole, words), (lines, words)] {
                assert!(text.contains(words), "{words}: {text}");
                assert_eq!(text.contains("locked"), is_locked, "{text}");
            }
        }
    }

    #[test]
    fn news_is_read_to_its_end() {
        let mut status = status();
        let news = "the network thread has no real-time priority: Operation not permitted (os error 1): \
                    allow it with `rtprio 95` for your group in /etc/security/limits.conf";
        status.notice = Some(news.into());
        for width in [60, 80, 200] {
            let screen = screen(&View::default(), &status, width, 24);
            let words: Vec<_> = screen
                .split_whitespace()
                .filter(|word| *word != "│")
                .collect();
            let (first, last) = ("the network thread has", "/etc/security/limits.conf");
            assert!(words.join(" ").contains(first), "{screen}");
            assert!(screen.contains(last), "{screen}");
        }
    }

    #[test]
    fn news_of_wide_characters_is_read_to_its_end() {
        let mut status = status();
        let wide = "名".repeat(30);
        status.notice = Some(format!("{wide} {wide} {wide}!"));
        let screen = screen(&View::default(), &status, 80, 24);
        assert!(screen.contains('!'), "{screen}");
    }

    #[test]
    fn no_news_hides_other_news() {
        let mut status = status();
        status.offline = Some("the server is silent".into());
        status.refused =
            Some("cannot connect system:capture_1 to Antiphon:in_1: not permitted".into());
        status.notice = Some("the server does not answer: try again".into());
        let screen = screen(&View::default(), &status, 80, 24);
        for word in [
            "silent",
            "system:capture_1",
            "permitted",
            "answer:",
            "again",
        ] {
            assert!(screen.contains(word), "{word}:\n{screen}");
        }
        let lines = lines(&status);
        for line in news(&status) {
            assert!(lines.iter().any(|it| it == line), "{line}: {lines:?}");
        }
    }

    #[test]
    fn nobody_and_no_server_are_said() {
        let mut status = Status {
            signalling: Signalling::Online,
            id: Some("me".into()),
            ..Status::default()
        };
        let here = screen(&View::default(), &status, 80, 24);
        assert!(here.contains("Nobody else is here yet."), "{here}");
        assert!(!here.contains("0 Hz"), "{here}");
        (status.has_no_input, status.has_no_output) = (true, true);
        let unplugged = screen(&View::default(), &status, 80, 24);
        assert!(
            unplugged.contains("xruns 0 · no sound card is connected"),
            "{unplugged}"
        );
        status.relay.trouble =
            Some("the server's relay does not answer on UDP 443: timed out".into());
        let mute = screen(&View::default(), &status, 80, 24);
        let words = "online · the server's relay does not answer on UDP 443: timed out";
        assert!(mute.contains(words), "{mute}");
        status.signalling = Signalling::Connecting;
        let gone = screen(&View::default(), &status, 80, 24);
        assert!(gone.contains("the server is gone, trying again"), "{gone}");
    }
}
