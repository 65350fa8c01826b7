//! Well-known networks, written with Kiln's public interface, for examples, benchmarks, tests and the `kiln` command.
//!
//! Parameters and buffers have torchvision's names where torchvision has the network. New weights have the initial
//! distributions of the layers, which are PyTorch's. Networks of text that the library `transformers` also has, such as
//! [`GPT2LMHeadModel`] and [`BertModel`], have its names. With the feature `weights`, the module `weights` reads the
//! files that torchvision publishes. [`workloads`] has some of these networks as compiled programs.

/// Functions that make a model of a usual size for a number of classes.
macro_rules! sizes {
    ($model:ident, $classes:ident: $($(#[$about:meta])* $name:ident = $made:expr;)*) => {$(
        $(#[$about])*
        ///
        /// # Errors
        /// Inside `compile`: make networks before.
        pub fn $name($classes: usize) -> kiln::Result<$model> {
            $made
        }
    )*};
}

/// A struct with a default for each field.
macro_rules! config {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$about:meta])* pub $field:ident: $ty:ty = $default:expr,)*
    }) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$about])* pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }
    };
}

pub mod ops;
#[cfg(feature = "weights")]
pub mod weights;
pub mod workloads;

mod bert;
mod bert_heads;
mod convnext;
mod densenet;
mod efficientnet;
mod googlenet;
mod gpt;
mod gpt2;
mod inception;
mod limits;
mod lstm;
mod mobilenet;
mod mobilenet_v2;
mod resnet;
mod shufflenet;
mod squeezenet;
mod text;
mod transformer;
mod unet;
mod vgg;
mod vit;

pub use bert::{BertConfig, BertInputs, BertModel};
pub use bert_heads::{BertForMaskedLM, BertForSequenceClassification};
pub use convnext::ConvNeXt;
pub use densenet::DenseNet;
pub use efficientnet::EfficientNet;
pub use googlenet::{GoogLeNet, GoogLeNetConfig, GoogLeNetOutputs};
pub use gpt::{Gpt, GptConfig};
pub use gpt2::{GPT2Config, GPT2DoubleHeadsModel, GPT2LMHeadModel, GPT2Model};
pub use inception::{Inception3, Inception3Config, InceptionOutputs};
pub use lstm::LstmCell;
pub use mobilenet::MobileNetV3;
pub use mobilenet_v2::MobileNetV2;
pub use resnet::{ResNet, ResNetBlock, ResNetConfig};
pub use shufflenet::ShuffleNetV2;
pub use squeezenet::SqueezeNet;
pub use transformer::{CachedBlock, TransformerConfig};
pub use unet::{UNet, UNetConfig};
pub use vgg::{AlexNet, Vgg};
pub use vit::{VisionTransformer, VisionTransformerConfig};
