//! Views into a network: the parts of an image that matter to it, the outputs of its layers, and its filters.
//!
//! | function | result, for images `[n, c, h, w]` and one class each |
//! |---|---|
//! | [`grad_cam`] | maps `[n, h', w']` of a layer's channels weighted by gradients (Selvaraju et al., 2017) |
//! | [`cam`] | the same weighted by the last linear layer (Zhou et al., 2016) |
//! | [`saliency`] | the largest gradient of a pixel's channels, `[n, h, w]` (Simonyan et al., 2013) |
//! | [`input_gradient`], [`guided_backprop`] | gradients of the image, `[n, c, h, w]` (Springenberg et al., 2014) |
//! | [`feature_maps`], [`filters`] | a layer's output, and a convolution's weights, as grey or RGB pictures |
//!
//! [`normalise`] scales maps to 0..=1, [`ColourMap`] colours them, [`overlay`] lays them over images. Put
//! the model into `eval` before, else batch norms mix the images of a batch.
//!
//! ```
//! use kiln_nn::{Conv2d, Flatten, AdaptiveAvgPool2d, Linear, Module, ReLU, sequential};
//! use kiln_tensor::{DType, Tensor};
//! use kiln_vision::inspect::{ColourMap, grad_cam, normalise, overlay};
//! use kiln_vision::{Image, Mode};
//!
//! let model = sequential![
//!     Conv2d::new(3, 4, 3), ReLU::new(), AdaptiveAvgPool2d::new(1), Flatten::new(), Linear::new(4, 10)
//! ]?;
//! model.eval();
//! let image = Image::filled(16, 16, Mode::RGB, &[200, 30, 90])?;
//! let batch = (image.to_tensor()?.to_dtype(DType::F32) / 255.0).unsqueeze(0);
//! let maps = grad_cam(&model, "1", &batch, 7)?; // of class 7; `None` is the predicted class
//! let picture = overlay(&image, &normalise(&maps)?.i(0), ColourMap::Jet, 0.5)?;
//! assert_eq!(picture.size(), (16, 16));
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

mod colour;
mod gradients;
mod maps;

pub use colour::{ColourMap, overlay};
pub use gradients::{Classes, cam, grad_cam, guided_backprop, input_gradient, saliency};
pub use maps::{feature_maps, filters, normalise};
