//! `antiphon open` with browsers that are shell scripts.
#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

const LINK: &str = "https://music.example.org/r/k3J9x0aQbW2mT7uYpL5sNg";

/// A home, and a folder on the PATH with browsers that write down how they were started.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn with(browsers: &[&str]) -> Self {
        let desk = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        fs::create_dir(desk.path("bin")).expect("a folder");
        for browser in browsers {
            desk.install(browser, "");
        }
        desk
    }

    fn install(&self, browser: &str, then: &str) {
        let program = self.path("bin").join(browser);
        let record = self.path("started");
        let script = format!(
            "#!/bin/sh\n{{ echo $PULSE_LATENCY_MSEC; printf '%s\\n' \"$@\"; }} > {record}.part\n\
             mv {record}.part {record}\n{then}\n",
            record = record.display()
        );
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made executable");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(arguments).output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (status.code(), text(stdout), text(stderr))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command
            .arg("open")
            .args(arguments)
            .env("HOME", self.folder.path())
            .env("PATH", path);
        command
            .env_remove("XDG_DATA_HOME")
            .env_remove("ANTIPHON_BROWSER");
        command
    }

    /// What the browser wrote down: the latency asked for, then its arguments.
    fn started(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.path("started").exists() {
            assert!(Instant::now() < deadline, "the browser was not started");
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = fs::read_to_string(self.path("started")).expect("readable");
        text.lines().map(str::to_owned).collect()
    }

    fn profile(&self, name: &str) -> String {
        self.path(".local/share/antiphon")
            .join(name)
            .display()
            .to_string()
    }
}

#[test]
fn a_dry_run_says_everything_and_does_nothing() {
    let desk = Desk::with(&["google-chrome-stable"]);
    let (code, stdout, stderr) = desk.open(&["--dry-run", "--no-sandbox", LINK]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for said in [
        "Browser:  Google Chrome (",
        &format!("Profile:  {}", desk.profile("chrome-128")),
        "128 frames, 2.7 ms at 48 kHz",
        "PULSE_LATENCY_MSEC=5 ",
        &format!("'--app={LINK}#launched'"),
    ] {
        assert!(stdout.contains(said), "{said} is not in\n{stdout}");
    }
    assert!(!desk.path("started").exists() && !Path::new(&desk.profile("chrome-128")).exists());
}

#[test]
fn a_dry_run_shows_the_settings_that_are_in_no_command() {
    let desk = Desk::with(&["firefox"]);
    let (code, stdout, _) = desk.open(&["--dry-run", "--browser", "firefox", LINK]);
    assert_eq!(code, Some(0));
    for said in [
        &format!("{}/user.js", desk.profile("firefox-128")),
        "user_pref(\"media.cubeb_latency_mtg_frames\", 128);",
        "user_pref(\"media.autoplay.default\", 0);",
    ] {
        assert!(stdout.contains(said), "{said} is not in\n{stdout}");
    }
    assert!(!Path::new(&desk.profile("firefox-128")).exists());
}

#[test]
fn starts_chromium_as_an_app_with_small_buffers() {
    let desk = Desk::with(&["chromium", "firefox"]);
    let (code, _, stderr) = desk.open(&[
        "--browser",
        "chromium",
        "--wait",
        "--no-sandbox",
        "--buffer-frames",
        "256",
        LINK,
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        desk.started(),
        [
            "10",
            &format!("--app={LINK}#launched"),
            &format!("--user-data-dir={}", desk.profile("chromium-256")),
            "--audio-buffer-size=256",
            "--no-first-run",
            "--no-default-browser-check",
            "--autoplay-policy=no-user-gesture-required",
            "--no-sandbox",
        ]
    );
    assert!(Path::new(&desk.profile("chromium-256")).is_dir());
}

#[test]
fn starts_firefox_with_a_profile_of_its_own() {
    let desk = Desk::with(&["firefox"]);
    let (code, stdout, stderr) = desk.open(&["--browser", "firefox", LINK]);
    assert_eq!(code, Some(0), "{stderr}");
    let profile = desk.profile("firefox-128");
    assert_eq!(
        desk.started(),
        [
            "5",
            "--profile",
            &profile,
            "--new-window",
            &format!("{LINK}#launched"),
        ]
    );
    let settings = fs::read_to_string(Path::new(&profile).join("user.js")).expect("written");
    assert!(
        settings.contains("user_pref(\"media.cubeb_latency_mtg_frames\", 128);"),
        "{settings}"
    );
    assert!(
        stdout.contains("media.cubeb_latency_mtg_frames"),
        "{stdout}"
    );
}

#[test]
fn nobody_need_read_what_is_printed() {
    let desk = Desk::with(&["firefox"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = desk.command(&["--browser", "firefox", LINK]);
    let status = command.stdout(writer).status().expect("it runs");
    assert_eq!(status.code(), Some(0));
    assert_eq!(desk.started()[1], "--profile");
}

#[test]
fn does_not_wait_for_a_browser_that_runs_and_reports_one_that_fails() {
    let desk = Desk::with(&[]);
    desk.install("firefox", "sleep 5");
    let begin = Instant::now();
    assert_eq!(desk.open(&["--browser", "firefox", LINK]).0, Some(0));
    assert!(begin.elapsed() < Duration::from_secs(4));
    desk.install("firefox", "exit 3");
    let (code, _, stderr) = desk.open(&["--browser", "firefox", LINK]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("--wait"), "{stderr}");
}

#[test]
fn takes_a_program_by_its_path() {
    let desk = Desk::with(&["my-firefox-nightly"]);
    let program = desk.path("bin").join("my-firefox-nightly");
    let (code, _, stderr) = desk.open(&[
        "--wait",
        "--browser",
        program.to_str().expect("UTF-8"),
        LINK,
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        desk.started()[1..3],
        ["--profile", &desk.profile("my-firefox-nightly-128")]
    );
    let (code, _, stderr) = desk.open(&["--browser", "./no-such-browser", LINK]);
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn refuses_what_is_no_link_and_warns_of_plain_http() {
    let desk = Desk::with(&["firefox"]);
    for link in [
        "--kiosk",
        "file:///etc/passwd",
        "https://music.example.org/",
        &format!("{LINK}#x"),
    ] {
        let (code, _, _) = desk.open(&["--browser", "firefox", "--", link]);
        assert_eq!(code, Some(2), "{link}");
    }
    assert!(!desk.path("started").exists());
    let (code, _, stderr) = desk.open(&[
        "--dry-run",
        "--browser",
        "firefox",
        &LINK.replace("https", "http"),
    ]);
    assert_eq!(code, Some(0));
    assert!(stderr.contains("no microphone"), "{stderr}");
}

#[test]
fn root_is_told_about_the_sandbox() {
    if fs::metadata("/proc/self").expect("a process").uid() != 0 {
        return;
    }
    let desk = Desk::with(&["chromium"]);
    let (code, _, stderr) = desk.open(&["--browser", "chromium", LINK]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("--no-sandbox"), "{stderr}");
    assert!(!desk.path("started").exists());
}
