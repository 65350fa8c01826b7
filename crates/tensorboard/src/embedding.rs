//! Points for TensorBoard's projector.

use crate::image::Pixels;
use crate::writer::{SummaryWriter, floats, io_result, or_invalid};
use kiln_tensor::{AsTensor, MaybeInt, Result, Tensor, options};

options! {
    /// The labels and images of the points of [`SummaryWriter::add_embedding_with`].
    Embedding () {
        /// A row for each point, and a column for each of [`Embedding::metadata_header`], or one.
        metadata: Vec<Vec<String>> = Vec::new(),
        /// Names of the columns, if there are several.
        metadata_header: Vec<String> = Vec::new(),
        /// The name of the embedding.
        tag: String = "default",
        ;
        /// An image for each point, `[n, c, h, w]` from 0 to 1.
        label_img,
    }
}

impl SummaryWriter {
    /// Adds points, one per row, for TensorBoard's projector: files in folders next to the event file.
    ///
    /// # Errors
    /// As all methods, or if the points are not a matrix.
    #[track_caller]
    pub fn add_embedding(
        &self,
        mat: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_embedding_with(mat, global_step, Embedding::new())
    }

    /// [`SummaryWriter::add_embedding`] with labels or images.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_embedding`], or if there are not as many labels or images as points.
    #[track_caller]
    pub fn add_embedding_with(
        &self,
        mat: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        options: Embedding,
    ) -> Result<()> {
        let mat = mat.as_tensor();
        let shape = mat.shape()?;
        let width = or_invalid("add_embedding", columns(&shape, &options))?;
        let step = format!("{:05}", global_step.into().0.unwrap_or(0));
        let folder = format!("{step}/{}", encode_tag(&options.tag));
        let path = self.log_dir().join(&folder);
        let name = format!("{}:{step}", options.tag);
        let mut config = format!("embeddings {{\n  tensor_name: {name:?}\n");
        let mut files = Vec::new();
        if !options.metadata.is_empty() {
            let header = Some(&options.metadata_header).filter(|h| h.len() > 1);
            let rows = header.into_iter().chain(&options.metadata);
            let rows: Vec<String> = rows.map(|row| row.join("\t") + "\n").collect();
            files.push(("metadata.tsv", rows.concat().into_bytes()));
            let path = format!("{folder}/metadata.tsv");
            config += &format!("  metadata_path: {path:?}\n");
        }
        if let Some(images) = &options.label_img {
            let (sprite, [height, width]) = sprite(images, shape[0])?;
            files.push(("sprite.png", sprite));
            let path = format!("{folder}/sprite.png");
            config += &format!("  sprite {{\n    image_path: {path:?}\n");
            config +=
                &format!("    single_image_dim: {width}\n    single_image_dim: {height}\n  }}\n");
        }
        let mut points = String::new();
        for row in floats(&mat)?.chunks(width.max(1)) {
            let row: Vec<String> = row.iter().map(|v| (*v as f32).to_string()).collect();
            points += &(row.join("\t") + "\n");
        }
        files.push(("tensors.tsv", points.into_bytes()));
        let points = format!("{folder}/tensors.tsv");
        config += &format!("  tensor_path: {points:?}\n}}\n");
        let all_configs = self.projector(|configs| {
            *configs += &config;
            configs.clone()
        });
        let write = || {
            std::fs::create_dir_all(&path)?;
            for (name, bytes) in &files {
                std::fs::write(path.join(name), bytes)?;
            }
            std::fs::write(self.log_dir().join("projector_config.pbtxt"), all_configs)
        };
        io_result("add_embedding", write())
    }
}

/// The number of columns of points, or the reason why labels or images do not fit the points.
fn columns(shape: &[usize], options: &Embedding) -> Result<usize, String> {
    let &[count, width] = shape else {
        return Err(format!("points are a matrix, not of the shape {shape:?}"));
    };
    let (rows, columns) = (options.metadata.len(), options.metadata_header.len().max(1));
    if rows != 0 && rows != count {
        return Err(format!(
            "there are {rows} rows of metadata for {count} points"
        ));
    }
    if let Some(row) = options.metadata.iter().find(|row| row.len() != columns) {
        let actual = row.len();
        return Err(format!(
            "a row of metadata has {actual} columns, not {columns}: {row:?}"
        ));
    }
    let mut cells = options
        .metadata_header
        .iter()
        .chain(options.metadata.iter().flatten());
    if let Some(cell) = cells.find(|c| c.contains(['\t', '\n', '\r'])) {
        return Err(format!(
            "metadata can't have a tab or the end of a line: {cell:?}"
        ));
    }
    let images = options.label_img.as_ref().map(Tensor::dims);
    match images.filter(|dims| dims.len() != 4 || !dims[0].is(count as i64)) {
        Some(dims) => Err(format!(
            "label_img must be [n, c, h, w] with an image for each of {count} points, not {dims:?}"
        )),
        None => Ok(width),
    }
}

/// The images of grid points in a grid, and the height and width of each.
#[track_caller]
fn sprite(images: &Tensor, count: usize) -> Result<(Vec<u8>, [usize; 2])> {
    let per_row = (count as f64).sqrt().ceil() as usize;
    let mut grid = Pixels::arrange(images, "NCHW", per_row, "add_embedding")?;
    let [height, width] = [grid.height / count.div_ceil(per_row), grid.width / per_row];
    // The projector assumes a square grid: the rows that are missing are added.
    grid.height = height * per_row;
    grid.bytes
        .resize(grid.width * grid.height * grid.channels, 0);
    Ok((or_invalid("add_embedding", grid.png())?, [height, width]))
}

/// A tag, percent-encoded as the name of a folder.
fn encode_tag(tag: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let bytes = tag.bytes().map(|b| match plain(b) {
        true => (b as char).to_string(),
        false => format!("%{b:02x}"),
    });
    bytes.collect()
}
