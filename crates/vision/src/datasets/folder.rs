//! Folders of files, one for each class.

use crate::fault::{invalid, io, out_of_range};
use crate::{Image, Mode};
use kiln_data::Dataset;
use kiln_tensor::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The extensions of pictures, for [`ImageFolder`].
pub const IMG_EXTENSIONS: [&str; 6] = [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"];

type FilePredicate = dyn Fn(&Path) -> bool + Send + Sync;

/// torchvision's keyword arguments of a dataset of folders, which select the files that are samples.
#[derive(Clone, Default)]
pub struct FolderOptions {
    extensions: Option<Vec<String>>,
    is_valid_file: Option<Arc<FilePredicate>>,
    allow_empty: bool,
}

impl FolderOptions {
    /// All files; a class without any is an error.
    pub fn new() -> FolderOptions {
        FolderOptions::default()
    }

    /// Only files whose names, in lower case, end with one of these, such as `.png`.
    pub fn extensions<E: Into<String>>(
        mut self,
        extensions: impl IntoIterator<Item = E>,
    ) -> FolderOptions {
        self.extensions = Some(extensions.into_iter().map(E::into).collect());
        self
    }

    /// Only files for whose path a function returns true; in place of extensions.
    pub fn is_valid_file(
        mut self,
        f: impl Fn(&Path) -> bool + Send + Sync + 'static,
    ) -> FolderOptions {
        self.is_valid_file = Some(Arc::new(f));
        self
    }

    /// If true, a class may have no files.
    pub fn allow_empty(mut self, allow_empty: bool) -> FolderOptions {
        self.allow_empty = allow_empty;
        self
    }

    fn accepts(&self, path: &Path) -> bool {
        if let Some(f) = &self.is_valid_file {
            return f(path);
        }
        let name = path.to_string_lossy().to_lowercase();
        match &self.extensions {
            Some(all) => all.iter().any(|end| name.ends_with(end.as_str())),
            None => true,
        }
    }
}

/// A function that loads a sample from a file.
type Loader<T> = dyn Fn(&Path) -> Result<T> + Send + Sync;

/// Files in a folder for each class, at any depth below it: `root/cat/1.txt`, `root/dog/old/2.txt`. Classes are in
/// the order of their names, and so are files within them.
pub struct DatasetFolder<T> {
    loader: Arc<Loader<T>>,
    classes: Vec<String>,
    samples: Vec<(PathBuf, i64)>,
}

impl<T: Send + 'static> DatasetFolder<T> {
    /// The files whose names end with one of the extensions, each loaded by `loader`.
    ///
    /// ```
    /// use kiln_data::Dataset;
    /// use kiln_vision::datasets::DatasetFolder;
    /// # let root = std::env::temp_dir().join("kiln-dataset-folder");
    /// # for class in ["dog", "cat"] {
    /// #     std::fs::create_dir_all(root.join(class)).unwrap();
    /// #     std::fs::write(root.join(class).join("1.txt"), class).unwrap();
    /// # }
    /// let texts = DatasetFolder::new(
    ///     &root,
    ///     |path| Ok(std::fs::read_to_string(path).unwrap_or_default()),
    ///     [".txt"],
    /// )?;
    /// assert_eq!(texts.classes(), ["cat", "dog"]);
    /// assert_eq!(texts.get(1)?, ("dog".to_string(), 1));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the folder can't be read or has no folders, or one of these has no such files.
    #[track_caller]
    pub fn new<E: Into<String>>(
        root: impl AsRef<Path>,
        loader: impl Fn(&Path) -> Result<T> + Send + Sync + 'static,
        extensions: impl IntoIterator<Item = E>,
    ) -> Result<DatasetFolder<T>> {
        DatasetFolder::with(root, loader, FolderOptions::new().extensions(extensions))
    }

    /// The files that `options` select, each loaded by `loader`.
    ///
    /// # Errors
    /// As `new`, or if `options` have both extensions and a function, or neither.
    #[track_caller]
    pub fn with(
        root: impl AsRef<Path>,
        loader: impl Fn(&Path) -> Result<T> + Send + Sync + 'static,
        options: FolderOptions,
    ) -> Result<DatasetFolder<T>> {
        let root = root.as_ref();
        let (classes, samples) = find_samples("DatasetFolder", root, &options)?;
        Ok(DatasetFolder {
            loader: Arc::new(loader),
            classes,
            samples,
        })
    }

    /// The names of the classes, in order.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The label of each class by name.
    pub fn class_to_idx(&self) -> BTreeMap<String, usize> {
        let classes = self.classes.iter().enumerate();
        classes.map(|(i, class)| (class.clone(), i)).collect()
    }

    /// The path and the label of each sample.
    pub fn samples(&self) -> &[(PathBuf, i64)] {
        &self.samples
    }

    /// The label of each sample.
    pub fn targets(&self) -> Vec<i64> {
        self.samples.iter().map(|(_, label)| *label).collect()
    }
}

impl<T: Send + 'static> Dataset for DatasetFolder<T> {
    type Item = (T, i64);
    fn len(&self) -> usize {
        self.samples.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<(T, i64)> {
        let Some((path, label)) = self.samples.get(index) else {
            return Err(out_of_range("DatasetFolder", index, self.samples.len()));
        };
        Ok(((self.loader)(path)?, *label))
    }
}

/// Pictures in a folder for each class, as RGB.
///
/// ```no_run
/// use kiln_vision::datasets::ImageFolder;
/// let pets = ImageFolder::new("pets/train")?; // pets/train/cat/1.jpg, pets/train/dog/2.png, …
/// assert_eq!(pets.classes(), ["cat", "dog"]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct ImageFolder(DatasetFolder<Image>);

impl ImageFolder {
    /// The pictures below `root`: files whose names end with [`IMG_EXTENSIONS`].
    ///
    /// # Errors
    /// If the folder can't be read or has no folders, or one of these has no pictures.
    #[track_caller]
    pub fn new(root: impl AsRef<Path>) -> Result<ImageFolder> {
        ImageFolder::with(root, FolderOptions::new())
    }

    /// The pictures below `root` that `options` select; by default those with [`IMG_EXTENSIONS`].
    ///
    /// # Errors
    /// As `new`.
    #[track_caller]
    pub fn with(root: impl AsRef<Path>, options: FolderOptions) -> Result<ImageFolder> {
        let options = match (&options.extensions, &options.is_valid_file) {
            (None, None) => options.extensions(IMG_EXTENSIONS),
            _ => options,
        };
        let (classes, samples) = find_samples("ImageFolder", root.as_ref(), &options)?;
        Ok(ImageFolder(DatasetFolder {
            loader: Arc::new(|path| Ok(Image::open(path)?.into_mode(Mode::RGB))),
            classes,
            samples,
        }))
    }

    /// The path and the label of each picture.
    pub fn imgs(&self) -> &[(PathBuf, i64)] {
        self.samples()
    }
}

impl Deref for ImageFolder {
    type Target = DatasetFolder<Image>;
    fn deref(&self) -> &DatasetFolder<Image> {
        &self.0
    }
}

impl Dataset for ImageFolder {
    type Item = (Image, i64);
    fn len(&self) -> usize {
        self.0.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<(Image, i64)> {
        self.0.get(index)
    }
}

type Samples = (Vec<String>, Vec<(PathBuf, i64)>);

/// Finds the classes, and the samples with their labels.
#[track_caller]
fn find_samples(op: &str, root: &Path, options: &FolderOptions) -> Result<Samples> {
    if options.extensions.is_some() == options.is_valid_file.is_some() {
        let message = "either extensions or is_valid_file must be given, and not both";
        return Err(invalid(op, message));
    }
    let mut classes = Vec::new();
    for path in entries(op, root)? {
        if path.is_dir() {
            classes.push(name(op, &path)?);
        }
    }
    if classes.is_empty() {
        let message = format!("{}: there are no class folders", root.display());
        return Err(invalid(op, message));
    }
    classes.sort();
    let (mut samples, mut empty) = (Vec::new(), Vec::new());
    for (label, class) in classes.iter().enumerate() {
        let before = samples.len();
        let mut files = BTreeMap::new();
        walk(op, &root.join(class), &mut BTreeSet::new(), &mut files)?;
        let files = files.into_values().flatten();
        let files = files.filter(|path| options.accepts(path));
        samples.extend(files.map(|path| (path, label as i64)));
        if samples.len() == before {
            empty.push(class.as_str());
        }
    }
    if !empty.is_empty() && !options.allow_empty {
        let extensions = match &options.extensions {
            Some(all) => format!("; the extensions are {}", all.join(", ")),
            None => String::new(),
        };
        let message = format!(
            "{}: there are no files of the classes {}{extensions}",
            root.display(),
            empty.join(", ")
        );
        return Err(invalid(op, message));
    }
    Ok((classes, samples))
}

/// Collects the files of a folder and of its subfolders, keyed by the path of their folder. Links are followed; a link
/// to a folder that is being walked, one of `above`, is skipped.
#[track_caller]
fn walk(
    op: &str,
    folder: &Path,
    above: &mut BTreeSet<PathBuf>,
    files: &mut BTreeMap<std::ffi::OsString, Vec<PathBuf>>,
) -> Result<()> {
    let real = folder.canonicalize().map_err(|e| io(op, folder, e))?;
    if !above.insert(real.clone()) {
        return Ok(());
    }
    let mut paths = Vec::new();
    for path in entries(op, folder)? {
        match path.is_dir() {
            true => walk(op, &path, above, files)?,
            false => paths.push(path),
        }
    }
    paths.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    files.insert(folder.as_os_str().into(), paths);
    above.remove(&real);
    Ok(())
}

/// The paths of the entries of a folder.
#[track_caller]
pub(super) fn entries(op: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| io(op, folder, e))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|e| io(op, folder, e))?.path());
    }
    Ok(paths)
}

/// The last part of a path, as text.
#[track_caller]
pub(super) fn name(op: &str, path: &Path) -> Result<String> {
    let name = path.file_name().and_then(OsStr::to_str);
    name.map(String::from).ok_or_else(|| {
        let message = format!("{}: the name is not valid UTF-8", path.display());
        invalid(op, message)
    })
}
