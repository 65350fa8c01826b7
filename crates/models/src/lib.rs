//! Networks that are well known, written as any user of Kiln would, for examples, benchmarks, tests and the
//! `kiln` command.
//!
//! Parameters and buffers have torchvision's names where torchvision has the network. New weights have the
//! initial distributions of the layers, which are PyTorch's. [`workloads`] are these networks as compiled
//! programs.

pub mod workloads;

mod gpt;
mod lstm;
mod mobilenet;
mod resnet;
mod transformer;
mod unet;
mod vgg;

pub use gpt::{Gpt, GptConfig};
pub use lstm::LstmCell;
pub use mobilenet::MobileNetV3;
pub use resnet::{ResNet, ResNetBlock, ResNetConfig};
pub use transformer::{CachedBlock, TransformerConfig};
pub use unet::{UNet, UNetConfig};
pub use vgg::{AlexNet, Vgg};
