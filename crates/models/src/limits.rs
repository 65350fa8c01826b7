//! Limits of the sizes of networks: above those of all networks that exist, and small enough to compute with.

use kiln::{Error, Result};

/// The maximum number of layers in a row.
const MAX_LAYERS: usize = 1 << 12;

/// The maximum width, vocabulary, number of classes or side of an image.
const MAX_SIZE: usize = 1 << 24;

/// Checks the numbers of layers and all sizes of a network.
#[track_caller]
pub(crate) fn check(model: &str, layers: &[usize], sizes: &[usize]) -> Result<()> {
    let above = |list: &[usize], max: usize| list.iter().copied().find(|n| *n > max);
    let message = match (above(layers, MAX_LAYERS), above(sizes, MAX_SIZE)) {
        (Some(n), _) => format!("it has at most {MAX_LAYERS} layers in a row, not {n}"),
        (_, Some(n)) => format!("a size is at most {MAX_SIZE}, not {n}"),
        _ => return Ok(()),
    };
    Err(Error::invalid(model, message))
}

#[cfg(test)]
mod tests {
    use crate::*;

    #[test]
    fn absurd_numbers_are_refused_with_the_limit() {
        for n in [1 << 40, 1 << 62, usize::MAX] {
            let resnet = |blocks, classes| ResNetConfig {
                blocks,
                classes,
                ..ResNetConfig::default()
            };
            let levels = UNetConfig {
                levels: n,
                ..UNetConfig::default()
            };
            let layers = GPT2Config {
                n_layer: n,
                ..GPT2Config::default()
            };
            let images = VisionTransformerConfig {
                image_size: n,
                patch_size: 1,
                ..VisionTransformerConfig::default()
            };
            for e in [
                ResNet::new(resnet([1, n, 1, 1], 10)).err(),
                ResNet::new(resnet([1; 4], n)).err(),
                UNet::new(levels).err(),
                GPT2Model::new(layers).err(),
                VisionTransformer::new(images).err(),
                ConvNeXt::new([8; 4], [1, 1, 1, n], 0.0, 10).err(),
                DenseNet::new(n, [1; 4], 8, 10).err(),
            ] {
                let e = e.unwrap().to_string();
                assert!(e.contains("at most"), "{e}");
            }
        }
    }
}
