//! A whole transformer.

use crate::{
    AttentionMasks, Forward, Hooks, Module, TransformerDecoder, TransformerDecoderLayer,
    TransformerEncoder, TransformerEncoderLayer, init,
};
use kiln_tensor::{DType, Int, Result, Tensor, with_default_dtype};

/// An encoder and a decoder (`torch.nn.Transformer`; Vaswani et al., 2017), on `[l, n, d_model]`
/// (`[n, l, d_model]` where the layers are made with `batch_first`): a source and a target, and the
/// [`AttentionMasks`] of source, target and memory in one array. Matrices start Xavier-uniform.
///
/// ```
/// use kiln_nn::{
///     Forward, Transformer, TransformerDecoderLayer, TransformerEncoderLayer, TransformerOptions,
/// };
/// use kiln_tensor::{DType, Tensor};
/// let options = TransformerOptions::new().dim_feedforward(16);
/// let encoder = TransformerEncoderLayer::with(8, 2, options.clone())?;
/// let decoder = TransformerDecoderLayer::with(8, 2, options)?;
/// let model = Transformer::of(&encoder, 2, &decoder, 1)?;
/// let (src, tgt) = (Tensor::rand([5, 3, 8], DType::F32), Tensor::rand([4, 3, 8], DType::F32));
/// assert_eq!(model.call((&src, &tgt)).shape()?, [4, 3, 8]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(reset_parameters)]
pub struct Transformer {
    /// Encodes the source as the memory.
    pub encoder: TransformerEncoder,
    /// Decodes the target and the memory to the result.
    pub decoder: TransformerDecoder,
    hooks: Hooks,
}

impl Transformer {
    /// Makes a transformer with PyTorch's defaults: 6 layers of each kind, and 2048 features between the linear layers.
    ///
    /// # Errors
    /// If the features do not divide into the heads, or inside `compile`: make layers before.
    #[track_caller]
    pub fn new(d_model: impl Into<Int>, nhead: impl Into<Int>) -> Result<Transformer> {
        let (d_model, nhead) = (d_model.into(), nhead.into());
        let encoder = TransformerEncoderLayer::new(d_model, nhead)?;
        let decoder = TransformerDecoderLayer::new(d_model, nhead)?;
        Transformer::of(&encoder, 6, &decoder, 6)
    }

    /// Makes a transformer of copies of these layers, with values of their own, and a norm after the last of each kind.
    ///
    /// # Errors
    /// Inside `compile`: make layers before.
    #[track_caller]
    pub fn of(
        encoder: &TransformerEncoderLayer,
        num_encoder_layers: impl Into<Int>,
        decoder: &TransformerDecoderLayer,
        num_decoder_layers: impl Into<Int>,
    ) -> Result<Transformer> {
        let dtype = encoder.linear1.weight.dtype();
        let norm = with_default_dtype(dtype, || encoder.config.norm())?;
        let last_norm = with_default_dtype(dtype, || decoder.config.norm())?;
        let transformer = Transformer {
            encoder: TransformerEncoder::with_norm(encoder, num_encoder_layers, norm)?,
            decoder: TransformerDecoder::with_norm(decoder, num_decoder_layers, last_norm)?,
            hooks: Hooks::new(),
        };
        transformer.reset_parameters()?;
        Ok(transformer)
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        let matrices = self.parameters().into_iter().filter(|p| p.ndim() > 1);
        matrices
            .into_iter()
            .try_for_each(|p| init::xavier_uniform_(&p, 1.0))
    }

    /// Returns the mask under which position i sees positions 0 to i: 0 for these, −∞ elsewhere.
    #[track_caller]
    pub fn generate_square_subsequent_mask(size: impl Into<Int>) -> Tensor {
        let size = size.into();
        Tensor::full([size, size], f64::NEG_INFINITY, DType::F32).triu_with(1)
    }
}

impl Forward<(Tensor, Tensor, [AttentionMasks; 3])> for Transformer {
    fn forward(
        &self,
        (src, tgt, [src_masks, tgt_masks, memory_masks]): (Tensor, Tensor, [AttentionMasks; 3]),
    ) -> Result<Tensor> {
        let memory = self.encoder.call((src, src_masks));
        Ok(self.decoder.call((tgt, memory, tgt_masks, memory_masks)))
    }
}

impl Forward<(Tensor, Tensor)> for Transformer {
    fn forward(&self, (src, tgt): (Tensor, Tensor)) -> Result<Tensor> {
        let masks = std::array::from_fn(|_| AttentionMasks::new());
        self.forward((src, tgt, masks))
    }
}
