//! Pictures with annotations in COCO's form (Lin et al., 2014).

use super::files::read;
use crate::fault::{invalid, out_of_range};
use crate::{Image, Mode};
use kiln_data::Dataset;
use kiln_tensor::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// One annotation of a picture.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Annotation {
    /// Its number.
    #[serde(default)]
    pub id: i64,
    /// The picture's number.
    pub image_id: i64,
    /// The number of its class, see [`CocoDetection::categories`].
    #[serde(default)]
    pub category_id: i64,
    /// Left, top, width and height, in pixels.
    #[serde(default)]
    pub bbox: [f64; 4],
    /// The number of pixels that it covers.
    #[serde(default)]
    pub area: f64,
    /// 1 where it is a crowd of things.
    #[serde(default)]
    pub iscrowd: u8,
    /// Its outline.
    #[serde(default)]
    pub segmentation: Segmentation,
    /// The caption: a text that describes the picture.
    #[serde(default)]
    pub caption: Option<String>,
}

/// The outline of an annotated object.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Segmentation {
    /// Polygons, each as x, y, x, y, …
    Polygons(Vec<Vec<f64>>),
    /// Run lengths of pixels outside and inside, alternating, column by column.
    RunLengths {
        /// The lengths.
        counts: Counts,
        /// Height and width.
        size: [usize; 2],
    },
}

impl Default for Segmentation {
    fn default() -> Segmentation {
        Segmentation::Polygons(Vec::new())
    }
}

/// Lengths of runs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Counts {
    /// As numbers.
    Numbers(Vec<u64>),
    /// As pycocotools packs them into a text.
    Packed(String),
}

/// A file of annotations.
#[derive(Deserialize)]
struct File {
    images: Vec<ImageRecord>,
    #[serde(default)]
    annotations: Vec<Annotation>,
    #[serde(default)]
    categories: Vec<Category>,
}

#[derive(Deserialize)]
struct ImageRecord {
    id: i64,
    file_name: String,
}

#[derive(Deserialize)]
struct Category {
    id: i64,
    name: String,
}

/// Pictures with their annotations: a sample is an RGB image and its annotations, in the order of the pictures'
/// numbers. Annotations make no batch by themselves: give the loader a function that collates.
pub struct CocoDetection {
    root: PathBuf,
    /// Numbers and files.
    pictures: Vec<(i64, String)>,
    annotations: BTreeMap<i64, Vec<Annotation>>,
    categories: BTreeMap<i64, String>,
}

impl CocoDetection {
    /// The pictures in the folder `root` that the JSON file `ann_file` lists.
    ///
    /// # Errors
    /// If the file can't be read or has another form.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, ann_file: impl AsRef<Path>) -> Result<CocoDetection> {
        load("CocoDetection", root.as_ref(), ann_file.as_ref())
    }

    /// The pictures' numbers, in order.
    pub fn ids(&self) -> Vec<i64> {
        self.pictures.iter().map(|(id, _)| *id).collect()
    }

    /// The names of the classes by number.
    pub fn categories(&self) -> &BTreeMap<i64, String> {
        &self.categories
    }

    #[track_caller]
    fn sample(&self, op: &str, index: usize) -> Result<(Image, &[Annotation])> {
        let Some((id, file)) = self.pictures.get(index) else {
            return Err(out_of_range(op, index, self.pictures.len()));
        };
        let image = Image::open(self.root.join(file))?.into_mode(Mode::RGB);
        let annotations = self.annotations.get(id).map_or(&[][..], Vec::as_slice);
        Ok((image, annotations))
    }
}

#[track_caller]
fn load(op: &str, root: &Path, path: &Path) -> Result<CocoDetection> {
    let wrong = |message: String| invalid(op, format!("{}: {message}", path.display()));
    let file = serde_json::from_slice::<File>(&read(op, path)?);
    let file = file.map_err(|e| wrong(e.to_string()))?;
    let mut pictures = BTreeMap::new();
    for picture in file.images {
        let name = Path::new(&picture.file_name);
        let is_relative = name
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !is_relative || name.as_os_str().is_empty() {
            let message = format!("the file {name:?} does not lie in the folder of the pictures");
            return Err(wrong(message));
        }
        pictures.insert(picture.id, picture.file_name);
    }
    let mut annotations: BTreeMap<i64, Vec<Annotation>> = BTreeMap::new();
    for annotation in file.annotations {
        if !pictures.contains_key(&annotation.image_id) {
            let (id, image_id) = (annotation.id, annotation.image_id);
            let message = format!("annotation {id} is of picture {image_id}, which is not listed");
            return Err(wrong(message));
        }
        annotations
            .entry(annotation.image_id)
            .or_default()
            .push(annotation);
    }
    Ok(CocoDetection {
        root: root.to_path_buf(),
        pictures: pictures.into_iter().collect(),
        annotations,
        categories: file
            .categories
            .into_iter()
            .map(|c| (c.id, c.name))
            .collect(),
    })
}

impl Dataset for CocoDetection {
    type Item = (Image, Vec<Annotation>);
    fn len(&self) -> usize {
        self.pictures.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<Self::Item> {
        let (image, annotations) = self.sample("CocoDetection", index)?;
        Ok((image, annotations.to_vec()))
    }
}

/// Pictures with captions; see [`CocoDetection`].
pub struct CocoCaptions(CocoDetection);

impl CocoCaptions {
    /// The pictures in the folder `root` that the JSON file `ann_file` lists.
    ///
    /// # Errors
    /// If the file can't be read or has another form, or an annotation has no text.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>, ann_file: impl AsRef<Path>) -> Result<CocoCaptions> {
        let set = load("CocoCaptions", root.as_ref(), ann_file.as_ref())?;
        let mut annotations = set.annotations.values().flatten();
        match annotations.find(|a| a.caption.is_none()) {
            None => Ok(CocoCaptions(set)),
            Some(a) => {
                let file = ann_file.as_ref().display();
                let message = format!("{file}: annotation {} has no caption", a.id);
                Err(invalid("CocoCaptions", message))
            }
        }
    }

    /// The pictures' numbers, in order.
    pub fn ids(&self) -> Vec<i64> {
        self.0.ids()
    }
}

impl Dataset for CocoCaptions {
    type Item = (Image, Vec<String>);
    fn len(&self) -> usize {
        self.0.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<Self::Item> {
        let (image, annotations) = self.0.sample("CocoCaptions", index)?;
        let captions = annotations.iter().filter_map(|a| a.caption.clone());
        Ok((image, captions.collect()))
    }
}
