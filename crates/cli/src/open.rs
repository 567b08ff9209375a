//! `antiphon open`: the user's own browser, with sound settings that a page cannot ask for.

use std::{
    fmt, fs,
    io::{self, Write},
    path::PathBuf,
    process::{Command, Stdio},
    str::FromStr,
    thread,
    time::Duration,
};

use antiphon_server::signalling::RoomName;
use clap::Args;

use crate::{
    Failure,
    browsers::{Browser, Computer, Family, PRODUCTS, System, Wanted},
    say,
};

/// Enter a room in your own browser, set for the lowest latency
#[derive(Debug, Args)]
#[command(after_help = "\
A page cannot ask its browser for small sound buffers, but whoever starts the
browser can. It gets a profile of its own: your tabs, extensions and settings
are neither used nor changed.

Examples:
  antiphon open https://music.example.org/r/k3J9x0aQbW2mT7uYpL5sNg
  antiphon open --browser firefox LINK
      With another browser than the first one found.
  antiphon open --buffer-frames 256 LINK
      If the sound crackles: larger buffers, more delay.
  antiphon open --dry-run LINK
      Show what it would start, without starting it.")]
pub(crate) struct Open {
    /// The room's link, as the server printed it or as somebody sent it
    #[arg(value_name = "ROOM_LINK")]
    link: RoomLink,

    /// chrome, chromium, edge, brave, firefox, or the path of a program [default: the first one found]
    #[arg(long, env = "ANTIPHON_BROWSER", value_name = "BROWSER")]
    browser: Option<Wanted>,

    /// The sound buffer asked of the browser, in frames: 32 to 2048. Fewer is faster, more is safer
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(32..=2048))]
    buffer_frames: u32,

    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,

    /// Wait until the browser is closed
    #[arg(long)]
    wait: bool,

    /// Start Chromium without its sandbox, which it needs when run as root. Dangerous: only for test machines
    #[arg(long)]
    no_sandbox: bool,
}

/// `http(s)://HOST[:PORT]/r/ROOM`, perhaps with what `docs/automation.md` allows after it, and nothing more: it becomes an argument of another program.
#[derive(Debug, Clone)]
struct RoomLink {
    /// Without a fragment.
    text: String,
    /// Whether browsers give a page from there the microphone.
    secure: bool,
}

impl FromStr for RoomLink {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err("a room's link begins with https:// or http://"),
        };
        let shape = "a room's link looks like https://HOST/r/ROOM, with nothing after it but, perhaps, ?autojoin=1 and the like";
        let rest = rest.strip_suffix(LAUNCHED).unwrap_or(rest);
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"=&_.%+-".contains(&byte);
        let (host, room) = address.split_once("/r/").ok_or(shape)?;
        let room = room.strip_suffix('/').unwrap_or(room);
        if room.parse::<RoomName>().is_err() || !query.bytes().all(is_plain) {
            return Err(shape);
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => host,
        };
        let plain = |name: &str| {
            name.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
        };
        let ipv6 = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        let ipv6 = ipv6.is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok());
        if !ipv6 && (name.is_empty() || !plain(name)) {
            return Err(shape);
        }
        let local = name == "localhost"
            || name.ends_with(".localhost")
            || name.starts_with("127.")
            || name == "[::1]";
        let scheme = if https { "https" } else { "http" };
        let question = if query.is_empty() { "" } else { "?" };
        Ok(Self {
            text: format!("{scheme}://{host}/r/{room}{question}{query}"),
            secure: https || local,
        })
    }
}

/// Tells the page that its browser was started for low latency, so that it does not advise that (web/src/main/launcher.ts).
const LAUNCHED: &str = "#launched";

/// What is to be started, and with what.
#[derive(Debug)]
struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    profile: PathBuf,
    /// Firefox reads its settings from this text in its profile.
    user_js: Option<String>,
    settings: Vec<String>,
}

impl Open {
    /// Finds a browser, prepares its profile, starts it.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let computer = Computer::this()
            .ok_or_else(|| Failure::running("cannot tell where your home folder is"))?;
        let browser = computer
            .find(self.browser.as_ref())
            .ok_or_else(|| not_found(self.browser.as_ref()))?;
        if computer.system == System::Linux
            && browser.family == Family::Chromium
            && is_root()
            && !self.no_sandbox
        {
            return Err(Failure::usage(format!(
                "{} does not run as root with its sandbox on, and without it any page could take over the machine. \
                 Run this as another user, or, on a machine for tests, add --no-sandbox",
                browser.name
            )));
        }
        let launch = self.launch(&browser, computer.system);
        let program = browser.program.display();
        say(format!("Browser:  {} ({program})", browser.name));
        let profile = launch.profile.display();
        say(format!("Profile:  {profile}, only for Antiphon"));
        for setting in &launch.settings {
            say(format!("Sound:    {setting}"));
        }
        if !self.link.secure {
            let _ = writeln!(
                io::stderr(),
                "warning: browsers give pages from plain http:// no microphone: ask for an https:// link"
            );
        }
        if self.dry_run {
            if let Some(text) = &launch.user_js {
                let file = launch.user_js_path();
                say(format!("Settings: {}, with these lines:", file.display()));
                for line in text.lines() {
                    say(format!("          {line}"));
                }
            }
            say(format!("Command:  {launch}"));
            return Ok(());
        }
        self.start(&launch)
    }

    fn launch(&self, browser: &Browser, system: System) -> Launch {
        let frames = self.buffer_frames;
        let profile = browser.profile(frames);
        let folder = profile.display();
        let link = format!("{}{LAUNCHED}", self.link.text);
        let in_ms = format!("{:.1} ms at 48 kHz", f64::from(frames) / 48.0);
        let mut launch = Launch {
            program: browser.program.clone(),
            arguments: Vec::new(),
            environment: Vec::new(),
            user_js: None,
            settings: Vec::new(),
            profile: profile.clone(),
        };
        match browser.family {
            Family::Chromium => {
                launch.arguments = vec![
                    format!("--app={link}"),
                    format!("--user-data-dir={folder}"),
                    format!("--audio-buffer-size={frames}"),
                    "--no-first-run".into(),
                    "--no-default-browser-check".into(),
                    "--autoplay-policy=no-user-gesture-required".into(),
                ];
                if self.no_sandbox {
                    launch.arguments.push("--no-sandbox".into());
                }
                launch.settings.push(format!(
                    "buffers of {frames} frames, {in_ms} (--audio-buffer-size)"
                ));
            }
            Family::Firefox => {
                launch.arguments = vec![
                    "--profile".into(),
                    folder.to_string(),
                    "--new-window".into(),
                    link,
                ];
                launch.user_js = Some(user_js(frames));
                launch.settings.push(format!(
                    "buffers of {frames} frames, {in_ms} (media.cubeb_latency_mtg_frames)"
                ));
            }
        }
        if system == System::Linux {
            // Two buffers, and not less than was measured to work.
            let latency_ms = (2 * frames / 48).max(5);
            launch
                .environment
                .push(("PULSE_LATENCY_MSEC", latency_ms.to_string()));
            launch.settings.push(format!(
                "{latency_ms} ms asked of the sound server (PULSE_LATENCY_MSEC)"
            ));
        }
        launch
    }

    fn start(&self, launch: &Launch) -> Result<(), Failure> {
        launch.prepare_profile().map_err(|error| {
            Failure::running(format!(
                "cannot write to the profile {}: {error}",
                launch.profile.display()
            ))
        })?;
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.arguments)
            .envs(launch.environment.iter().map(|(name, value)| (name, value)));
        if !self.wait {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            outlive_the_terminal(&mut command);
        }
        let failed = |error: io::Error| {
            Failure::running(format!(
                "cannot start {}: {error}",
                launch.program.display()
            ))
        };
        let mut child = command.spawn().map_err(failed)?;
        let ended = if self.wait {
            Some(child.wait().map_err(failed)?)
        } else {
            // One that hands the link to a window that is already open ends at once, and well.
            thread::sleep(Duration::from_millis(500));
            child.try_wait().map_err(failed)?
        };
        match ended {
            Some(status) if !status.success() => {
                let advice = if self.wait {
                    ""
                } else {
                    "; run it with --wait to see its own messages"
                };
                let program = launch.program.display();
                Err(Failure::running(format!(
                    "{program} ended with {status}{advice}"
                )))
            }
            _ => Ok(()),
        }
    }
}

impl Launch {
    fn prepare_profile(&self) -> io::Result<()> {
        fs::create_dir_all(&self.profile)?;
        match &self.user_js {
            Some(text) => fs::write(self.user_js_path(), text),
            None => Ok(()),
        }
    }

    fn user_js_path(&self) -> PathBuf {
        self.profile.join("user.js")
    }
}

/// As one would type it.
impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        f.write_str(&quoted(&self.program.to_string_lossy()))?;
        self.arguments
            .iter()
            .try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

pub(crate) fn quoted(word: &str) -> String {
    quoted_on(word, cfg!(windows))
}

fn quoted_on(word: &str, is_windows: bool) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else if is_windows {
        // Neither a path nor a link has one in it.
        format!("\"{word}\"")
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Small buffers, sound without a click first, and no page in front of the room.
fn user_js(buffer_frames: u32) -> String {
    format!(
        r#"// Written by `antiphon open` each time it starts Firefox.
user_pref("media.cubeb_latency_mtg_frames", {buffer_frames});
user_pref("media.autoplay.default", 0);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.preonboarding.enabled", false);
user_pref("browser.startup.homepage_override.mstone", "ignore");
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("datareporting.policy.dataSubmissionPolicyBypassNotification", true);
"#
    )
}

fn not_found(wanted: Option<&Wanted>) -> Failure {
    match wanted {
        Some(Wanted::Product(product)) => Failure::running(format!(
            "{} was not found. Give the path of its program: --browser PATH, or leave --browser out to take another",
            product.name
        )),
        Some(Wanted::Program(path)) => {
            Failure::usage(format!("there is no program {}", path.display()))
        }
        None => {
            let names: Vec<_> = PRODUCTS.iter().map(|product| product.name).collect();
            Failure::running(format!(
                "no browser was found. Install one of {}; or give the path of one: --browser PATH",
                names.join(", ")
            ))
        }
    }
}

/// The browser goes on when the terminal is closed, and Ctrl-C does not reach it.
#[cfg(unix)]
fn outlive_the_terminal(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn outlive_the_terminal(_: &mut Command) {}

#[cfg(unix)]
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: &str = "k3J9x0aQbW2mT7uYpL5sNg";

    #[test]
    fn takes_links_to_rooms() {
        for (host, secure) in [
            ("https://music.example.org", true),
            ("https://192.0.2.1:8443", true),
            ("http://localhost:8080", true),
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080", true),
            ("http://192.0.2.1:8080", false),
            ("http://localhost.example.org", false),
        ] {
            let link: RoomLink = format!("{host}/r/{ROOM}").parse().expect(host);
            assert_eq!(link.secure, secure, "{host}");
        }
    }

    #[test]
    fn what_a_page_reads_after_the_room_is_passed_on() {
        for (after, passed_on) in [
            ("/", ""),
            ("#launched", ""),
            ("?", ""),
            ("?autojoin=1&name=A%20B", "?autojoin=1&name=A%20B"),
            ("/?quantum=64#launched", "?quantum=64"),
        ] {
            let link = format!("https://music.example.org/r/{ROOM}");
            let read: RoomLink = format!("{link}{after}").parse().expect(after);
            assert_eq!(read.text, format!("{link}{passed_on}"), "{after}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for link in [
            "",
            "--help",
            "music.example.org",
            "https://",
            "https://music.example.org/",
            "https://music.example.org/r/short",
            &format!("https:///r/{ROOM}"),
            &format!("file:///r/{ROOM}"),
            &format!("javascript:alert(1)//r/{ROOM}"),
            &format!("HTTPS://music.example.org/r/{ROOM}"),
            &format!("https://ann@music.example.org/r/{ROOM}"),
            &format!("https://music.example.org:x/r/{ROOM}"),
            &format!("https://music.example.org /r/{ROOM}"),
            &format!("https://music.example.org\" --gpu-launcher=x /r/{ROOM}"),
            &format!("https://[::1 ]/r/{ROOM}"),
            &format!("https://music.example.org/r/{ROOM}?q=\" --gpu-launcher=x"),
            &format!("https://music.example.org/r/{ROOM}#f"),
            &format!("https://music.example.org/r/{ROOM}/r/{ROOM}"),
            &format!("https://music.example.org/r/{ROOM}\n"),
        ] {
            assert!(link.parse::<RoomLink>().is_err(), "{link}");
        }
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let unix = |word| quoted_on(word, false);
        assert_eq!(unix("/usr/bin/chromium"), "/usr/bin/chromium");
        assert_eq!(
            unix("/Applications/Google Chrome"),
            "'/Applications/Google Chrome'"
        );
        assert_eq!(unix("it's"), r"'it'\''s'");
        let chrome = r"C:\Program Files\Google\Chrome\Application\chrome.exe";
        assert_eq!(quoted_on(chrome, true), format!("\"{chrome}\""));
        assert_eq!(quoted_on("--new-window", true), "--new-window");
    }
}
