//! Operators of `ai.onnx.ml`.

use super::classify::{self, listed_classes};
use super::scores::{floats, linear, post_transform};
use super::{Record, svm, trees};
use crate::call::{Call, Results, single};
use crate::fault::{invalid, unsupported};
use crate::maps::{Keys, Maps};
use crate::proto::{AttributeProto, NodeProto, TensorProto};
use crate::tensor;
use crate::value::{Value, iota};
use kiln_base::Dim;
use kiln_tensor::{DType, Error, Fact, Result, Tensor, cat, default_device, keep};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// The maximum number of columns of a map by position.
const MAX_COLUMNS: i64 = 1 << 24;

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "ArrayFeatureExtractor" => |c| {
            let (x, index) = (c.tensor(0)?, c.tensor(1)?);
            let columns = x.index_select(-1, index.to_dtype(DType::I64).reshape([-1]));
            single(match x.ndim() {
                1 => columns.unsqueeze(0),
                _ => columns,
            })
        },
        "Binarizer" => |c| {
            let x = c.tensor(0)?;
            single(x.gt(c.float("threshold", 0.0)?).to_dtype(x.dtype()))
        },
        "CastMap" => cast_map,
        "CategoryMapper" => category_mapper,
        "DictVectorizer" => |c| {
            let maps = c.maps(0)?;
            let positions = match &maps.keys {
                Keys::Integers(keys) => {
                    source_positions(&c.ints("int64_vocabulary")?.unwrap_or_default(), keys)
                }
                Keys::Texts(keys) => {
                    source_positions(&c.texts("string_vocabulary")?.unwrap_or_default(), keys)
                }
            };
            single(columns_at(maps, positions))
        },
        "FeatureVectorizer" => |c| {
            let sizes = c.ints("inputdimensions")?.unwrap_or_default();
            let mut columns = Vec::new();
            for (i, t) in c.tensors(0)?.into_iter().enumerate() {
                let t = t.to_dtype(DType::F32);
                let t = if t.ndim() == 1 { t.unsqueeze(1) } else { t };
                columns.push(match sizes.get(i) {
                    Some(n) => t.narrow(1, 0, *n),
                    None => t,
                });
            }
            single(cat(columns, 1))
        },
        "Imputer" => imputer,
        "LabelEncoder" => label_encoder,
        "LinearClassifier" => classify::linear_classifier,
        "LinearRegressor" => |c| {
            let y = linear(c, c.int("targets", 1)?)?;
            single(post_transform(c.text("post_transform", "NONE")?, y)?)
        },
        "Normalizer" => |c| {
            let x = c.tensor(0)?.to_dtype(DType::F32);
            let size = match c.text("norm", "MAX")? {
                "L1" => x.abs().sum(keep(-1)),
                "L2" => (&x * &x).sum(keep(-1)).sqrt(),
                _ => x.amax(keep(-1)),
            };
            let size = size.masked_fill(size.eq(0.0), 1.0);
            single(x / size)
        },
        "OneHotEncoder" => one_hot,
        "SVMClassifier" => svm::classifier,
        "SVMRegressor" => svm::regressor,
        "Scaler" => |c| {
            let vector = |name: &str| Ok::<_, Error>(Tensor::from(floats(c, name)?));
            single((c.tensor(0)?.to_dtype(DType::F32) - vector("offset")?) * vector("scale")?)
        },
        "TreeEnsemble" => trees::ensemble,
        "TreeEnsembleClassifier" => trees::classifier,
        "TreeEnsembleRegressor" => trees::regressor,
        "ZipMap" => |c| {
            let values = c.tensor(0)?;
            let keys = listed_classes(c, "classlabels_int64s")?;
            let columns = values.dims().last().and_then(Dim::as_const);
            if values.ndim() > 2 || columns != Some(keys.len() as i64) {
                let actual = Fact::new(values.dtype(), values.dims().iter().cloned());
                let count = keys.len();
                return Err(invalid(format!(
                    "takes [n, {count}] for its keys, not {actual}"
                )));
            }
            let values = values.reshape([-1, keys.len() as i64]);
            Ok(vec![Value::Maps(Maps { keys, values })])
        },
        _ => return None,
    })
}

/// True if the node takes text.
pub(super) fn takes_text(node: &NodeProto) -> bool {
    let is_text = |a: &AttributeProto| match a.name() {
        "keys_strings" | "cats_strings" => !a.strings.is_empty(),
        "keys_tensor" => a.t.as_ref().is_some_and(tensor::is_text),
        _ => false,
    };
    node.attribute.iter().any(is_text)
}

/// Elements of attributes, as keys or values.
enum Column {
    Text(Vec<String>),
    Numbers(Tensor),
}

impl Column {
    fn count(&self) -> i64 {
        match self {
            Column::Text(list) => list.len() as i64,
            // Constants have known sizes.
            Column::Numbers(t) => t.dims().first().and_then(Dim::as_const).unwrap_or(0),
        }
    }
}

/// Returns the elements that `{name}_strings`, `_int64s`, `_floats` or `_tensor` hold.
fn column(c: &Call, name: &str) -> Result<Column> {
    if let Some(list) = c.texts(&format!("{name}_strings"))? {
        return Ok(Column::Text(list));
    }
    if let Some(list) = c.ints(&format!("{name}_int64s"))? {
        return Ok(Column::Numbers(Tensor::from(list)));
    }
    if c.attribute(&format!("{name}_floats")).is_some() {
        return Ok(Column::Numbers(Tensor::from(floats(
            c,
            &format!("{name}_floats"),
        )?)));
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

/// Looks elements up. Text lies on the host.
fn label_encoder(c: &Call) -> Results {
    let (keys, values) = (column(c, "keys")?, column(c, "values")?);
    if keys.count() != values.count() {
        return Err(invalid(format!(
            "{} keys and {} values are not pairs",
            keys.count(),
            values.count()
        )));
    }
    let index = match keys {
        Column::Numbers(keys) => positions_among(&c.tensor(0)?, &keys),
        Column::Text(keys) => text_positions_among(c, &keys)?,
    };
    let default = c.tensor_attribute("default_tensor")?.map(of_message);
    match values {
        Column::Text(values) => {
            let default = match default.transpose()? {
                Some(Column::Text(list)) => list.first().cloned().unwrap_or_default(),
                _ => c.text("default_string", "_Unused")?.to_string(),
            };
            Ok(vec![choose_texts(index, default, values)])
        }
        Column::Numbers(values) => {
            let default = match default.transpose()? {
                Some(Column::Numbers(t)) => t,
                _ if values.dtype().is_float() => Tensor::scalar(c.float("default_float", -0.0)?),
                _ => Tensor::scalar(c.int("default_int64", -1)?),
            };
            let default = default.to_dtype(values.dtype()).reshape([-1]);
            // The default stands in front.
            single(cat([default.narrow(0, 0, 1), values], 0).take(index))
        }
    }
}

/// For each number of `x`, 1 more than its position among keys, 0 if it is none of them. A key may be NaN.
fn positions_among(x: &Tensor, keys: &Tensor) -> Tensor {
    let x = x.unsqueeze(-1);
    let same = x.eq(keys).logical_or(x.isnan().logical_and(keys.isnan()));
    let ordinals = iota(&keys.dims()[0]) + 1;
    (same.to_dtype(DType::I64) * ordinals).amax(-1)
}

/// For each text of the input, 1 more than its position among keys, 0 if it is none of them.
fn text_positions_among(c: &Call, keys: &[String]) -> Result<Tensor> {
    let x = c.text_input(0)?;
    let shape: Vec<i64> = x.shape().iter().map(|n| *n as i64).collect();
    Ok(Tensor::from_slice(&source_positions(x.elements(), keys), &shape).to(default_device()))
}

/// Texts by their positions, with the default at 0.
fn choose_texts(index: Tensor, default: String, values: Vec<String>) -> Value {
    let from: Vec<String> = [default].into_iter().chain(values).collect();
    Value::Chosen(index, from.into())
}

/// For each element of `elements`, 1 more than its position among keys, 0 if it is none of them.
fn source_positions<T: Eq + Hash>(elements: &[T], keys: &[T]) -> Vec<i64> {
    let positions: HashMap<&T, i64> = keys.iter().zip(1..).collect();
    let matches = elements
        .iter()
        .map(|e| positions.get(e).copied().unwrap_or(0));
    matches.collect()
}

/// The values of maps at 1 more than their positions, and 0 at 0: `[maps, positions]`.
fn columns_at(maps: &Maps, positions: Vec<i64>) -> Tensor {
    let values = &maps.values;
    let zero = Tensor::zeros(
        vec![values.dims()[0].clone(), Dim::Const(1)],
        values.dtype(),
    );
    cat([zero, values.clone()], 1).index_select(1, Tensor::from(positions))
}

/// The values of a map in the order of its keys, or each at the position that its key is.
fn cast_map(c: &Call) -> Results {
    let maps = c.maps(0)?;
    let Keys::Integers(keys) = &maps.keys else {
        return Err(invalid("the keys of the map must be integers"));
    };
    let dtype = match c.text("cast_to", "TO_FLOAT")? {
        "TO_FLOAT" => DType::F32,
        "TO_INT64" => DType::I64,
        other => return Err(unsupported(format!("maps are not cast {other:?}"))),
    };
    let output_keys: Vec<i64> = match c.text("map_form", "DENSE")? {
        "DENSE" => keys
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
        "SPARSE" => {
            let size = c.int("max_map", 1)?;
            if !(1..=MAX_COLUMNS).contains(&size) {
                return Err(invalid(format!(
                    "max_map must be from 1 to {MAX_COLUMNS}, not {size}"
                )));
            }
            (0..size).collect()
        }
        other => return Err(invalid(format!("there is no map_form {other:?}"))),
    };
    single(columns_at(maps, source_positions(&output_keys, keys)).to_dtype(dtype))
}

/// Maps texts to integers, or integers to texts.
fn category_mapper(c: &Call) -> Results {
    let integers = c.ints("cats_int64s")?.unwrap_or_default();
    let texts = c.texts("cats_strings")?.unwrap_or_default();
    if integers.len() != texts.len() {
        return Err(invalid(format!(
            "{} integers and {} texts do not form pairs",
            integers.len(),
            texts.len()
        )));
    }
    if let Value::Tensor(x) = c.value(0)? {
        let index = positions_among(&x.tensor(), &Tensor::from(integers));
        let default = c.text("default_string", "_Unused")?.to_string();
        return Ok(vec![choose_texts(index, default, texts)]);
    }
    let default = c.int("default_int64", -1)?;
    let values: Vec<i64> = [default].into_iter().chain(integers).collect();
    single(Tensor::from(values).take(text_positions_among(c, &texts)?))
}

/// A 1 at the position of each element among categories, which become a last dim.
fn one_hot(c: &Call) -> Results {
    let texts = c.texts("cats_strings")?.unwrap_or_default();
    let integers = c.ints("cats_int64s")?.unwrap_or_default();
    let (index, count) = match texts.is_empty() {
        true => {
            let x = c.tensor(0)?.to_dtype(DType::I64);
            (
                positions_among(&x, &Tensor::from(integers.clone())),
                integers.len(),
            )
        }
        false => (text_positions_among(c, &texts)?, texts.len()),
    };
    let count = count as i64;
    single(
        index
            .one_hot(count + 1)
            .narrow(-1, 1, count)
            .to_dtype(DType::F32),
    )
}

/// Puts values in place of those that are missing: NaN, or one that an attribute names.
fn imputer(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let (values, is_missing) = match x.dtype().is_float() {
        true => {
            let missing = c.float("replaced_value_float", 0.0)?;
            let is_missing = if missing.is_nan() {
                x.isnan()
            } else {
                x.eq(missing)
            };
            (Tensor::from(floats(c, "imputed_value_floats")?), is_missing)
        }
        false => {
            let values = c.ints("imputed_value_int64s")?.unwrap_or_default();
            (
                Tensor::from(values),
                x.eq(c.int("replaced_value_int64", 0)?),
            )
        }
    };
    single(values.to_dtype(x.dtype()).where_cond(is_missing, x))
}
