//! SEMEION (Buscema and Terzi, 1994).

use super::files::{Files, Origin, read_text};
use super::labelled::{Labelled, Layout, labelled};
use crate::fault::invalid;
use kiln_tensor::Result;
use std::path::Path;

/// SEMEION: 1,593 handwritten digits, black and white, of 16x16.
pub struct SEMEION(Labelled);

labelled!(SEMEION);

impl SEMEION {
    /// The digits in `root/semeion.data`.
    ///
    /// # Errors
    /// If the file is missing (the message says where to get it) or damaged.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>) -> Result<SEMEION> {
        load(root.as_ref(), false)
    }

    /// The same, with the checksum of the file verified first: torchvision's `download=True`.
    ///
    /// # Errors
    /// As `new`, and if the file has another checksum.
    #[track_caller]
    pub fn download(root: impl AsRef<Path>) -> Result<SEMEION> {
        load(root.as_ref(), true)
    }
}

#[track_caller]
fn load(root: &Path, verify: bool) -> Result<SEMEION> {
    let files = Files {
        set: "SEMEION",
        root,
        folder: root.to_path_buf(),
        files: &[("semeion.data", "cb545d371d2ce14ec121470795a77432")],
        origin: Origin::Each("http://archive.ics.uci.edu/ml/machine-learning-databases/semeion/"),
    };
    files.check(verify)?;
    let path = root.join("semeion.data");
    let text = read_text("SEMEION", &path)?;
    let (mut pixels, mut targets) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let digit = parse_digit(line, &mut pixels);
        targets.push(digit.map_err(|message| {
            let location = format!("{}: line {}", path.display(), number + 1);
            invalid("SEMEION", format!("{location}: {message}"))
        })?);
    }
    let set = Labelled {
        set: "SEMEION",
        pixels,
        layout: Layout::RowMajor,
        shape: [1, 16, 16],
        targets,
        classes: (0..10).map(|digit| digit.to_string()).collect(),
    };
    set.check().map(SEMEION)
}

/// Appends the 256 pixels of a line, between 0 and 1. Returns the index of the 1 among the ten numbers after them.
fn parse_digit(line: &str, pixels: &mut Vec<u8>) -> Result<i64, String> {
    let numbers: Result<Vec<f64>, String> = line
        .split_whitespace()
        .map(|word| match word.parse::<f64>() {
            Ok(x) if (0.0..=1.0).contains(&x) => Ok(x),
            _ => Err(format!("{word:?} is not a number between 0 and 1")),
        })
        .collect();
    let numbers = numbers?;
    if numbers.len() != 256 + 10 {
        return Err(format!("{} numbers in place of 266", numbers.len()));
    }
    let (image, label) = numbers.split_at(256);
    let marked: Vec<usize> = (0..10).filter(|i| label[*i] != 0.0).collect();
    let [one] = marked[..] else {
        return Err(format!("{} digits are marked, and not one", marked.len()));
    };
    pixels.extend(image.iter().map(|x| (x * 255.0) as u8));
    Ok(one as i64)
}
