//! Embeddings.

use crate::layer::{self, fact, invalid, run_lookup, wrong};
use crate::{Forward, Module, init};
use kiln_tensor::{BagMode, Bags, Int, Result, Tensor, Var, where_};

/// A row of a matrix for each index (`torch.nn.Embedding`): i64 or i32 `[..]` to
/// `[.., embedding_dim]`. The rows start standard normal. An index that is not there is a data error.
#[derive(Module)]
#[module(extra_repr, reset_parameters)]
pub struct Embedding {
    /// `[num_embeddings, embedding_dim]`.
    pub weight: Var,
    padding_idx: Option<usize>,
}

impl Embedding {
    /// A layer of `num_embeddings` rows.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn new(num_embeddings: impl Into<Int>, embedding_dim: impl Into<Int>) -> Result<Embedding> {
        let sizes = [num_embeddings.into(), embedding_dim.into()];
        let [num_embeddings, embedding_dim] = layer::sizes("Embedding", sizes)?;
        let embedding = Embedding {
            weight: layer::constant([num_embeddings, embedding_dim], 0.0)?,
            padding_idx: None,
        };
        embedding.reset_parameters()?;
        Ok(embedding)
    }

    /// A layer of given rows, which are not trained unless [`Module::unfreeze`] is called.
    ///
    /// # Errors
    /// If `rows` is not a matrix of floats.
    #[track_caller]
    pub fn from_pretrained(rows: &Tensor) -> Result<Embedding> {
        if rows.check()?.ndim() != 2 {
            let message = format!("the rows must be a matrix, not {}", fact(rows));
            return Err(invalid("Embedding", message));
        }
        let embedding = Embedding {
            weight: Var::parameter(rows)?,
            padding_idx: None,
        };
        embedding.freeze();
        Ok(embedding)
    }

    /// The layer whose row `index` starts at 0 and gets no gradient.
    ///
    /// # Errors
    /// If there is no such row.
    #[track_caller]
    pub fn padding_idx(mut self, index: impl Into<Int>) -> Result<Embedding> {
        let [index] = layer::sizes("Embedding", [index.into()])?;
        let rows = self.weight.shape()[0];
        if index >= rows {
            let message = format!("there is no row {index} of {rows} for padding");
            return Err(invalid("Embedding", message));
        }
        self.padding_idx = Some(index);
        self.clear_padding()?;
        Ok(self)
    }

    #[track_caller]
    fn clear_padding(&self) -> Result<()> {
        let Some(index) = self.padding_idx else {
            return Ok(());
        };
        let weight = self.weight.get().detach();
        let row = Tensor::from_slice(&[index as i64], [1]);
        self.weight.assign(weight.index_fill(0, &row, 0.0))
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        init::normal_(&self.weight, 0.0, 1.0)?;
        self.clear_padding()
    }

    fn extra_repr(&self) -> String {
        let shape = self.weight.shape();
        let padding = self.padding_idx.map(|i| format!(", padding_idx={i}"));
        format!("{}, {}{}", shape[0], shape[1], padding.unwrap_or_default())
    }
}

impl Forward for Embedding {
    #[track_caller]
    fn forward(&self, indices: &Tensor) -> Tensor {
        run_lookup(self, &[indices], || {
            if !indices.dtype().is_int() {
                return wrong(
                    self,
                    format!("the indices must be integers, not {}", fact(indices)),
                );
            }
            let rows = self.weight.get().embedding(indices);
            match self.padding_idx {
                Some(padding) if rows.requires_grad() => {
                    let is_padding = indices.eq(padding as i64).unsqueeze(-1);
                    where_(&is_padding, rows.detach(), &rows)
                }
                _ => rows,
            }
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
}

impl EmbeddingBag {
    /// A layer of `num_embeddings` rows that gives the mean of each bag.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn new(
        num_embeddings: impl Into<Int>,
        embedding_dim: impl Into<Int>,
    ) -> Result<EmbeddingBag> {
        let sizes = [num_embeddings.into(), embedding_dim.into()];
        let [num_embeddings, embedding_dim] = layer::sizes("EmbeddingBag", sizes)?;
        let bag = EmbeddingBag {
            weight: layer::constant([num_embeddings, embedding_dim], 0.0)?,
            mode: BagMode::Mean,
        };
        bag.reset_parameters()?;
        Ok(bag)
    }

    /// The layer that combines rows so (default the mean).
    pub fn mode(mut self, mode: BagMode) -> EmbeddingBag {
        self.mode = mode;
        self
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        init::normal_(&self.weight, 0.0, 1.0)
    }

    fn extra_repr(&self) -> String {
        let (shape, mode) = (self.weight.shape(), format!("{:?}", self.mode));
        format!("{}, {}, mode='{}'", shape[0], shape[1], mode.to_lowercase())
    }

    /// `[bags, embedding_dim]` for bags that are the parts of an index vector that begin at `offsets`.
    #[track_caller]
    pub fn forward_with_offsets(&self, indices: &Tensor, offsets: &Tensor) -> Tensor {
        run_lookup(self, &[indices, offsets], || {
            let weight = self.weight.get();
            weight.embedding_bag_with(indices, Bags::new().mode(self.mode).offsets(offsets))
        })
    }
}

/// `[bags, embedding_dim]` for bags that are the rows of an index matrix.
impl Forward for EmbeddingBag {
    #[track_caller]
    fn forward(&self, indices: &Tensor) -> Tensor {
        run_lookup(self, &[indices], || {
            let weight = self.weight.get();
            weight.embedding_bag_with(indices, Bags::new().mode(self.mode))
        })
    }
}
