//! `antiphon join` as its user hears it: a real server, and musicians made of files.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn antiphon(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
    command.args(arguments);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ANTIPHON_"))
    {
        command.env_remove(name);
    }
    command
}

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> (Process, String) {
    let mut command = antiphon(&["serve", "--listen", "127.0.0.1:0"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut server = Process(child);
    let link = BufReader::new(server.0.stdout.take().expect("piped"))
        .lines()
        .map_while(Result::ok)
        .find(|line| line.trim().starts_with("http://"))
        .expect("a link");
    (server, link.trim().to_owned())
}

/// Two channels of noise of 16 bits, after half a second of silence, in which the players of the others begin.
fn write_take(path: &Path) -> Vec<i16> {
    let spec = hound::WavSpec {
        channels: 2,
        sample_rate: 48_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut noise = 1u32;
    let samples: Vec<i16> = (0..2 * 48_000 * 3)
        .map(|n| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if n < 48_000 * 3 {
                0
            } else {
                (noise >> 16) as i16
            }
        })
        .collect();
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    for sample in &samples {
        writer.write_sample(*sample).expect("written");
    }
    writer.finalize().expect("finished");
    samples
}

fn arrives_bit_exact(path: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (take, heard) = (
        folder.path().join("take.wav"),
        folder.path().join("heard.wav"),
    );
    let (take_name, heard_name) = (
        take.to_str().expect("UTF-8"),
        heard.to_str().expect("UTF-8"),
    );
    let sent = write_take(&take);
    let (_server, link) = serve();
    // Deep enough for a busy machine: what is late would be no fault of the path.
    let arguments = [
        "join", "--plain", "--name", "Ear", "--path", path, "--buffer", "8000", "--output",
        heard_name, &link,
    ];
    let mut ear = antiphon(&arguments);
    let mut ear = Process(ear.stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut lines = BufReader::new(ear.0.stdout.take().expect("piped"))
        .lines()
        .map_while(Result::ok);
    lines
        .find(|line| line.starts_with("online"))
        .expect("it is in");
    let mouth = antiphon(&[
        "join", "--plain", "--name", "Mouth", "--path", path, "--input", take_name, &link,
    ])
    .stdout(Stdio::null())
    .status();
    assert!(mouth.expect("it runs").success());
    let told = Command::new("kill")
        .args(["-INT", &ear.0.id().to_string()])
        .status();
    assert!(told.expect("kill runs").success());
    // Read to the end, or it could wait for us.
    lines.for_each(drop);
    assert!(ear.0.wait().expect("it ends").success());

    let mut reader = hound::WavReader::open(&heard).expect("a WAV file");
    let heard: Vec<i32> = reader
        .samples::<f32>()
        .map(|sample| {
            let scaled = sample.expect("a sample") * 32_768.0;
            assert_eq!(scaled.fract(), 0.0, "not what 16 bits can hold");
            scaled as i32
        })
        .collect();
    let begin = |samples: &[i32]| samples.iter().position(|&s| s != 0).expect("sound");
    let sent: Vec<i32> = sent.into_iter().map(i32::from).collect();
    let sent = &sent[begin(&sent)..];
    let heard_at = begin(&heard);
    let heard = &heard[heard_at..][..sent.len()];
    let wrong = sent
        .iter()
        .zip(heard)
        .position(|(sent, heard)| sent != heard);
    assert_eq!(
        wrong,
        None,
        "the first sample of {} that is not as it was sent",
        sent.len()
    );
}

#[cfg(unix)]
#[test]
fn a_take_arrives_bit_exact_through_the_server() {
    arrives_bit_exact("relay");
}

#[cfg(unix)]
#[test]
fn a_take_arrives_bit_exact_by_data_channels() {
    arrives_bit_exact("direct");
}

#[cfg(unix)]
#[test]
fn a_take_arrives_bit_exact_by_both_paths_at_once() {
    arrives_bit_exact("auto");
}

#[test]
fn bots_hear_each_other_through_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("bots.json");
    let (_server, link) = serve();
    let arguments = [
        "join",
        "--bots",
        "3",
        "--rooms",
        "2",
        "--seconds",
        "4",
        "--json",
        json.to_str().expect("UTF-8"),
        &link,
    ];
    let status = antiphon(&arguments).stdout(Stdio::null()).status();
    assert!(status.expect("it runs").success());
    let summary: Value =
        serde_json::from_slice(&std::fs::read(json).expect("written")).expect("JSON");
    assert_eq!(
        (&summary["bots"], &summary["rooms"]),
        (&6.into(), &2.into()),
        "{summary}"
    );
    let count = |name: &str| summary[name].as_u64().expect("a count");
    assert!(count("sent_packets") > 0, "{summary}");
    // All that came was sent by a bot of the same room.
    assert!(
        count("received_packets") > count("sent_packets"),
        "{summary}"
    );
    assert_eq!(count("delays"), count("received_packets"), "{summary}");
}

#[test]
fn mistakes_are_explained() {
    for (arguments, explained) in [
        (&["join"][..], "LINK"),
        (&["join", "http://localhost/nowhere"], "/r/ROOM"),
        (
            &[
                "join",
                "--input",
                "no-such.wav",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "no-such.wav",
        ),
        (
            &[
                "join",
                "--bits",
                "12",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "16, 24 or 32",
        ),
        (
            &[
                "join",
                "--bots",
                "2",
                "--path",
                "direct",
                "http://localhost/r/abcdefghijklmnop",
            ],
            "server only",
        ),
    ] {
        let output = antiphon(arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(explained), "{arguments:?}: {stderr}");
    }
}
