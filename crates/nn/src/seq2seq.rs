//! A whole transformer.

use crate::layer::{on_behalf, with_dtype};
use crate::{
    AttentionMasks, Module, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer, init,
};
use kiln_tensor::{DType, Int, Result, Tensor};

/// An encoder and a decoder (`torch.nn.Transformer`; Vaswani et al., 2017), on `[l, n, d_model]`
/// (`[n, l, d_model]` where the layers are made with `batch_first`). Matrices start Xavier-uniform.
///
/// ```
/// use kiln_nn::{Transformer, TransformerDecoderLayer, TransformerEncoderLayer};
/// use kiln_tensor::{DType, Tensor};
/// let encoder = TransformerEncoderLayer::new(8, 2)?.dim_feedforward(16)?;
/// let decoder = TransformerDecoderLayer::new(8, 2)?.dim_feedforward(16)?;
/// let model = Transformer::of(&encoder, 2, &decoder, 1)?;
/// let (src, tgt) = (Tensor::rand([5, 3, 8], DType::F32), Tensor::rand([4, 3, 8], DType::F32));
/// assert_eq!(model.forward(&src, &tgt).shape()?, [4, 3, 8]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
#[module(reset_parameters)]
pub struct Transformer {
    /// From the source to the memory.
    pub encoder: TransformerEncoder,
    /// From the target and the memory to the result.
    pub decoder: TransformerDecoder,
}

impl Transformer {
    /// PyTorch's defaults: 6 layers of each kind with 2048 features in between.
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

    /// A transformer of copies of these layers, with values of their own, and a norm behind the last of
    /// each kind.
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
        let norm = with_dtype(dtype, || encoder.config.norm())?;
        let last_norm = with_dtype(dtype, || decoder.config.norm())?;
        let transformer = Transformer {
            encoder: TransformerEncoder::new(encoder, num_encoder_layers)?.norm(norm),
            decoder: TransformerDecoder::new(decoder, num_decoder_layers)?.norm(last_norm),
        };
        transformer.reset_parameters()?;
        Ok(transformer)
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        let matrices = self
            .parameters()
            .into_iter()
            .filter(|p| p.shape().len() > 1);
        matrices
            .into_iter()
            .try_for_each(|p| init::xavier_uniform_(&p, 1.0))
    }

    /// The result for a source and a target, without masks.
    #[track_caller]
    pub fn forward(&self, src: &Tensor, tgt: &Tensor) -> Tensor {
        let none = AttentionMasks::default();
        self.forward_with(src, tgt, none, none, none)
    }

    /// The result with masks of the attention to the source, to the target and to the memory.
    #[track_caller]
    pub fn forward_with(
        &self,
        src: &Tensor,
        tgt: &Tensor,
        src_masks: AttentionMasks,
        tgt_masks: AttentionMasks,
        memory_masks: AttentionMasks,
    ) -> Tensor {
        on_behalf(|| {
            let memory = self.encoder.forward_with(src, src_masks);
            self.decoder
                .forward_with(tgt, &memory, tgt_masks, memory_masks)
        })
    }

    /// The mask under which position i sees positions 0 to i: 0 there, −∞ elsewhere.
    #[track_caller]
    pub fn generate_square_subsequent_mask(size: impl Into<Int>) -> Tensor {
        let size = size.into();
        Tensor::full([size, size], f64::NEG_INFINITY, DType::F32).triu(1)
    }
}
