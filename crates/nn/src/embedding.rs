//! Embeddings.

use crate::layer::{self, fact, input_error, invalid, look_up};
use crate::{Forward, Hooks, Module, init};
use kiln_tensor::{
    AsTensor, BagMode, Bags, Int, MaybeInt, Result, Tensor, Var, options, set_device, where_,
};

options! {
    /// The options of an embedding.
    Rows () {
        /// The row that starts at 0 and gets no gradient; none by default.
        padding_idx: MaybeInt = None,
    }
}

/// A row of a matrix for each index (`torch.nn.Embedding`): i64 or i32 `[..]` to `[.., embedding_dim]`. The rows start
/// standard normal. An index out of range is a data error.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct Embedding {
    /// `[num_embeddings, embedding_dim]`.
    pub weight: Var,
    #[skip]
    padding_idx: Option<usize>,
    hooks: Hooks,
}

impl Embedding {
    /// Makes a layer of `num_embeddings` rows.
    ///
    /// # Errors
    /// If a size is negative, or inside `compile`: make layers before.
    #[track_caller]
    pub fn new(num_embeddings: impl Into<Int>, embedding_dim: impl Into<Int>) -> Result<Embedding> {
        Embedding::with(num_embeddings, embedding_dim, Rows::new())
    }

    /// Makes a layer of `num_embeddings` rows with these options.
    ///
    /// # Errors
    /// As [`Embedding::new`], or if the padding row is out of range.
    #[track_caller]
    pub fn with(
        num_embeddings: impl Into<Int>,
        embedding_dim: impl Into<Int>,
        options: Rows,
    ) -> Result<Embedding> {
        let sizes = [num_embeddings.into(), embedding_dim.into()];
        let [rows, embedding_dim] = layer::feature_sizes("Embedding", sizes)?;
        let embedding = Embedding {
            padding_idx: padding_row(options.padding_idx, rows)?,
            weight: layer::filled([rows, embedding_dim], 0.0)?,
            hooks: Hooks::new(),
        };
        embedding.reset_parameters()?;
        Ok(embedding)
    }

    /// Makes a layer of given rows, which are not trained unless [`Module::unfreeze`] is called.
    ///
    /// # Errors
    /// If `rows` is not a matrix of floats.
    #[track_caller]
    pub fn from_pretrained(rows: impl AsTensor) -> Result<Embedding> {
        let rows: &Tensor = &rows.as_tensor();
        if rows.check()?.ndim() != 2 {
            let message = format!("the rows must be a matrix, not {}", fact(rows));
            return Err(invalid("Embedding", message));
        }
        let embedding = Embedding {
            weight: Var::parameter(rows)?,
            padding_idx: None,
            hooks: Hooks::new(),
        };
        embedding.freeze();
        Ok(embedding)
    }

    /// Returns the number of rows.
    pub fn num_embeddings(&self) -> usize {
        layer::shape(&self.weight)[0]
    }

    /// The size of a row.
    pub fn embedding_dim(&self) -> usize {
        layer::shape(&self.weight)[1]
    }

    /// The row that gets no gradient.
    pub fn padding_idx(&self) -> Option<usize> {
        self.padding_idx
    }

    #[track_caller]
    fn clear_padding(&self) -> Result<()> {
        let Some(index) = self.padding_idx else {
            return Ok(());
        };
        let weight = self.weight.get().detach();
        let _here = set_device(self.weight.device());
        let row = Tensor::from_slice(&[index as i64], [1]);
        self.weight.assign(weight.index_fill(0, &row, 0.0))
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        init::normal_(&self.weight, 0.0, 1.0)?;
        self.clear_padding()
    }

    fn extra_repr(&self) -> String {
        let shape = layer::shape(&self.weight);
        let padding = self.padding_idx.map(|i| format!(", padding_idx={i}"));
        format!("{}, {}{}", shape[0], shape[1], padding.unwrap_or_default())
    }
}

/// Returns the padding row. A negative index counts from the end, as in PyTorch.
#[track_caller]
fn padding_row(index: MaybeInt, rows: usize) -> Result<Option<usize>> {
    let Some(index_value) = index.0 else {
        return Ok(None);
    };
    let index = if index_value < 0 {
        index_value.saturating_add(rows as i64)
    } else {
        index_value
    };
    match usize::try_from(index) {
        Ok(index) if index < rows => Ok(Some(index)),
        _ => {
            let message = format!("there is no row {index_value} of {rows} for padding");
            Err(invalid("Embedding", message))
        }
    }
}

impl Forward for Embedding {
    fn forward(&self, indices: Tensor) -> Result<Tensor> {
        if indices.error().is_none() && !indices.dtype().is_int() {
            let message = format!("the indices must be integers, not {}", fact(&indices));
            return input_error(self, message);
        }
        look_up(self, || {
            let rows = self.weight.get().embedding(&indices);
            Ok(match self.padding_idx {
                Some(padding) if rows.requires_grad() => {
                    let is_padding = indices.eq(padding as i64).unsqueeze(-1);
                    where_(&is_padding, rows.detach(), &rows)
                }
                _ => rows,
            })
        })
    }
}

/// The rows of each bag of indices, combined (`torch.nn.EmbeddingBag`). The rows start standard normal.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct EmbeddingBag {
    /// `[num_embeddings, embedding_dim]`.
    pub weight: Var,
    #[skip]
    mode: BagMode,
    hooks: Hooks,
}

impl EmbeddingBag {
    /// Makes a layer of `num_embeddings` rows that returns the mean of each bag.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn new(
        num_embeddings: impl Into<Int>,
        embedding_dim: impl Into<Int>,
    ) -> Result<EmbeddingBag> {
        EmbeddingBag::with(num_embeddings, embedding_dim, BagMode::Mean)
    }

    /// Makes a layer of `num_embeddings` rows that combines the rows of each bag as `mode` says.
    ///
    /// # Errors
    /// As [`EmbeddingBag::new`].
    #[track_caller]
    pub fn with(
        num_embeddings: impl Into<Int>,
        embedding_dim: impl Into<Int>,
        mode: BagMode,
    ) -> Result<EmbeddingBag> {
        let sizes = [num_embeddings.into(), embedding_dim.into()];
        let [num_embeddings, embedding_dim] = layer::feature_sizes("EmbeddingBag", sizes)?;
        let bag = EmbeddingBag {
            weight: layer::filled([num_embeddings, embedding_dim], 0.0)?,
            mode,
            hooks: Hooks::new(),
        };
        bag.reset_parameters()?;
        Ok(bag)
    }

    /// Returns the number of rows.
    pub fn num_embeddings(&self) -> usize {
        layer::shape(&self.weight)[0]
    }

    /// The size of a row.
    pub fn embedding_dim(&self) -> usize {
        layer::shape(&self.weight)[1]
    }

    /// Returns the mode in which the rows of a bag combine.
    pub fn mode(&self) -> BagMode {
        self.mode
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        init::normal_(&self.weight, 0.0, 1.0)
    }

    fn extra_repr(&self) -> String {
        let (shape, mode) = (layer::shape(&self.weight), format!("{:?}", self.mode));
        format!("{}, {}, mode='{}'", shape[0], shape[1], mode.to_lowercase())
    }

    fn combine(&self, indices: &Tensor, bags: Bags) -> Tensor {
        let bags = bags.mode(self.mode);
        look_up(self, || self.weight.get().embedding_bag_with(indices, bags))
    }
}

/// `[bags, embedding_dim]` for bags that are the rows of an index matrix.
impl Forward for EmbeddingBag {
    fn forward(&self, indices: Tensor) -> Result<Tensor> {
        Ok(self.combine(&indices, Bags::new()))
    }
}

/// `[bags, embedding_dim]` for bags that are the parts of an index vector that begin at the offsets.
impl Forward<(Tensor, Tensor)> for EmbeddingBag {
    fn forward(&self, (indices, offsets): (Tensor, Tensor)) -> Result<Tensor> {
        Ok(self.combine(&indices, Bags::new().offsets(&offsets)))
    }
}
