//! Gradients of a class's score.

use crate::fault::{SOURCE, invalid};
use kiln_nn::{Forward, Hookable, extract};
use kiln_tensor::{
    DType, HookHandles, Result, Tensor, grad, keep, on_behalf_of, set_device, user_line,
};
use std::panic::Location;

/// The class whose score is examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Classes {
    /// The one with the highest score, for each image.
    Predicted,
    /// One for all images.
    All(i64),
    /// One for each image.
    Each(Vec<i64>),
}

from! { Classes:
    |class: Option<i64>| class.map_or(Classes::Predicted, Classes::All);
    |class: i64| Classes::All(class);
    |classes: Vec<i64>| Classes::Each(classes);
    |classes: &[i64]| Classes::Each(classes.to_vec());
}

impl<const N: usize> From<[i64; N]> for Classes {
    fn from(classes: [i64; N]) -> Classes {
        Classes::Each(classes.to_vec())
    }
}

impl Classes {
    /// The class of each image, from scores `[n, classes]`.
    #[track_caller]
    fn class_indices(self, op: &str, scores: &Tensor) -> Result<Vec<i64>> {
        let shape = scores.shape()?;
        let [n, count] = shape[..] else {
            let message = format!("the model gives {shape:?}, not scores [n, classes]");
            return Err(invalid(op, message));
        };
        let classes = match self {
            Classes::Predicted => scores.argmax(1).to_vec::<i64>()?,
            Classes::All(class) => vec![class; n],
            Classes::Each(classes) => classes,
        };
        if classes.len() != n {
            let message = format!("there are {} classes for {n} images", classes.len());
            return Err(invalid(op, message));
        }
        match classes.iter().find(|c| !(0..count as i64).contains(*c)) {
            None => Ok(classes),
            Some(class) => Err(invalid(op, format!("there is no class {class} of {count}"))),
        }
    }

    /// The sum of the scores of the images' classes. Its gradient is that of each image's own score.
    #[track_caller]
    fn score(self, op: &str, scores: &Tensor) -> Result<Tensor> {
        let classes = self.class_indices(op, scores)?;
        let _here = set_device(scores.device());
        let index = Tensor::from(classes).unsqueeze(1);
        Ok(scores.gather(1, &index).sum(()))
    }
}

/// The images, as a leaf that gets gradients.
#[track_caller]
fn leaf(op: &str, images: &Tensor) -> Result<Tensor> {
    images.check()?;
    if images.ndim() != 4 || !images.dtype().is_float() {
        let message = format!(
            "images are floats [n, c, h, w], not {}{:?}",
            images.dtype(),
            images.shape()?
        );
        return Err(invalid(op, message));
    }
    Ok(images.detach().requires_grad_(true))
}

/// The output of a layer for the images, `[n, k, h', w']`, and the scores.
#[track_caller]
fn layer_of<M: Forward>(
    op: &str,
    model: &M,
    layer: &str,
    images: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (scores, [outputs]) = extract(model, [layer], images)?;
    match outputs.first() {
        Some(maps) if maps.ndim() == 4 => Ok((scores, maps.clone())),
        first => {
            let shape = first.map(Tensor::shape).transpose()?.unwrap_or_default();
            let message = format!("{layer} gives {shape:?}, not maps [n, k, h, w]");
            Err(invalid(op, message))
        }
    }
}

/// Grad-CAM: where in each image the layer at a path within the model responds to the class. The mean gradient of the
/// class's score weights each of the layer's channels; negative values of their sum become 0.
///
/// Images are `[n, c, h, w]`, the model gives scores `[n, classes]`, the layer `[n, k, h', w']`; the maps are
/// `[n, h', w']` of the same dtype. A layer near the end, `layer4` of a ResNet, is the usual one.
///
/// # Errors
/// If there is no such layer or class, the layer gives no maps or the score does not depend on it, or the model fails.
#[track_caller]
pub fn grad_cam<M: Forward>(
    model: &M,
    layer: &str,
    images: &Tensor,
    classes: impl Into<Classes>,
) -> Result<Tensor> {
    let images = leaf("grad_cam", images)?;
    let (scores, maps) = layer_of("grad_cam", model, layer, &images)?;
    let score = classes.into().score("grad_cam", &scores)?;
    let weights = grad(score, &maps)?.mean(keep([2, 3]));
    let sum = (weights * maps.detach()).sum(1).relu();
    Ok(sum.check()?.clone())
}

/// CAM: the channels of the layer at a path, weighted as the linear layer at the path `head` weights their means for
/// the class. The model is a body, a mean over height and width, and this linear layer.
///
/// The shapes are those of [`grad_cam`]; the maps may be negative.
///
/// # Errors
/// If there is no such layer or class, or `head` has no weight `[classes, k]`.
#[track_caller]
pub fn cam<M: Forward>(
    model: &M,
    layer: &str,
    head: &str,
    images: &Tensor,
    classes: impl Into<Classes>,
) -> Result<Tensor> {
    let images = leaf("cam", images)?.detach();
    let (scores, maps) = layer_of("cam", model, layer, &images)?;
    let classes = classes.into().class_indices("cam", &scores)?;
    let weight = model
        .get_parameter(&format!("{head}.weight"))?
        .get()
        .detach();
    let (channels, shape) = (maps.shape()?[1], weight.shape()?);
    if shape.len() != 2 || shape[1] != channels {
        let message =
            format!("the weight of {head} is {shape:?}, of {channels} channels of {layer}");
        return Err(invalid("cam", message));
    }
    let _here = set_device(weight.device());
    let weights = weight.index_select(0, Tensor::from(classes));
    let weights = weights.unsqueeze(2).unsqueeze(3);
    let sum = (weights * maps.detach()).sum(1);
    Ok(sum.check()?.clone())
}

/// The gradient of the class's score with respect to the images, `[n, c, h, w]`.
///
/// # Errors
/// If there is no such class, the score does not depend on the images, or the model fails.
#[track_caller]
pub fn input_gradient<M: Forward>(
    model: &M,
    images: &Tensor,
    classes: impl Into<Classes>,
) -> Result<Tensor> {
    gradient("input_gradient", model, images, classes.into())
}

#[track_caller]
fn gradient<M: Forward>(op: &str, model: &M, images: &Tensor, classes: Classes) -> Result<Tensor> {
    let images = leaf(op, images)?;
    let score = classes.score(op, &model.call(&images))?;
    let gradient = grad(score, &images)?;
    Ok(gradient.check()?.clone())
}

/// The sensitivity of the class's score to each pixel, `[n, h, w]`: the largest absolute gradient of its channels.
///
/// # Errors
/// As [`input_gradient`].
#[track_caller]
pub fn saliency<M: Forward>(
    model: &M,
    images: &Tensor,
    classes: impl Into<Classes>,
) -> Result<Tensor> {
    let gradient = gradient("saliency", model, images, classes.into())?;
    Ok(gradient.abs().amax(1).check()?.clone())
}

/// Guided backpropagation: [`input_gradient`], where no negative gradient goes back through a ReLU. It covers the
/// model's layers of [`kiln_nn::ReLU`], not calls of `relu` on a tensor.
///
/// # Errors
/// If the model has no such layer, or as [`input_gradient`].
#[track_caller]
pub fn guided_backprop<M: Forward>(
    model: &M,
    images: &Tensor,
    classes: impl Into<Classes>,
) -> Result<Tensor> {
    let (mut hooks, loc) = (HookHandles::default(), user_line(Location::caller()));
    for module in model.modules() {
        if module.name() != "ReLU" {
            continue;
        }
        // The gradient is 0 where the input was negative, so it suffices to clamp it here.
        let hook = module.register_full_backward_hook(move |inputs, _| {
            let clamp_positive = |gradient: &Option<Tensor>| gradient.as_ref().map(|g| g.relu());
            on_behalf_of(SOURCE, loc, || {
                inputs.iter().map(clamp_positive).collect::<Vec<_>>()
            })
        })?;
        hooks.0.push(hook);
    }
    if hooks.0.is_empty() {
        let message = "the model has no layers ReLU, whose gradients could be guided";
        return Err(invalid("guided_backprop", message));
    }
    gradient("guided_backprop", model, images, classes.into())
}

/// The values as f32, the dtype of pictures, without gradients.
pub(super) fn as_f32(t: &Tensor) -> Tensor {
    match t.dtype() {
        DType::F32 => t.detach(),
        _ => t.detach().to_dtype(DType::F32),
    }
}
