//! Packet loss, before and after: writes listening examples and a table of how far they are from the original.
//!
//! `cargo run --release -p antiphon-core --example listen -- [FOLDER] [--json FILE]`. In the folder (`target/examples/audio`), for each
//! sound: `original.wav`, and for each loss `silence.wav` (before), `repetition.wav` and `prediction.wav` (after); 48 kHz, 16 bits, mono.

#[path = "../tests/support/music.rs"]
mod music;

use std::error::Error;
use std::path::{Path, PathBuf};

use antiphon_core::conceal::Concealment;
use serde_json::json;

const SECONDS: usize = 10;
const LOSSES_PERCENT: [u32; 4] = [1, 2, 5, 10];
const CONCEALMENTS: [(&str, Concealment); 3] = [
    ("silence", Concealment::Silence),
    ("repetition", Concealment::Repetition),
    ("prediction", Concealment::Prediction),
];
/// Of the losses: any will do, but the same for every sound and concealment.
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let mut folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/examples/audio");
    let mut json_file = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--json" {
            json_file = Some(PathBuf::from(
                arguments.next().ok_or("--json needs a file")?,
            ));
        } else if argument.starts_with('-') {
            return Err(format!("unknown option {argument}: listen [FOLDER] [--json FILE]").into());
        } else {
            folder = PathBuf::from(argument);
        }
    }

    println!("Log-spectral distance from the original over each gap in dB: mean (median)\n");
    print!("{:10}{:>8}{:>8}", "sound", "loss", "gaps");
    for (name, _) in CONCEALMENTS {
        print!("{name:>16}");
    }
    println!();
    let mut figures = Vec::new();
    for name in music::SOUNDS {
        let original = music::sound(name, SECONDS * music::RATE_HZ);
        let folder = folder.join(name);
        write_wav(&folder.join("original.wav"), &original)?;
        for loss_percent in LOSSES_PERCENT {
            let gaps = music::lost_packets(original.len(), loss_percent, SEED);
            print!(
                "{name:10}{:>8}{:>8}",
                format!("{loss_percent} %"),
                gaps.len()
            );
            for (concealment_name, concealment) in CONCEALMENTS {
                let heard = music::conceal(&original, &gaps, concealment, music::PACKET_FRAMES);
                let wav = format!("{loss_percent}-percent/{concealment_name}.wav");
                write_wav(&folder.join(wav), &heard)?;
                let distances = music::log_spectral_distances(&original, &heard, &gaps);
                let (mean, median) = music::mean_and_median(&distances);
                print!("{:>16}", format!("{mean:.2} ({median:.2})"));
                figures.push(json!({
                    "sound": name,
                    "lossPercent": loss_percent,
                    "packetFrames": music::PACKET_FRAMES,
                    "gaps": distances.len(),
                    "concealment": concealment_name,
                    "meanDistanceDb": mean,
                    "medianDistanceDb": median,
                }));
            }
            println!();
        }
    }
    println!("\nTo listen: {}", folder.display());
    if let Some(file) = json_file {
        std::fs::write(
            file,
            format!("{:#}\n", json!({ "logSpectralDistances": figures })),
        )?;
    }
    Ok(())
}

fn write_wav(path: &Path, samples: &[f32]) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: music::RATE_HZ as u32,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec)?;
    for sample in samples {
        writer.write_sample((sample * 32_767.0).round() as i16)?;
    }
    Ok(writer.finalize()?)
}
