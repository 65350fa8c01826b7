//! Videos.

use crate::image::{Pixels, scale};
use crate::messages::Image;
use crate::messages::value::Value as ValueContent;
use crate::writer::{SummaryWriter, floats, or_invalid};
use gif::{Encoder, EncodingError, Frame, Repeat};
use kiln_tensor::{AsTensor, MaybeInt, Result};

impl SummaryWriter {
    /// Adds videos `[n, t, c, h, w]` as one animated GIF of four frames a second, in which the videos form a grid.
    /// Elements are u8 from 0 to 255, or other numbers from 0 to 1.
    ///
    /// # Errors
    /// As all methods, or if the shape does not fit.
    #[track_caller]
    pub fn add_video(
        &self,
        tag: &str,
        vid_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_video_with(tag, vid_tensor, global_step, 4.0)
    }

    /// [`SummaryWriter::add_video`] with another number of frames a second. A GIF stores the time of a frame in
    /// hundredths of a second.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_video`], or if the rate is not above 0.
    #[track_caller]
    pub fn add_video_with(
        &self,
        tag: &str,
        vid_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        fps: f64,
    ) -> Result<()> {
        let video = vid_tensor.as_tensor();
        let (shape, scale) = (video.shape()?, scale(&video));
        let frames = or_invalid("add_video", frames(&floats(&video)?, &shape, scale))?;
        let image = or_invalid("add_video", encode_gif(&frames, fps))?;
        self.add_value(
            "add_video",
            tag,
            global_step,
            ValueContent::Image(image),
            None,
        )
    }
}

/// The frames of videos `[n, t, c, h, w]` in a grid.
fn frames(values: &[f64], shape: &[usize], scale: f32) -> Result<Vec<Pixels>, String> {
    let &[n, t, c, h, w] = shape else {
        return Err(format!(
            "videos have the dims [n, t, c, h, w], not the shape {shape:?}"
        ));
    };
    if values.is_empty() {
        return Err(format!("there is no frame in the shape {shape:?}"));
    }
    // PyTorch's grid: the number of cells is a power of two.
    let cells = n.next_power_of_two();
    let columns = cells >> (n.ilog2() / 2);
    let frame_len = c * h * w;
    let frame = |frame_index: usize| {
        let values = (0..n).flat_map(|i| &values[(i * t + frame_index) * frame_len..][..frame_len]);
        let mut values: Vec<f64> = values.copied().collect();
        values.resize(cells * frame_len, 0.0);
        Pixels::of_values(&values, &[cells, c, h, w], scale, "NCHW", columns)
    };
    (0..t).map(frame).collect()
}

/// The message of an animated GIF that repeats.
fn encode_gif(frames: &[Pixels], fps: f64) -> Result<Image, String> {
    let (width, height) = (frames[0].width, frames[0].height);
    let size = |n: usize| {
        u16::try_from(n)
            .map_err(|_| format!("a GIF has at most 65535 pixels in a row or column, not {n}"))
    };
    let (w, h) = (size(width)?, size(height)?);
    let delay = (100.0 / fps).round();
    if !(1.0..=f64::from(u16::MAX)).contains(&delay) {
        return Err(format!(
            "a GIF can't have {fps} frames a second: a frame takes 0.01 to 655.35 seconds"
        ));
    }
    let mut file = Vec::new();
    let mut write = || -> Result<(), EncodingError> {
        let mut encoder = Encoder::new(&mut file, w, h, &[])?;
        encoder.set_repeat(Repeat::Infinite)?;
        for pixels in frames {
            let opaque = pixels.bytes.chunks(pixels.channels).flat_map(|p| &p[..3]);
            let mut frame = Frame::from_rgb_speed(w, h, &opaque.copied().collect::<Vec<u8>>(), 10);
            frame.delay = delay as u16;
            encoder.write_frame(&frame)?;
        }
        Ok(())
    };
    write().map_err(|e| e.to_string())?;
    Ok(Image {
        encoded_image_string: file,
        height: height as i32,
        width: width as i32,
        colorspace: 3,
    })
}
