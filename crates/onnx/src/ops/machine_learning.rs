//! Operators of `ai.onnx.ml`.

use super::{Record, text, trees};
use crate::call::{Call, Results, one};
use crate::fault::{invalid, unsupported};
use crate::proto::TensorProto;
use crate::tensor;
use crate::text::Text;
use crate::value::Value;
use kiln_tensor::{DType, Error, Result, Tensor, cat, default_device, keep};
use std::collections::HashMap;
use text::Key;

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "ArrayFeatureExtractor" => |c| {
            let (x, index) = (c.tensor(0)?, c.tensor(1)?);
            let columns = x.index_select(-1, index.to_dtype(DType::I64).reshape([-1]));
            one(match x.ndim() {
                1 => columns.unsqueeze(0),
                _ => columns,
            })
        },
        "Binarizer" => |c| {
            let x = c.tensor(0)?;
            one(x.gt(c.float("threshold", 0.0)?).to_dtype(x.dtype()))
        },
        "LabelEncoder" => label_encoder,
        "LinearRegressor" => |c| {
            let y = linear(c, c.int("targets", 1)?)?;
            one(post_transform(c.text("post_transform", "NONE")?, y)?)
        },
        "Normalizer" => |c| {
            let x = c.tensor(0)?.to_dtype(DType::F32);
            let size = match c.text("norm", "MAX")? {
                "L1" => x.abs().sum(keep(-1)),
                "L2" => (&x * &x).sum(keep(-1)).sqrt(),
                _ => x.abs().amax(keep(-1)),
            };
            let size = size.masked_fill(size.eq(0.0), 1.0);
            one(x / size)
        },
        "Scaler" => |c| {
            let vector = |name: &str| {
                let list = c.floats(name)?.unwrap_or_default();
                let list: Vec<f32> = list.into_iter().map(|f| f as f32).collect();
                Ok::<_, Error>(Tensor::from(list))
            };
            one((c.tensor(0)?.to_dtype(DType::F32) - vector("offset")?) * vector("scale")?)
        },
        "TreeEnsemble" => trees::ensemble,
        "TreeEnsembleRegressor" => trees::regressor,
        _ => return None,
    })
}

/// Scores of `targets` linear functions.
fn linear(c: &Call, targets: i64) -> Result<Tensor> {
    let x = c.tensor(0)?.to_dtype(DType::F32);
    let vector = |list: Vec<f64>| -> Vec<f32> { list.into_iter().map(|f| f as f32).collect() };
    let coefficients = vector(c.floats("coefficients")?.unwrap_or_default());
    if targets < 1 || !coefficients.len().is_multiple_of(targets as usize) {
        return Err(invalid(format!(
            "{} coefficients are not those of {targets} targets",
            coefficients.len()
        )));
    }
    let weight = Tensor::from(coefficients).reshape([targets, -1]);
    let intercepts = c
        .floats("intercepts")?
        .map(|list| Tensor::from(vector(list)));
    Ok(x.linear_with(weight, intercepts))
}

/// Applies the transform of scores `[n, targets]` that an attribute names.
pub(super) fn post_transform(name: &str, y: Tensor) -> Result<Tensor> {
    Ok(match name {
        "NONE" => y,
        "LOGISTIC" => y.sigmoid(),
        "SOFTMAX" => y.softmax(-1),
        "SOFTMAX_ZERO" => {
            let zero = y.eq(0.0);
            let chances = y.masked_fill(&zero, f64::NEG_INFINITY).softmax(-1);
            chances.masked_fill(zero, 0.0)
        }
        other => return Err(unsupported(format!("the transform {other:?}"))),
    })
}

/// Elements of attributes, as keys or values.
enum Column {
    Text(Vec<String>),
    Numbers(Tensor),
}

/// Returns the elements that `{name}_strings`, `_int64s`, `_floats` or `_tensor` hold.
fn column(c: &Call, name: &str) -> Result<Column> {
    if let Some(list) = c.texts(&format!("{name}_strings"))? {
        return Ok(Column::Text(list));
    }
    if let Some(list) = c.ints(&format!("{name}_int64s"))? {
        return Ok(Column::Numbers(Tensor::from(list)));
    }
    if let Some(list) = c.floats(&format!("{name}_floats"))? {
        let list: Vec<f32> = list.into_iter().map(|f| f as f32).collect();
        return Ok(Column::Numbers(Tensor::from(list)));
    }
    let t = c.tensor_attribute(&format!("{name}_tensor"))?;
    of_message(t.ok_or_else(|| invalid(format!("there are no {name}")))?)
}

fn of_message(t: &TensorProto) -> Result<Column> {
    Ok(match tensor::is_text(t) {
        true => Column::Text(tensor::read_text(t)?.elements().to_vec()),
        false => Column::Numbers(tensor::read(t, None)?.to(default_device()).reshape([-1])),
    })
}

/// Looks elements up. The pairs of keys and values are few, and text lies on the host.
fn label_encoder(c: &Call) -> Results {
    let keys = match column(c, "keys")? {
        Column::Text(list) => list.into_iter().map(Key::Text).collect(),
        Column::Numbers(t) => text::keys_of(&t)?,
    };
    let (wanted, shape) = text::keys(c, 0)?;
    let places: HashMap<Key, usize> = keys.into_iter().enumerate().map(|(i, k)| (k, i)).collect();
    let found = wanted.iter().map(|key| places.get(key).copied());
    let default = c.tensor_attribute("default_tensor")?.map(of_message);
    let values = column(c, "values")?;
    match values {
        Column::Text(values) => {
            let default = match default.transpose()? {
                Some(Column::Text(list)) => list.first().cloned().unwrap_or_default(),
                _ => c.text("default_string", "_Unused")?.to_string(),
            };
            let texts = found.map(|i| match i {
                Some(i) => values.get(i).unwrap_or(&default).clone(),
                None => default.clone(),
            });
            Ok(vec![Value::Text(Text::new(texts, &shape)?)])
        }
        Column::Numbers(values) => {
            let default = match default.transpose()? {
                Some(Column::Numbers(t)) => t,
                _ if values.dtype().is_float() => Tensor::scalar(c.float("default_float", -0.0)?),
                _ => Tensor::scalar(c.int("default_int64", -1)?),
            };
            let default = default.to_dtype(values.dtype()).reshape([-1]);
            // The default stands in front.
            let count = values.numel()?;
            let places = found.map(|i| i.filter(|i| *i < count).map_or(0, |i| i as i64 + 1));
            let places = Tensor::from(places.collect::<Vec<i64>>());
            let table = cat([default.narrow(0, 0, 1), values], 0);
            let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
            one(table.index_select(0, places).reshape(shape))
        }
    }
}
