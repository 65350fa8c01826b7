//! Audio.

use crate::messages::Audio;
use crate::messages::value::Value as ValueContent;
use crate::writer::{SummaryWriter, floats, or_invalid};
use kiln_tensor::{AsTensor, MaybeInt, Result};

/// The MIME type of the files that are written.
const WAV: &str = "audio/wav";
/// The bytes of a sample.
const SAMPLE_BYTES: u32 = 2;

impl SummaryWriter {
    /// Adds an audio clip of one channel, `[n]` or `[1, n]`, with 44,100 samples a second. Samples outside of −1 to 1
    /// are clipped.
    ///
    /// # Errors
    /// As all methods, or if the shape does not fit.
    #[track_caller]
    pub fn add_audio(
        &self,
        tag: &str,
        snd_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_audio_with(tag, snd_tensor, global_step, 44_100)
    }

    /// [`SummaryWriter::add_audio`] with another number of samples a second.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_audio`], or if the rate is 0.
    #[track_caller]
    pub fn add_audio_with(
        &self,
        tag: &str,
        snd_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        sample_rate: u32,
    ) -> Result<()> {
        let sound = snd_tensor.as_tensor();
        let shape = sound.shape()?;
        let file = or_invalid("add_audio", wav(&floats(&sound)?, &shape, sample_rate))?;
        let audio = Audio {
            sample_rate: sample_rate as f32,
            num_channels: 1,
            length_frames: shape.iter().product::<usize>() as i64,
            encoded_audio_string: file,
            content_type: WAV.into(),
        };
        self.add_value(
            "add_audio",
            tag,
            global_step,
            ValueContent::Audio(audio),
            None,
        )
    }
}

/// A WAV file: integers of 16 bits, one channel.
fn wav(samples: &[f64], shape: &[usize], rate: u32) -> Result<Vec<u8>, String> {
    if shape.iter().filter(|n| **n != 1).count() > 1 {
        return Err(format!(
            "a sound has one channel, [n] or [1, n], not the shape {shape:?}"
        ));
    }
    let Some(bytes_per_second) = rate.checked_mul(SAMPLE_BYTES).filter(|n| *n > 0) else {
        return Err(format!("a WAV file can't have {rate} samples a second"));
    };
    let bytes = u32::try_from(samples.len()).ok();
    let bytes = bytes.and_then(|n| n.checked_mul(SAMPLE_BYTES)?.checked_add(36));
    let Some(size) = bytes else {
        return Err(format!("{} samples are too many", samples.len()));
    };
    let mut file = Vec::with_capacity(size as usize + 8);
    file.extend(b"RIFF");
    file.extend(size.to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    // Integers, one channel.
    file.extend([1u16, 1].map(u16::to_le_bytes).concat());
    file.extend([rate, bytes_per_second].map(u32::to_le_bytes).concat());
    file.extend([SAMPLE_BYTES as u16, 16].map(u16::to_le_bytes).concat());
    file.extend(b"data");
    file.extend((size - 36).to_le_bytes());
    // NaN becomes 0.
    let sample = |v: &f64| ((v.clamp(-1.0, 1.0) * f64::from(i16::MAX)) as i16).to_le_bytes();
    file.extend(samples.iter().flat_map(sample));
    Ok(file)
}
