//! Multi-head attention.

use crate::layer::{self, check_probability, fact, input_error, invalid};
use crate::{Forward, Hooks, Linear, Mode, Module, init};
use kiln_tensor::{
    Attention, DType, Feed, Flat, Int, MaybeInt, Nest, PadMode, Result, Tensor, Var,
    autocast_operand, cat, options, where_,
};

options! {
    /// The options of multi-head attention.
    AttentionOptions () {
        /// The probability that an attention weight is dropped in training (default 0).
        dropout: f64 = 0.0,
        /// True if the projections have biases (default yes).
        bias: bool = true,
        /// True if there is a learnt further key and value (default no); they start Xavier-normal.
        add_bias_kv: bool = false,
        /// True if a key and a value of zeros follow all others (default no).
        add_zero_attn: bool = false,
        /// The features of a key, where they are not those of a query.
        kdim: MaybeInt = None,
        /// The features of a value, where they are not those of a query.
        vdim: MaybeInt = None,
        /// True if batches are in dim 0 (default no: in dim 1).
        batch_first: bool = false,
    }
}

options! {
    /// The arguments of an attention call besides its tensors.
    AttentionMasks () {
        /// True if query i sees keys 0 to i only (default no).
        is_causal: bool = false,
        /// True if the returned weights are the mean of the heads' (default yes).
        average_attn_weights: bool = true,
        ;
        /// The keys of each sample to leave out, `[n, s]` (`[s]` without a batch): bool, true where a key is padding,
        /// or floats that are added to the scores.
        key_padding_mask,
        /// The keys that each query does not see, `[l, s]` or `[n · heads, l, s]`: bool, true where it does not, or
        /// floats that are added to the scores.
        attn_mask,
    }
}

impl Nest for AttentionMasks {
    type Owned = AttentionMasks;

    fn flatten_into(&self, flat: &mut Flat) {
        flat.count(self.is_causal.into());
        flat.count(self.average_attn_weights.into());
        flat.part("key_padding_mask", &self.key_padding_mask);
        flat.part("attn_mask", &self.attn_mask);
    }

    fn build(feed: &mut Feed<'_>) -> AttentionMasks {
        let (is_causal, average_attn_weights) = (feed.count() > 0, feed.count() > 0);
        AttentionMasks {
            is_causal,
            average_attn_weights,
            key_padding_mask: <Option<Tensor> as Nest>::build(feed),
            attn_mask: <Option<Tensor> as Nest>::build(feed),
        }
    }
}

/// Multi-head attention (`torch.nn.MultiheadAttention`; Vaswani et al., 2017). Query, key and value are `[l, n, e]`
/// (`[n, l, e]` with `batch_first`, `[l, e]` without a batch), and may be followed by [`AttentionMasks`]. It returns
/// the result, of the query's shape, and the attention weights after dropout, `[n, l, s]` (`[n, heads, l, s]` if they
/// are not averaged; without n where the query has no batch).
///
/// The projections start Xavier-uniform with biases of 0; the output projection starts as a [`Linear`] with a bias of
/// 0.
///
/// ```
/// use kiln_nn::{AttentionMasks, AttentionOptions, Forward, MultiheadAttention};
/// use kiln_tensor::{DType, Tensor};
/// let attention = MultiheadAttention::with(8, 2, AttentionOptions::new().batch_first(true))?;
/// let x = Tensor::rand([3, 5, 8], DType::F32);
/// let (y, weights) = attention.call((&x, &x, &x));
/// assert_eq!((y.shape()?, weights.shape()?), (vec![3, 5, 8], vec![3, 5, 5]));
/// let (y, _) = attention.call((&x, &x, &x, AttentionMasks::new().is_causal(true)));
/// assert_eq!(y.shape()?, [3, 5, 8]);
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
    add_zero_attn: bool,
    batch_first: bool,
    mode: Mode,
    hooks: Hooks,
}

impl MultiheadAttention {
    /// Makes a layer with biases and without dropout, batches in dim 1.
    ///
    /// # Errors
    /// If the features do not divide into the heads.
    #[track_caller]
    pub fn new(embed_dim: impl Into<Int>, num_heads: impl Into<Int>) -> Result<MultiheadAttention> {
        MultiheadAttention::with(embed_dim, num_heads, AttentionOptions::new())
    }

    /// Makes a layer of `embed_dim` features in `num_heads` heads.
    ///
    /// # Errors
    /// If the features do not divide into the heads, or inside `compile`: make layers before.
    #[track_caller]
    pub fn with(
        embed_dim: impl Into<Int>,
        num_heads: impl Into<Int>,
        options: AttentionOptions,
    ) -> Result<MultiheadAttention> {
        let name = "MultiheadAttention";
        let [e, num_heads] = layer::feature_sizes(name, [embed_dim.into(), num_heads.into()])?;
        if num_heads == 0 || e == 0 || !e.is_multiple_of(num_heads) {
            let message = format!("{e} features do not divide into {num_heads} heads");
            return Err(invalid(name, message));
        }
        let features = [options.kdim, options.vdim].map(|n| Int(n.0.unwrap_or(e as i64)));
        let [kdim, vdim] = layer::feature_sizes(name, features)?;
        let has_own_weights = (kdim, vdim) != (e, e);
        let attention = MultiheadAttention {
            in_proj_weight: layer::filled_if(!has_own_weights, [3 * e, e], 0.0)?,
            q_proj_weight: layer::filled_if(has_own_weights, [e, e], 0.0)?,
            k_proj_weight: layer::filled_if(has_own_weights, [e, kdim], 0.0)?,
            v_proj_weight: layer::filled_if(has_own_weights, [e, vdim], 0.0)?,
            in_proj_bias: layer::filled_if(options.bias, [3 * e], 0.0)?,
            bias_k: layer::filled_if(options.add_bias_kv, [1, 1, e], 0.0)?,
            bias_v: layer::filled_if(options.add_bias_kv, [1, 1, e], 0.0)?,
            out_proj: Linear::from_sizes([e.into(), e.into()], options.bias)?,
            embed_dim: e,
            num_heads,
            dropout: check_probability(name, options.dropout)?,
            add_zero_attn: options.add_zero_attn,
            batch_first: options.batch_first,
            mode: Mode::new(),
            hooks: Hooks::new(),
        };
        attention.reset_parameters()?;
        Ok(attention)
    }

    /// The features of a query.
    pub fn embed_dim(&self) -> usize {
        self.embed_dim
    }

    /// Returns the number of heads.
    pub fn num_heads(&self) -> usize {
        self.num_heads
    }

    /// The probability that an attention weight is dropped in training.
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// True if batches are in dim 0.
    pub fn batch_first(&self) -> bool {
        self.batch_first
    }

    fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        masks: &AttentionMasks,
    ) -> Result<(Tensor, Tensor)> {
        let unbatched = query.ndim() == 2;
        for (t, what, last) in [
            (query, "query", Some(self.embed_dim)),
            (key, "key", self.features(&self.k_proj_weight)),
            (value, "value", self.features(&self.v_proj_weight)),
        ] {
            t.check()?;
            let n = t.ndim();
            let fits = n == query.ndim() && (n == 2 || n == 3);
            if !fits || last.is_some_and(|e| !t.dims()[n - 1].is(e as i64)) {
                let message = format!(
                    "the {what} {} must have {} features in its last dim and as many dims (2 or 3) as the query {}",
                    fact(t),
                    last.unwrap_or(self.embed_dim),
                    fact(query)
                );
                return input_error(self, message);
            }
        }
        // [n, l, e] from here on.
        let batched = |t: &Tensor| match (unbatched, self.batch_first) {
            (true, _) => t.unsqueeze(0),
            (false, true) => t.clone(),
            (false, false) => t.transpose(0, 1),
        };
        let [q, mut k, mut v] = self.project([batched(query), batched(key), batched(value)])?;
        let mask = self.mask(masks, &q, &k)?;
        if let (Some(bias_k), Some(bias_v)) = (&self.bias_k, &self.bias_v) {
            let n = k.narrow(1, 0, 1);
            let further = |b: &Var| &b.get() + &n.zeros_like();
            k = cat(&[&k, &further(bias_k)], 1);
            v = cat(&[&v, &further(bias_v)], 1);
        }
        if self.add_zero_attn {
            for x in [&mut k, &mut v] {
                *x = x.pad([0, 0, 0, 1], PadMode::ZEROS);
            }
        }
        let [q, k, v] = [q, k, v].map(|t| self.split(&t));
        let causal = masks.is_causal && mask.is_none();
        let p = match self.mode.is_training() {
            true => self.dropout,
            false => 0.0,
        };
        let options = Attention::new().attn_mask(&mask).dropout_p(p);
        let (y, kept) =
            q.scaled_dot_product_attention_with_dropout(&k, &v, options.is_causal(causal));
        // Computed only if somebody reads them.
        let weights = self.weights(&q, &k, mask.as_ref(), causal);
        let weights = match p > 0.0 {
            true => &weights * kept.to_dtype(weights.dtype()),
            false => weights,
        };
        let y = y.transpose(1, 2).flatten((2, 3));
        let y = self.out_proj.call(y);
        let y = match (unbatched, self.batch_first) {
            (true, _) => y.squeeze(0),
            (false, true) => y,
            (false, false) => y.transpose(0, 1),
        };
        let weights = match masks.average_attn_weights {
            true => weights.mean(1),
            false => weights,
        };
        Ok((
            y,
            if unbatched {
                weights.squeeze(0)
            } else {
                weights
            },
        ))
    }

    /// Returns the number of features that a key or value must have.
    fn features(&self, projection: &Option<Var>) -> Option<usize> {
        let own = projection.as_ref().map(|w| layer::shape(w)[1]);
        own.or(Some(self.embed_dim))
    }

    /// Returns query, key and value projected to the features of the heads.
    fn project(&self, [q, k, v]: [Tensor; 3]) -> Result<[Tensor; 3]> {
        let e = self.embed_dim as i64;
        let slice = |t: &Tensor, i: i64| t.narrow(0, i * e, e);
        let cast = |v: &Option<Var>| v.as_ref().map(|v| autocast_operand("linear", v));
        let (weights, biases) = (cast(&self.in_proj_weight), cast(&self.in_proj_bias));
        let project = |x: Tensor, i: i64, own: &Option<Var>| {
            let bias = biases.as_ref().map(|b| slice(b, i));
            let weight = match (&weights, own) {
                (Some(cast), _) => slice(cast, i),
                (None, Some(own)) => own.get(),
                (None, None) => return input_error(self, "has no projection weight"),
            };
            Ok(x.linear_with(weight, bias))
        };
        Ok([
            project(q, 0, &self.q_proj_weight)?,
            project(k, 1, &self.k_proj_weight)?,
            project(v, 2, &self.v_proj_weight)?,
        ])
    }

    /// `[n, l, e]` as `[n, heads, l, e / heads]`.
    fn split(&self, x: &Tensor) -> Tensor {
        let heads = [
            self.num_heads as i64,
            (self.embed_dim / self.num_heads) as i64,
        ];
        x.unflatten(2, heads).transpose(1, 2)
    }

    /// Returns all masks as one: bools that are true for keys that take part, or numbers to add to the scores. Returns
    /// `None` without masks, or if the causal mask is the only one.
    fn mask(&self, masks: &AttentionMasks, query: &Tensor, key: &Tensor) -> Result<Option<Tensor>> {
        let attn = masks.attn_mask.as_ref().map(|m| match m.ndim() {
            3 => m.unflatten(0, [-1, self.num_heads as i64]),
            _ => m.clone(),
        });
        let padding = masks.key_padding_mask.as_ref().map(|m| match m.ndim() {
            1 => m.unsqueeze(0).unsqueeze(1).unsqueeze(1),
            _ => m.unsqueeze(1).unsqueeze(1),
        });
        let alone = attn.is_none() && padding.is_none() && self.further_keys() == 0;
        // Further keys come after the given ones.
        let causal = (masks.is_causal && !alone).then(|| causal_mask(query, key));
        let dtype = query.dtype();
        let mut hidden: Option<Tensor> = None;
        let mut added: Option<Tensor> = None;
        for mask in [causal, attn, padding].into_iter().flatten() {
            let mask = match self.further_keys() {
                0 => mask,
                more => mask.pad([0, more], PadMode::ZEROS),
            };
            match mask.dtype() {
                DType::Bool => {
                    hidden = Some(hidden.map_or(mask.clone(), |h| h.logical_or(&mask)));
                }
                d if d == dtype => added = Some(added.map_or(mask.clone(), |a| a + &mask)),
                d => {
                    let message = format!("a mask must be bool or {dtype}, not {d}");
                    return input_error(self, message);
                }
            }
        }
        Ok(match (hidden, added) {
            (Some(hidden), None) => Some(hidden.logical_not()),
            (Some(hidden), Some(added)) => Some(where_(&hidden, f64::NEG_INFINITY, &added)),
            (None, added) => added,
        })
    }

    /// Returns the weights `[n, heads, l, s]` of the keys.
    fn weights(&self, q: &Tensor, k: &Tensor, mask: Option<&Tensor>, causal: bool) -> Tensor {
        let head = (self.embed_dim / self.num_heads) as f64;
        let scores = q.matmul(k.transpose(-2, -1)) * (1.0 / head.sqrt());
        let scores = match mask {
            Some(seen) if seen.dtype() == DType::Bool => where_(seen, &scores, f64::NEG_INFINITY),
            Some(added) => &scores + added,
            None if causal => where_(causal_mask(q, k), f64::NEG_INFINITY, &scores),
            None => scores,
        };
        scores.softmax(-1)
    }

    /// Returns the number of keys appended to the given ones. Masks never hide them.
    fn further_keys(&self) -> i64 {
        i64::from(self.bias_k.is_some()) + i64::from(self.add_zero_attn)
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

impl Forward<(Tensor, Tensor, Tensor), (Tensor, Tensor)> for MultiheadAttention {
    fn forward(&self, (query, key, value): (Tensor, Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        self.attend(&query, &key, &value, &AttentionMasks::new())
    }
}

impl Forward<(Tensor, Tensor, Tensor, AttentionMasks), (Tensor, Tensor)> for MultiheadAttention {
    fn forward(
        &self,
        (query, key, value, masks): (Tensor, Tensor, Tensor, AttentionMasks),
    ) -> Result<(Tensor, Tensor)> {
        self.attend(&query, &key, &value, &masks)
    }
}

/// Returns a mask `[l, s]` that is true where a key of `[.., s, _]` comes after a row of the query `[.., l, _]`.
fn causal_mask(query: &Tensor, key: &Tensor) -> Tensor {
    let column = |t: &Tensor| {
        let batch = t.ndim() as i64 - 3;
        let t = t.detach().narrow(-1, 0, 1).flatten((0, batch));
        t.select(0, 0)
    };
    let square = column(query).matmul(column(key).transpose(0, 1));
    square.ones_like().triu_with(1).to_dtype(DType::Bool)
}
