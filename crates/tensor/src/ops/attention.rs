//! Attention.

use super::args::{check_alike, check_float, known, known_dim};
use crate::operand::AsTensor;
use crate::options::options;
use crate::record::{Recorder, compose, compose_pair};
use crate::{Scalar, Tensor};
use kiln_base::{DType, Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Shape, broadcast_shapes, ensure, ops};
use kiln_lazy::random;

options! {
    /// The options of [`Tensor::scaled_dot_product_attention`].
    ///
    /// ```
    /// use kiln_tensor::{Attention, DType, Tensor};
    /// let x = Tensor::randn([2, 4, 5, 8], DType::F32);
    /// let y = x.scaled_dot_product_attention_with(&x, &x, Attention::new().is_causal(true));
    /// assert_eq!(y.shape()?, [2, 4, 5, 8]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Attention () {
        /// The probability that a weight is dropped (default 0).
        dropout_p: f64 = 0.0,
        /// True if query i attends to keys 0 to i only (default false). Excludes a mask.
        is_causal: bool = false,
        /// The factor of the scores (default 1 / √e).
        scale: Option<f64> = None,
        /// True for grouped queries (default false): key and value `[.., h, s, _]` have fewer heads than the query,
        /// and each of their heads serves an equal number of consecutive query heads.
        enable_gqa: bool = false,
        ;
        /// A bool mask of the keys that take part, or floats that are added to the scores: `[.., l, s]`, broadcast.
        attn_mask,
    }
}

#[on_cells]
impl Tensor {
    /// `softmax(query · keyᵀ / √e) · value` for query `[.., l, e]`, key `[.., s, e]` and value `[.., s, v]`: `[.., l,
    /// v]`; their other dims broadcast.
    pub fn scaled_dot_product_attention(&self, key: impl AsTensor, value: impl AsTensor) -> Tensor {
        self.scaled_dot_product_attention_with(key, value, Attention::new())
    }

    /// [`Tensor::scaled_dot_product_attention`] with a mask, dropout or another scale. A query whose keys are all
    /// masked gives zeros.
    #[autocast(options)]
    pub fn scaled_dot_product_attention_with(
        &self,
        key: impl AsTensor,
        value: impl AsTensor,
        options: Attention,
    ) -> Tensor {
        let call = Call {
            operands: [self, key, value],
            options: &options,
        };
        compose(NAME, &call.tensors(), |b| {
            let (op, operands) = call.prepare(b)?;
            let y = b.op(op, &operands)?;
            call.merge_heads(b, &y)
        })
    }

    /// [`Tensor::scaled_dot_product_attention_with`], and the factors `[.., l, s]` that its dropout applies to the
    /// weights: 0 or 1 / (1 − p), in f64. The factors are only computed if they are read.
    ///
    /// ```
    /// use kiln_tensor::{Attention, DType, Tensor};
    /// let x = Tensor::randn([2, 5, 8], DType::F32);
    /// let options = Attention::new().dropout_p(0.5);
    /// let (y, kept) = x.scaled_dot_product_attention_with_dropout(&x, &x, options);
    /// let weights = (x.matmul(x.transpose(-2, -1)) / 8f64.sqrt()).softmax(-1);
    /// let by_hand = (weights * kept.to_dtype(DType::F32)).matmul(&x);
    /// assert!((y - by_hand).abs().amax(()).item::<f32>()? < 1e-4);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[autocast(options)]
    pub fn scaled_dot_product_attention_with_dropout(
        &self,
        key: impl AsTensor,
        value: impl AsTensor,
        options: Attention,
    ) -> (Tensor, Tensor) {
        let call = Call {
            operands: [self, key, value],
            options: &options,
        };
        compose_pair(NAME, &call.tensors(), |b| {
            let (op, operands) = call.prepare(b)?;
            let y = b.op(op, &operands)?;
            let mut weights = Shape::from(y.dims());
            weights[y.ndim() - 1] = operands[1].dims()[y.ndim() - 2].clone();
            let keep_all = b.full(1.0, DType::F64, &weights)?;
            let mask = op.drop(b, &keep_all, &operands[3..])?;
            Ok((call.merge_heads(b, &y)?, call.merge_heads(b, &mask)?))
        })
    }
}

/// The operation's name, in errors.
const NAME: &str = "scaled_dot_product_attention";

/// A call of attention.
struct Call<'a> {
    /// Query, key and value.
    operands: [&'a Tensor; 3],
    options: &'a Attention,
}

impl Call<'_> {
    /// All tensors of the call.
    fn tensors(&self) -> Vec<&Tensor> {
        let operands = self.operands.into_iter();
        operands.chain(&self.options.attn_mask).collect()
    }

    /// Returns the op, and its operands with one batch shape. Grouped heads are two dims; keys and values are the
    /// same along the second.
    fn prepare(&self, b: &mut Recorder) -> Result<(ops::Attention, Vec<Tensor>), OpError> {
        let [query, key, value] = self.operands;
        check_float(query, "query")?;
        check_alike(query, "query", key, "key")?;
        check_alike(query, "query", value, "value")?;
        ensure!(
            self.operands.iter().all(|t| t.ndim() >= 2),
            "query, key and value need at least 2 dims, not {}, {} and {}",
            query.fact(),
            key.fact(),
            value.fact()
        );
        ensure!(
            !(self.options.is_causal && self.options.attn_mask.is_some()),
            "is_causal and attn_mask can't both be set"
        );
        let p = self.options.dropout_p;
        ensure!(
            (0.0..=1.0).contains(&p),
            "the probability must lie in 0..=1, not {p}"
        );
        let scale = match self.options.scale {
            Some(s) => s,
            None => 1.0 / (known_dim(&query.dims()[query.ndim() - 1], query)? as f64).sqrt(),
        };
        let mut operands = self.operands.map(Tensor::clone).to_vec();
        operands.extend(self.options.attn_mask.clone());
        if self.options.enable_gqa {
            operands = split_heads(b, &operands)?;
        }
        let batch = operands.iter().map(|t| &t.dims()[..t.ndim().max(2) - 2]);
        let batch = broadcast_shapes(batch).ok_or_else(|| {
            OpError::new("the batch dims of query, key, value and mask do not broadcast")
        })?;
        let (l, s) = (
            query.dims()[query.ndim() - 2].clone(),
            key.dims()[key.ndim() - 2].clone(),
        );
        for (i, x) in operands.iter_mut().enumerate() {
            let mut shape = batch.clone();
            match i {
                3 => shape.extend([l.clone(), s.clone()]),
                _ => shape.extend(x.dims()[x.ndim() - 2..].iter().cloned()),
            }
            *x = b.broadcast_to(x, &shape)?;
        }
        let op = ops::Attention {
            scale: Scalar::Float(scale),
            causal: self.options.is_causal,
            dropout: (p > 0.0).then_some(Scalar::Float(p)),
        };
        if op.dropout.is_some() {
            // A number for each weight.
            let mut weights = batch;
            weights.extend([l, s]);
            let key = random::key(&mut b.lazy, &numel(&weights))?;
            operands.push(Tensor::from(key));
        }
        Ok((op, operands))
    }

    /// Returns the result with a single dim of heads.
    fn merge_heads(&self, b: &mut Recorder, y: &Tensor) -> Result<Tensor, OpError> {
        if !self.options.enable_gqa {
            return Ok(y.clone());
        }
        let mut shape = Shape::from(y.dims());
        let group = shape.remove(y.ndim() - 3);
        let own = &mut shape[y.ndim() - 4];
        *own = &*own * &group;
        b.reshape(y, &shape)
    }
}

/// Splits the heads of the operands into `[.., own, group, _, _]`; keys and values have `[.., own, 1, _, _]`.
fn split_heads(b: &mut Recorder, operands: &[Tensor]) -> Result<Vec<Tensor>, OpError> {
    let (query, key) = (&operands[0], &operands[1]);
    ensure!(
        operands[..3].iter().all(|x| x.ndim() >= 3),
        "grouped heads need tensors with a dim of heads, not {}, {} and {}",
        query.fact(),
        key.fact(),
        operands[2].fact()
    );
    let heads = |x: &Tensor| known(x, x.ndim() - 3);
    let (query_heads, key_heads) = (heads(query)?, heads(key)?);
    ensure!(
        key_heads > 0 && query_heads % key_heads == 0,
        "the {query_heads} heads of the query are not a multiple of {key_heads} heads"
    );
    ensure!(
        heads(&operands[2])? == key_heads,
        "the value {} and the key {} differ in the number of heads",
        operands[2].fact(),
        key.fact()
    );
    if let Some(mask) = operands.get(3).filter(|m| m.ndim() >= 3) {
        ensure!(
            [1, query_heads].contains(&heads(mask)?),
            "the mask {} and the query {} differ in the number of heads",
            mask.fact(),
            query.fact()
        );
    }
    let mut split = |x: &Tensor| {
        if x.ndim() < 3 {
            return Ok(x.clone()); // a mask for all heads
        }
        let heads_axis = x.ndim() - 3;
        if heads(x)? != query_heads || query_heads == key_heads {
            return b.unsqueeze(x, heads_axis + 1);
        }
        let mut shape = Shape::from(x.dims());
        shape[heads_axis] = Dim::Const(key_heads);
        shape.insert(heads_axis + 1, Dim::Const(query_heads / key_heads));
        b.reshape(x, &shape)
    };
    operands.iter().map(&mut split).collect()
}
