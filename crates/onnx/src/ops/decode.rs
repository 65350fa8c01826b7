//! Images in files, which are decoded on the host.

use super::Record;
use crate::call::{Call, Results, single};
use crate::fault::invalid;
use kiln_tensor::{DType, Tensor};
use kiln_vision::{Image, Mode};

pub(super) fn find(op: &str) -> Option<Record> {
    (op == "ImageDecoder").then_some(decode)
}

fn decode(c: &Call) -> Results {
    let file = c.tensor(0)?;
    let image = Image::decode(&file.to_bytes()?)?;
    let (mode, reversed) = match c.text("pixel_format", "RGB")? {
        "RGB" => (Mode::RGB, false),
        "BGR" => (Mode::RGB, true),
        "Grayscale" => (Mode::L, false),
        other => return Err(invalid(format!("there is no pixel format {other:?}"))),
    };
    let image = image.into_mode(mode);
    let shape = [image.height(), image.width(), mode.channels()];
    let pixels = Tensor::from_bytes(image.bytes(), DType::U8, shape).to(file.device());
    single(match reversed {
        true => pixels.flip(2),
        false => pixels,
    })
}
