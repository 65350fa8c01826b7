//! Patches of photographs of the same places (Brown and Lowe, 2007).

use super::files::read_text;
use super::folder::{entries, name};
use crate::fault::{invalid, io, out_of_range};
use crate::{Image, Mode};
use kiln_data::Dataset;
use kiln_tensor::Result;
use kiln_tensor::memory::Budget;
use std::path::Path;
use std::sync::Arc;

/// The sides of a patch.
const SIDE: usize = 64;

/// Name, mean and standard deviation of the pixels, and MD5 of the archive.
#[rustfmt::skip]
const SETS: [(&str, f64, f64, &str); 6] = [
    ("notredame_harris", 0.4854, 0.1864, "69f8c90f78e171349abdf0307afefe4d"),
    ("yosemite_harris", 0.4844, 0.1818, "a73253d1c6fbd3ba2613c45065c00d46"),
    ("liberty_harris", 0.4437, 0.2019, "c731fcfb3abb4091110d0ae8c7ba182c"),
    ("notredame", 0.4854, 0.1864, "509eda8535847b8c0a90bbb210c83484"),
    ("yosemite", 0.4844, 0.1818, "533b2e8eb7ede31be40abc317b2fd4f0"),
    ("liberty", 0.4437, 0.2019, "fdd9152f138ea5ef2091746689176414"),
];

/// Multi-view stereo correspondence: grey patches of 64x64, torchvision's `PhotoTour(train=True)`. Its pairs, those
/// of `train=False`, are [`PhotoTour::pairs`].
pub struct PhotoTour {
    patches: Vec<u8>,
    labels: Vec<i64>,
    matches: Vec<[usize; 2]>,
    same: Vec<i64>,
    mean: f64,
    std: f64,
}

impl PhotoTour {
    /// The patches in the bitmaps in `root/name`, where `name` is one of `notredame`, `yosemite`, `liberty`, alone
    /// or with `_harris` after it. All of them are kept in memory.
    ///
    /// # Errors
    /// If there is no set of that name, or files are missing (the message says where to get them) or damaged.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, name: &str) -> Result<PhotoTour> {
        let Some((_, mean, std, md5)) = SETS.into_iter().find(|set| set.0 == name) else {
            let names = SETS.map(|set| set.0).join(", ");
            let message = format!("{name:?} is not one of {names}");
            return Err(invalid("PhotoTour", message));
        };
        let folder = root.as_ref().join(name);
        if !folder.is_dir() {
            let page = match name.ends_with("_harris") {
                true => "http://matthewalunbrown.com/patchdata",
                false => "http://icvl.ee.ic.ac.uk/vbalnt",
            };
            let message = format!(
                "{} is missing. Kiln downloads nothing: unpack {page}/{name}.zip (MD5 {md5}) there",
                folder.display()
            );
            return Err(invalid("PhotoTour", message));
        }
        let labels = read_rows(&folder.join("info.txt"), [0])?;
        let patches = read_patches(&folder, labels.len())?;
        // Columns: patch, point, unused, patch, point, …
        let matches = read_rows(&folder.join("m50_100000_100000_0.txt"), [0, 1, 3, 4])?;
        let count = labels.len() as i64;
        let known = |patch: i64| (0..count).contains(&patch);
        if let Some(m) = matches.iter().find(|m| !known(m[0]) || !known(m[2])) {
            let message = format!("there is no pair {} and {} of {count} patches", m[0], m[2]);
            return Err(invalid("PhotoTour", message));
        }
        Ok(PhotoTour {
            patches,
            labels: labels.into_iter().map(|[point]| point).collect(),
            same: matches.iter().map(|m| i64::from(m[1] == m[3])).collect(),
            matches: matches
                .iter()
                .map(|m| [m[0] as usize, m[2] as usize])
                .collect(),
            mean,
            std,
        })
    }

    /// The point in space that each patch shows.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The mean of the pixels between 0 and 1.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The standard deviation of the pixels.
    pub fn std(&self) -> f64 {
        self.std
    }

    /// The pairs of patches, with the label whether both show the same point.
    pub fn pairs(self) -> PhotoTourPairs {
        PhotoTourPairs(Arc::new(self))
    }
}

impl Dataset for PhotoTour {
    type Item = Image;
    fn len(&self) -> usize {
        self.labels.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<Image> {
        let area = SIDE * SIDE;
        if index >= self.labels.len() {
            return Err(out_of_range("PhotoTour", index, self.labels.len()));
        }
        Image::from_bytes(&self.patches[index * area..][..area], SIDE, SIDE, Mode::L)
    }
}

/// Pairs of patches with a label: 1 if both show the same point, else 0. See [`PhotoTour::pairs`].
pub struct PhotoTourPairs(Arc<PhotoTour>);

impl Dataset for PhotoTourPairs {
    type Item = (Image, Image, i64);
    fn len(&self) -> usize {
        self.0.matches.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<Self::Item> {
        let Some([one, other]) = self.0.matches.get(index) else {
            return Err(out_of_range("PhotoTour", index, self.0.matches.len()));
        };
        Ok((self.0.get(*one)?, self.0.get(*other)?, self.0.same[index]))
    }
}

/// Some columns of a table of integers.
#[track_caller]
fn read_rows<const N: usize>(path: &Path, columns: [usize; N]) -> Result<Vec<[i64; N]>> {
    let text = read_text("PhotoTour", path)?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut row = [0; N];
        for (value, column) in row.iter_mut().zip(columns) {
            let word = words.get(column).and_then(|word| word.parse().ok());
            *value = word.ok_or_else(|| {
                let location = format!("{}: line {}", path.display(), number + 1);
                invalid(
                    "PhotoTour",
                    format!("{location} has no integer in column {column}"),
                )
            })?;
        }
        rows.push(row);
    }
    Ok(rows)
}

/// The first patches of the bitmaps, which are in the order of their names.
#[track_caller]
fn read_patches(folder: &Path, count: usize) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    for path in entries("PhotoTour", folder)? {
        if path.extension().is_some_and(|end| end == "bmp") {
            files.push((name("PhotoTour", &path)?, path));
        }
    }
    files.sort();
    let byte_count = count.saturating_mul(SIDE * SIDE);
    let patches = Budget::new().reserve(byte_count, "the patches");
    let mut pixels: Vec<u8> = patches.map_err(|e| io("PhotoTour", folder, e))?;
    for (_, path) in files {
        if pixels.len() >= byte_count {
            break;
        }
        let image = Image::open(&path)?.into_mode(Mode::L);
        let (width, height) = image.size();
        if width % SIDE != 0 || height % SIDE != 0 {
            let message = format!("{}: {width}x{height} are not patches", path.display());
            return Err(invalid("PhotoTour", message));
        }
        for (top, left) in (0..height / SIDE).flat_map(|y| (0..width / SIDE).map(move |x| (y, x))) {
            for row in 0..SIDE {
                let offset = (top * SIDE + row) * width + left * SIDE;
                if pixels.len() == byte_count {
                    break;
                }
                pixels.extend_from_slice(&image.bytes()[offset..offset + SIDE]);
            }
        }
    }
    pixels.truncate(byte_count);
    match pixels.len() == byte_count {
        true => Ok(pixels),
        false => {
            let patch_count = pixels.len() / (SIDE * SIDE);
            let message = format!("{}: {patch_count} of {count} patches", folder.display());
            Err(invalid("PhotoTour", message))
        }
    }
}
