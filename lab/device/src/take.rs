//! WAV files in and out. Shape: `[channel][frame]`, full scale 1.

use std::path::Path;

use hound::{SampleFormat, WavReader, WavSpec, WavWriter};

/// Reads a take; integer samples become exactly `sample / full scale`.
pub(crate) fn read(file: &Path, rate_hz: u32) -> Result<Vec<Vec<f32>>, String> {
    let named = |e: hound::Error| format!("{}: {e}", file.display());
    let mut reader = WavReader::open(file).map_err(named)?;
    let spec = reader.spec();
    if spec.sample_rate != rate_hz {
        return Err(format!(
            "{} is at {} Hz, the graph at {rate_hz} Hz",
            file.display(),
            spec.sample_rate
        ));
    }
    let samples: Vec<f32> = match spec.sample_format {
        SampleFormat::Float => reader
            .samples::<f32>()
            .collect::<Result<_, _>>()
            .map_err(named)?,
        SampleFormat::Int => {
            let scale = 2f64.powi(i32::from(spec.bits_per_sample) - 1);
            let scaled = reader
                .samples::<i32>()
                .map(|s| s.map(|s| (f64::from(s) / scale) as f32));
            scaled.collect::<Result<_, _>>().map_err(named)?
        }
    };
    let channels = usize::from(spec.channels);
    Ok((0..channels)
        .map(|c| samples.iter().skip(c).step_by(channels).copied().collect())
        .collect())
}

/// Writes a recording as 32-bit float.
pub(crate) fn write(file: &Path, rate_hz: u32, channels: &[Vec<f32>]) -> Result<(), String> {
    let named = |e: hound::Error| format!("{}: {e}", file.display());
    let count = u16::try_from(channels.len()).map_err(|_| "too many channels".to_owned())?;
    let spec = WavSpec {
        channels: count,
        sample_rate: rate_hz,
        bits_per_sample: 32,
        sample_format: SampleFormat::Float,
    };
    let mut writer = WavWriter::create(file, spec).map_err(named)?;
    for frame in 0..channels[0].len() {
        for channel in channels {
            writer.write_sample(channel[frame]).map_err(named)?;
        }
    }
    writer.finalize().map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_material_is_read_exactly() {
        let file = std::env::temp_dir().join(format!("antiphon-take-{}.wav", std::process::id()));
        let spec = WavSpec {
            channels: 2,
            sample_rate: 48_000,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let mut writer = WavWriter::create(&file, spec).expect("temp dir is writable");
        for sample in [i16::MIN, -1, 0, 1, 2, i16::MAX] {
            writer.write_sample(sample).expect("write");
        }
        writer.finalize().expect("finalize");
        let take = read(&file, 48_000).expect("read");
        assert_eq!(take[0], [-1.0, 0.0, 2.0 / 32_768.0]);
        assert_eq!(
            take[1],
            [-1.0 / 32_768.0, 1.0 / 32_768.0, 32_767.0 / 32_768.0]
        );
        assert!(read(&file, 44_100).is_err());

        write(&file, 48_000, &take).expect("write back");
        assert_eq!(read(&file, 48_000).expect("read back"), take);
        std::fs::remove_file(&file).expect("remove");
    }
}
