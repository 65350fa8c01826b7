//! Transformers for images.

use crate::limits;
use kiln::nn::{
    AttentionOptions, Conv2d, Dropout, Forward, GELU, Hooks, Kernel, LayerNorm, Linear, Module,
    MultiheadAttention, Norm, Sequential, Tanh, init, module, sequential,
};
use kiln::{Error, Result, Tensor, Var, cat, default_dtype};

config! {
    /// The sizes of a [`VisionTransformer`]. The default is ViT-B/16's.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct VisionTransformerConfig {
        /// The height and width of the images.
        pub image_size: usize = 224,
        /// The height and width of the patches, which divide the size of the images.
        pub patch_size: usize = 16,
        /// The number of blocks.
        pub num_layers: usize = 12,
        /// The number of attention heads, which divide the width.
        pub num_heads: usize = 12,
        /// The width of a token.
        pub hidden_dim: usize = 768,
        /// The width between the two linear layers of a block.
        pub mlp_dim: usize = 3072,
        /// The probability that dropout zeroes a number in training.
        pub dropout: f64 = 0.0,
        /// The probability that an attention weight is dropped in training.
        pub attention_dropout: f64 = 0.0,
        /// The number of scores of an image.
        pub classes: usize = 1000,
        /// The width of a layer with tanh before the scores, if there is one.
        pub representation_size: Option<usize> = None,
    }
}

fn norm(width: usize) -> Result<LayerNorm> {
    LayerNorm::with(width, Norm::new().eps(1e-6))
}

module!(
    struct EncoderBlock(config: &VisionTransformerConfig) {
        ln_1: LayerNorm = norm(config.hidden_dim),
        self_attention: MultiheadAttention = MultiheadAttention::with(
            config.hidden_dim,
            config.num_heads,
            AttentionOptions::new().dropout(config.attention_dropout).batch_first(true),
        ),
        dropout: Dropout = Dropout::new(config.dropout),
        ln_2: LayerNorm = norm(config.hidden_dim),
        mlp: Sequential = sequential![
            Linear::new(config.hidden_dim, config.mlp_dim),
            GELU::new(),
            Dropout::new(config.dropout),
            Linear::new(config.mlp_dim, config.hidden_dim),
            Dropout::new(config.dropout),
        ],
    }
);

impl Forward for EncoderBlock {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.ln_1.call(&x);
        let (y, _) = self.self_attention.call((&y, &y, &y));
        let x = self.dropout.call(y) + x;
        Ok(&x + self.mlp.call(self.ln_2.call(&x)))
    }
}

/// Makes a parameter of normal numbers.
fn normal(shape: [usize; 3], std: f64) -> Result<Var> {
    let var = Var::parameter(Tensor::zeros(shape, default_dtype()))?;
    init::normal_(&var, 0.0, std)?;
    Ok(var)
}

fn blocks(config: &VisionTransformerConfig) -> Result<Sequential> {
    (0..config.num_layers).try_fold(Sequential::new(), |blocks, i| {
        Ok(blocks.named(format!("encoder_layer_{i}"), EncoderBlock::new(config)?))
    })
}

module!(
    struct Encoder(config: &VisionTransformerConfig, tokens: usize) {
        pos_embedding: Var = normal([1, tokens, config.hidden_dim], 0.02),
        dropout: Dropout = Dropout::new(config.dropout),
        layers: Sequential = blocks(config),
        ln: LayerNorm = norm(config.hidden_dim),
    }
);

impl Forward for Encoder {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.dropout.call(x + self.pos_embedding.get());
        Ok(self.ln.call(self.layers.call(x)))
    }
}

/// "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale" (Dosovitskiy et al., 2020): images
/// `[n, 3, size, size]` to scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::{VisionTransformer, VisionTransformerConfig};
///
/// let model = VisionTransformer::new(VisionTransformerConfig {
///     image_size: 32,
///     patch_size: 8,
///     num_layers: 2,
///     num_heads: 3,
///     hidden_dim: 48,
///     mlp_dim: 96,
///     classes: 10,
///     ..VisionTransformerConfig::default()
/// })?;
/// let images = Tensor::rand([2, 3, 32, 32], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct VisionTransformer {
    /// The token before the patches, whose state is read at the end: `[1, 1, hidden_dim]`.
    class_token: Var,
    conv_proj: Conv2d,
    encoder: Encoder,
    heads: Sequential,
    image_size: usize,
    hooks: Hooks,
}

impl VisionTransformer {
    sizes! { VisionTransformer, classes:
        /// ViT-B/16, for images of 224 by 224.
        vit_b_16 = VisionTransformer::sized([16, 12, 12, 768, 3072], classes);
        /// ViT-B/32, for images of 224 by 224.
        vit_b_32 = VisionTransformer::sized([32, 12, 12, 768, 3072], classes);
        /// ViT-L/16, for images of 224 by 224.
        vit_l_16 = VisionTransformer::sized([16, 24, 16, 1024, 4096], classes);
        /// ViT-L/32, for images of 224 by 224.
        vit_l_32 = VisionTransformer::sized([32, 24, 16, 1024, 4096], classes);
    }

    /// Makes the network of a patch's size, and of these layers, heads, width and width within blocks.
    fn sized(sizes: [usize; 5], classes: usize) -> Result<VisionTransformer> {
        let [patch_size, num_layers, num_heads, hidden_dim, mlp_dim] = sizes;
        VisionTransformer::new(VisionTransformerConfig {
            patch_size,
            num_layers,
            num_heads,
            hidden_dim,
            mlp_dim,
            classes,
            ..VisionTransformerConfig::default()
        })
    }

    /// Makes the network with random weights.
    ///
    /// # Errors
    /// If the patches don't divide the images, or the heads the width, if a size is above 2^24 or there are more than
    /// 4096 layers, or inside `compile`: make networks before.
    pub fn new(config: VisionTransformerConfig) -> Result<VisionTransformer> {
        let (size, patch, width) = (config.image_size, config.patch_size, config.hidden_dim);
        let hidden = config.representation_size.unwrap_or(0);
        let sizes = [size, patch, width, config.mlp_dim, config.classes, hidden];
        limits::check("VisionTransformer", &[config.num_layers], &sizes)?;
        if patch == 0 || !size.is_multiple_of(patch) {
            let message = format!("patches of {patch} do not divide images of {size}");
            return Err(Error::invalid("VisionTransformer", message));
        }
        let tokens = (size / patch).pow(2) + 1;
        let heads = match config.representation_size {
            None => sequential!["head": Linear::new(width, config.classes)]?,
            Some(hidden) => sequential![
                "pre_logits": Linear::new(width, hidden),
                "act": Tanh::new(),
                "head": Linear::new(hidden, config.classes),
            ]?,
        };
        Ok(VisionTransformer {
            class_token: normal([1, 1, width], 0.02)?,
            conv_proj: Conv2d::new(3, width, Kernel::new(patch).stride(patch))?,
            encoder: Encoder::new(&config, tokens)?,
            heads,
            image_size: size,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for VisionTransformer {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let dims = images.dims();
        let size = self.image_size;
        if dims.len() != 4 || dims[2..].iter().any(|d| !d.is(size as i64)) {
            let message = format!("the images must be [n, 3, {size}, {size}], not {dims:?}");
            return Err(Error::invalid("VisionTransformer", message));
        }
        let x = self.conv_proj.call(&images).flatten(2).transpose(1, 2);
        // The class token is repeated for each image.
        let token = x.narrow(1, 0, 1).zeros_like() + self.class_token.get();
        let x = self.encoder.call(cat(&[token, x], 1));
        Ok(self.heads.call(x.select(1, 0)))
    }
}
