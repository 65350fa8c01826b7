//! Multi-head attention.

use crate::layer::{self, fact, invalid, run_all, wrong};
use crate::{Linear, Mode, Module, init};
use kiln_tensor::{DType, Int, Result, Tensor, Var, cat, where_};

/// What [`MultiheadAttention::forward_with`] takes beside the tensors.
#[derive(Clone, Copy, Default)]
pub struct AttentionMasks<'a> {
    /// Which keys of each sample to leave out, `[n, s]` (`[s]` without a batch): bool, true where a key
    /// is padding, or floats that are added to the scores.
    pub key_padding_mask: Option<&'a Tensor>,
    /// Which keys each query does not see, `[l, s]` or `[n · heads, l, s]`: bool, true where it does not,
    /// or floats that are added to the scores.
    pub attn_mask: Option<&'a Tensor>,
    /// Whether query i sees keys 0 to i only.
    pub is_causal: bool,
}

/// Attention in several heads (`torch.nn.MultiheadAttention`; Vaswani et al., 2017). Query, key and value
/// are `[l, n, e]` (`[n, l, e]` with `batch_first`, `[l, e]` without a batch).
///
/// The projections start Xavier-uniform with biases of 0; that of the output starts as a [`Linear`] with
/// a bias of 0.
///
/// ```
/// use kiln_nn::MultiheadAttention;
/// use kiln_tensor::{DType, Tensor};
/// let attention = MultiheadAttention::new(8, 2)?.batch_first(true);
/// let x = Tensor::rand([3, 5, 8], DType::F32);
/// let (y, weights) = attention.forward(&x, &x, &x);
/// assert_eq!((y.shape()?, weights.shape()?), (vec![3, 5, 8], vec![3, 5, 5]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(reset_parameters)]
pub struct MultiheadAttention {
    /// `[3 · e, e]`: the projections of query, key and value, where all have `e` features.
    pub in_proj_weight: Option<Var>,
    /// `[e, e]`, where the features differ.
    pub q_proj_weight: Option<Var>,
    /// `[e, kdim]`, where the features differ.
    pub k_proj_weight: Option<Var>,
    /// `[e, vdim]`, where the features differ.
    pub v_proj_weight: Option<Var>,
    /// `[3 · e]`.
    pub in_proj_bias: Option<Var>,
    /// A further key, `[1, 1, e]`.
    pub bias_k: Option<Var>,
    /// The value of the further key, `[1, 1, e]`.
    pub bias_v: Option<Var>,
    /// The projection of the heads' results.
    pub out_proj: Linear,
    embed_dim: usize,
    num_heads: usize,
    dropout: f64,
    batch_first: bool,
    average: bool,
    mode: Mode,
}

impl MultiheadAttention {
    /// A layer with biases and without dropout, batches in dim 1.
    ///
    /// # Errors
    /// If the features do not divide into the heads.
    #[track_caller]
    pub fn new(embed_dim: impl Into<Int>, num_heads: impl Into<Int>) -> Result<MultiheadAttention> {
        let sizes = [embed_dim.into(), num_heads.into()];
        let [embed_dim, num_heads] = layer::sizes("MultiheadAttention", sizes)?;
        if num_heads == 0 || embed_dim == 0 || !embed_dim.is_multiple_of(num_heads) {
            let message = format!("{embed_dim} features do not divide into {num_heads} heads");
            return Err(invalid("MultiheadAttention", message));
        }
        let attention = MultiheadAttention {
            in_proj_weight: Some(layer::constant([3 * embed_dim, embed_dim], 0.0)?),
            q_proj_weight: None,
            k_proj_weight: None,
            v_proj_weight: None,
            in_proj_bias: Some(layer::constant([3 * embed_dim], 0.0)?),
            bias_k: None,
            bias_v: None,
            out_proj: Linear::new(embed_dim, embed_dim)?,
            embed_dim,
            num_heads,
            dropout: 0.0,
            batch_first: false,
            average: true,
            mode: Mode::new(),
        };
        attention.reset_parameters()?;
        Ok(attention)
    }

    /// The layer whose keys and values have other numbers of features than its queries; its parameters
    /// are drawn anew.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn kdim_vdim(
        mut self,
        kdim: impl Into<Int>,
        vdim: impl Into<Int>,
    ) -> Result<MultiheadAttention> {
        let [kdim, vdim] = layer::sizes("MultiheadAttention", [kdim.into(), vdim.into()])?;
        let e = self.embed_dim;
        self.in_proj_weight = None;
        self.q_proj_weight = Some(layer::constant([e, e], 0.0)?);
        self.k_proj_weight = Some(layer::constant([e, kdim], 0.0)?);
        self.v_proj_weight = Some(layer::constant([e, vdim], 0.0)?);
        self.reset_parameters()?;
        Ok(self)
    }

    /// The layer with or without biases (default with).
    pub fn bias(mut self, bias: bool) -> MultiheadAttention {
        self.in_proj_bias = self.in_proj_bias.filter(|_| bias);
        self.out_proj = self.out_proj.bias(bias);
        self
    }

    /// The layer with a learnt further key and value (default without); they start Xavier-normal.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn add_bias_kv(mut self) -> Result<MultiheadAttention> {
        let parameter = || layer::constant([1, 1, self.embed_dim], 0.0);
        (self.bias_k, self.bias_v) = (Some(parameter()?), Some(parameter()?));
        self.reset_parameters()?;
        Ok(self)
    }

    /// The layer that drops attention weights with this probability in training (default 0).
    pub fn dropout(mut self, dropout: f64) -> MultiheadAttention {
        self.dropout = dropout;
        self
    }

    /// Whether batches are in dim 0 (default no: in dim 1).
    pub fn batch_first(mut self, batch_first: bool) -> MultiheadAttention {
        self.batch_first = batch_first;
        self
    }

    /// Whether the weights that are returned are the mean of the heads' (default yes).
    pub fn average_attn_weights(mut self, average: bool) -> MultiheadAttention {
        self.average = average;
        self
    }

    /// The result, of the query's shape, and the attention weights `[n, l, s]` (`[n, heads, l, s]` if
    /// they are not averaged; without n where the query has no batch).
    #[track_caller]
    pub fn forward(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> (Tensor, Tensor) {
        self.forward_with(query, key, value, AttentionMasks::default())
    }

    /// [`MultiheadAttention::forward`] with masks.
    #[track_caller]
    pub fn forward_with(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks,
    ) -> (Tensor, Tensor) {
        let mut operands = vec![query, key, value];
        operands.extend(masks.key_padding_mask.into_iter().chain(masks.attn_mask));
        let [y, weights] = run_all(self, &operands, || {
            match self.attend(query, key, value, masks) {
                Ok(both) => both,
                Err(e) => [e.clone(), e],
            }
        });
        (y, weights)
    }

    fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: AttentionMasks,
    ) -> Result<[Tensor; 2], Tensor> {
        let unbatched = query.ndim() == 2;
        for (t, what, last) in [
            (query, "query", Some(self.embed_dim)),
            (key, "key", self.features(&self.k_proj_weight)),
            (value, "value", self.features(&self.v_proj_weight)),
        ] {
            t.check().map_err(|_| t.clone())?;
            let n = t.ndim();
            let fits = n == query.ndim() && (n == 2 || n == 3);
            if !fits || last.is_some_and(|e| !t.dims()[n - 1].is(e as i64)) {
                let message = format!(
                    "the {what} {} must have {} features in its last dim and as many dims (2 or 3) as the query {}",
                    fact(t),
                    last.unwrap_or(self.embed_dim),
                    fact(query)
                );
                return Err(wrong(self, message));
            }
        }
        // [n, l, e] from here on.
        let batched = |t: &Tensor| match (unbatched, self.batch_first) {
            (true, _) => t.unsqueeze(0),
            (false, true) => t.clone(),
            (false, false) => t.transpose(0, 1),
        };
        let [q, mut k, mut v] = self.projected([batched(query), batched(key), batched(value)]);
        let mask = self.mask(masks, &q, &k)?;
        if let (Some(bias_k), Some(bias_v)) = (&self.bias_k, &self.bias_v) {
            let n = k.narrow(1, 0, 1);
            let further = |b: &Var| &b.get() + &n.zeros_like();
            k = cat(&[&k, &further(bias_k)], 1);
            v = cat(&[&v, &further(bias_v)], 1);
        }
        let [q, k, v] = [q, k, v].map(|t| self.split(&t));
        let causal = masks.is_causal && mask.is_none();
        let p = match self.mode.is_training() {
            true => self.dropout,
            false => 0.0,
        };
        let y = q.scaled_dot_product_attention(&k, &v, mask.as_ref(), p, causal, None, false);
        // Computed only if somebody reads them.
        let weights = self.weights(&q, &k, mask.as_ref(), causal);
        let y = y.transpose(1, 2).flatten(2, 3);
        let bias = self.out_proj.bias.as_ref().map(Var::get);
        let y = y.linear(self.out_proj.weight.get(), bias.as_ref());
        let y = match (unbatched, self.batch_first) {
            (true, _) => y.squeeze(0),
            (false, true) => y,
            (false, false) => y.transpose(0, 1),
        };
        let weights = if self.average {
            weights.mean(1)
        } else {
            weights
        };
        Ok([
            y,
            if unbatched {
                weights.squeeze(0)
            } else {
                weights
            },
        ])
    }

    /// The features that a key or value must have.
    fn features(&self, projection: &Option<Var>) -> Option<usize> {
        let own = projection.as_ref().map(|w| w.shape()[1]);
        own.or(Some(self.embed_dim))
    }

    /// Query, key and value in the dims of the heads.
    fn projected(&self, inputs: [Tensor; 3]) -> [Tensor; 3] {
        let e = self.embed_dim as i64;
        let part = |t: &Tensor, i: usize| t.narrow(0, i as i64 * e, e);
        let bias = self.in_proj_bias.as_ref().map(Var::get);
        let whole = self.in_proj_weight.as_ref().map(Var::get);
        let own = [
            &self.q_proj_weight,
            &self.k_proj_weight,
            &self.v_proj_weight,
        ];
        let mut i = 0;
        inputs.map(|x| {
            let at = i;
            i += 1;
            let weight = whole.as_ref().map(|w| part(w, at));
            let weight = weight.or_else(|| own[at].as_ref().map(Var::get));
            let bias = bias.as_ref().map(|b| part(b, at));
            match weight {
                Some(weight) => x.linear(&weight, bias.as_ref()),
                None => wrong(self, "has no projection weight"),
            }
        })
    }

    /// `[n, l, e]` as `[n, heads, l, e / heads]`.
    fn split(&self, x: &Tensor) -> Tensor {
        let heads = [
            self.num_heads as i64,
            (self.embed_dim / self.num_heads) as i64,
        ];
        x.unflatten(2, heads).transpose(1, 2)
    }

    /// All masks as one: which keys take part, or numbers to add to the scores. None where there is none, or
    /// where being causal says all.
    fn mask(
        &self,
        masks: AttentionMasks,
        query: &Tensor,
        key: &Tensor,
    ) -> Result<Option<Tensor>, Tensor> {
        let attn = masks.attn_mask.map(|m| match m.ndim() {
            3 => m.unflatten(0, [-1, self.num_heads as i64]),
            _ => m.clone(),
        });
        let padding = masks.key_padding_mask.map(|m| match m.ndim() {
            1 => m.unsqueeze(0).unsqueeze(1).unsqueeze(1),
            _ => m.unsqueeze(1).unsqueeze(1),
        });
        let alone = attn.is_none() && padding.is_none() && self.bias_k.is_none();
        let causal = (masks.is_causal && !alone).then(|| {
            // The further key comes behind these.
            behind(query, key)
        });
        let dtype = query.dtype();
        let mut hidden: Option<Tensor> = None;
        let mut added: Option<Tensor> = None;
        for mask in [causal, attn, padding].into_iter().flatten() {
            let mask = self.with_further_key(mask);
            match mask.dtype() {
                DType::Bool => {
                    hidden = Some(hidden.map_or(mask.clone(), |h| h.logical_or(&mask)));
                }
                d if d == dtype => added = Some(added.map_or(mask.clone(), |a| a + &mask)),
                d => {
                    let message = format!("a mask must be bool or {dtype}, not {d}");
                    return Err(wrong(self, message));
                }
            }
        }
        Ok(match (hidden, added) {
            (Some(hidden), None) => Some(hidden.logical_not()),
            (Some(hidden), Some(added)) => Some(where_(&hidden, f64::NEG_INFINITY, &added)),
            (None, added) => added,
        })
    }

    /// The weights `[n, heads, l, s]` of the keys.
    fn weights(&self, q: &Tensor, k: &Tensor, mask: Option<&Tensor>, causal: bool) -> Tensor {
        let head = (self.embed_dim / self.num_heads) as f64;
        let scores = q.matmul(k.transpose(-2, -1)) * (1.0 / head.sqrt());
        let scores = match mask {
            Some(seen) if seen.dtype() == DType::Bool => where_(seen, &scores, f64::NEG_INFINITY),
            Some(added) => &scores + added,
            None if causal => where_(behind(q, k), f64::NEG_INFINITY, &scores),
            None => scores,
        };
        scores.softmax(-1)
    }

    /// A mask that leaves the further key in.
    fn with_further_key(&self, mask: Tensor) -> Tensor {
        match self.bias_k {
            Some(_) => mask.pad([0, 1], kiln_tensor::PadMode::ZEROS),
            None => mask,
        }
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        let weights = [
            &self.in_proj_weight,
            &self.q_proj_weight,
            &self.k_proj_weight,
            &self.v_proj_weight,
        ];
        for weight in weights.into_iter().flatten() {
            init::xavier_uniform_(weight, 1.0)?;
        }
        for further in [&self.bias_k, &self.bias_v].into_iter().flatten() {
            init::xavier_normal_(further, 1.0)?;
        }
        Module::reset_parameters(&self.out_proj)?;
        for bias in [&self.in_proj_bias, &self.out_proj.bias]
            .into_iter()
            .flatten()
        {
            init::zeros_(bias)?;
        }
        Ok(())
    }
}

/// Which keys `[.., s, _]` lie behind the rows `[.., l, _]` of a query: `[l, s]`.
fn behind(query: &Tensor, key: &Tensor) -> Tensor {
    let column = |t: &Tensor| {
        let batch = t.ndim() as i64 - 3;
        let t = t.detach().narrow(-1, 0, 1).flatten(0, batch);
        t.select(0, 0)
    };
    let square = column(query).matmul(column(key).transpose(0, 1));
    square.ones_like().triu(1).to_dtype(DType::Bool)
}
