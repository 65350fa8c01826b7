//! Operators on text, which are evaluated on the host.

use super::{Record, tfidf};
use crate::call::{Call, Results, single};
use crate::fault::{invalid, unsupported};
use crate::nodes::plain_domain;
use crate::proto::DataType;
use crate::text::Text;
use crate::value::Value;
use crate::{known, tensor};
use kiln_tensor::{DType, Result, Tensor};
use regex_lite::Regex;
use std::collections::HashSet;
use std::sync::Arc;

/// Operators that take text only.
pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "RegexFullMatch" => |c| {
            let x = c.text_input(0)?;
            let pattern = format!("^(?:{})$", c.text("pattern", "")?);
            let regex = Regex::new(&pattern).map_err(|e| invalid(format!("the pattern: {e}")))?;
            let fits: Vec<bool> = x.elements().iter().map(|e| regex.is_match(e)).collect();
            single(Tensor::from_slice(&fits, sizes(&x)))
        },
        "StringConcat" => |c| {
            let (a, b) = broadcast(&c.text_input(0)?, &c.text_input(1)?)?;
            let pairs = a.elements().iter().zip(b.elements());
            Ok(vec![
                Text::new(pairs.map(|(a, b)| format!("{a}{b}")), a.shape())?.into(),
            ])
        },
        "StringNormalizer" => normalize,
        "StringSplit" => split,
        "TfIdfVectorizer" => tfidf::vectorize,
        _ => return None,
    })
}

/// Operators of other kinds, for inputs of which one is text.
pub(super) fn find_for_text(op: &str) -> Option<Record> {
    Some(match op {
        "Cast" => to_numbers,
        "Equal" => |c| {
            let (a, b) = broadcast(&c.text_input(0)?, &c.text_input(1)?)?;
            let pairs = a.elements().iter().zip(b.elements());
            let same: Vec<bool> = pairs.map(|(a, b)| a == b).collect();
            single(Tensor::from_slice(&same, sizes(&a)))
        },
        "Shape" | "Size" => |c| Ok(apply_to_indices(c)?.0),
        "Compress" | "Concat" | "Expand" | "Flatten" | "Gather" | "GatherElements" | "GatherND"
        | "Identity" | "Reshape" | "ScatterElements" | "ScatterND" | "Slice" | "Split"
        | "Squeeze" | "Tile" | "Transpose" | "Unsqueeze" | "Where" => move_texts,
        _ => return None,
    })
}

fn sizes(t: &Text) -> Vec<i64> {
    t.shape().iter().map(|n| *n as i64).collect()
}

/// Applies an operator that only moves elements to their indices.
pub(super) fn move_texts(c: &Call) -> Results {
    let (results, texts) = apply_to_indices(c)?;
    let chosen = |value| match value {
        Value::Tensor(t) => Ok(Value::Chosen(t.tensor(), texts.clone())),
        _ => Err(invalid("gives no tensor")),
    };
    results.into_iter().map(chosen).collect()
}

/// Applies an operator to the indices of texts in a list. Returns the results and the list.
fn apply_to_indices(c: &Call) -> Result<(Vec<Value>, Arc<[String]>)> {
    let mut texts: Vec<String> = Vec::new();
    let mut inputs = Vec::new();
    for input in &c.inputs {
        let base = texts.len() as i64;
        inputs.push(match input {
            Some(Value::Text(t)) => {
                texts.extend_from_slice(t.elements());
                let index = Tensor::arange_dtype(base, texts.len() as i64, 1, DType::I64);
                Some(index.reshape(sizes(t)).into())
            }
            Some(Value::Chosen(index, from)) => {
                texts.extend_from_slice(from);
                Some((index + base).into())
            }
            other => other.clone(),
        });
    }
    let (domain, op) = (plain_domain(c.node.domain()), c.node.op_type());
    let record = super::find(domain, op, c.version)
        .ok_or_else(|| unsupported("there is no such operator"))?;
    Ok((record(&Call { inputs, ..*c })?, texts.into()))
}

/// Expands two texts to their common shape.
fn broadcast(a: &Text, b: &Text) -> Result<(Text, Text)> {
    let shape = known::broadcast(&[a.shape(), b.shape()]).ok_or_else(|| {
        invalid(format!(
            "{:?} and {:?} have no common shape",
            a.shape(),
            b.shape()
        ))
    })?;
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if count.is_none_or(|n| n > MAX_TEXTS) {
        return Err(invalid(format!("text of shape {shape:?} is too large")));
    }
    let expanded = |t: &Text| {
        let positions = known::source_positions(t.shape(), &shape);
        Text::new(positions.map(|i| t.elements()[i].clone()), &shape)
    };
    Ok((expanded(a)?, expanded(b)?))
}

/// The maximum number of elements of text that broadcasting makes.
const MAX_TEXTS: usize = 1 << 24;

/// Casts text to numbers.
fn to_numbers(c: &Call) -> Results {
    let x = c.text_input(0)?;
    let to = c.int("to", 0)?;
    if to == DataType::String as i64 {
        return Ok(vec![x.into()]);
    }
    let dtype = tensor::dtype(to)?;
    let wrong = |text: &str| invalid(format!("{text:?} is not a number"));
    if dtype.is_float() {
        let number = |text: &String| match text.trim() {
            "INF" | "+INF" => Ok(f64::INFINITY),
            "-INF" => Ok(f64::NEG_INFINITY),
            other => other.parse::<f64>().map_err(|_| wrong(text)),
        };
        let numbers: Vec<f64> = x.elements().iter().map(number).collect::<Result<_>>()?;
        return single(Tensor::from_slice(&numbers, sizes(&x)).to_dtype(dtype));
    }
    let number = |text: &String| text.trim().parse::<i64>().map_err(|_| wrong(text));
    let numbers: Vec<i64> = x.elements().iter().map(number).collect::<Result<_>>()?;
    single(Tensor::from_slice(&numbers, sizes(&x)).to_dtype(dtype))
}

/// Casts numbers to text.
pub(super) fn of_numbers(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let shape = x.shape()?;
    let texts: Vec<String> = match x.dtype() {
        DType::F64 => x
            .to_vec::<f64>()?
            .iter()
            .map(|f| format_number(*f, f.to_string()))
            .collect(),
        d if d.is_float() => {
            let list = x.to_dtype(DType::F32).to_vec::<f32>()?;
            list.iter()
                .map(|f| format_number((*f).into(), f.to_string()))
                .collect()
        }
        DType::Bool => {
            let list = x.to_vec::<bool>()?;
            list.iter()
                .map(|b| if *b { "True" } else { "False" }.into())
                .collect()
        }
        DType::U64 => x.to_vec::<u64>()?.iter().map(u64::to_string).collect(),
        _ => {
            let list = x.to_dtype(DType::I64).to_vec::<i64>()?;
            list.iter().map(i64::to_string).collect()
        }
    };
    Ok(vec![Text::new(texts, &shape)?.into()])
}

fn format_number(f: f64, text: String) -> String {
    match f {
        f if f.is_nan() => "NaN".into(),
        f64::INFINITY => "INF".into(),
        f64::NEG_INFINITY => "-INF".into(),
        _ => text,
    }
}

/// Removes elements that are stopwords, and changes the case of letters.
fn normalize(c: &Call) -> Results {
    let x = c.text_input(0)?;
    let action = c.text("case_change_action", "NONE")?;
    let changed = |text: &str| match action {
        "LOWER" => text.to_lowercase(),
        "UPPER" => text.to_uppercase(),
        _ => text.to_string(),
    };
    let rows = match x.shape() {
        [_] => None,
        [1, _] => Some(1),
        shape => return Err(invalid(format!("takes [c] or [1, c], not {shape:?}"))),
    };
    let exact = c.flag("is_case_sensitive", false)?;
    // Without regard to case, words are compared in lower case.
    let key = |text: &str| match exact {
        true => text.to_string(),
        false => text.to_lowercase(),
    };
    let words = c.texts("stopwords")?.unwrap_or_default();
    let words: HashSet<String> = words.iter().map(|w| key(w)).collect();
    let kept = x.elements().iter().filter(|e| !words.contains(&key(e)));
    let mut kept: Vec<String> = kept.map(|e| changed(e)).collect();
    if kept.is_empty() {
        kept.push(String::new());
    }
    let shape: Vec<usize> = rows.into_iter().chain([kept.len()]).collect();
    Ok(vec![Text::new(kept, &shape)?.into()])
}

/// Splits elements into parts, which fill a new last dim.
fn split(c: &Call) -> Results {
    let x = c.text_input(0)?;
    let max_splits = match c.attribute("maxsplit") {
        Some(_) => usize::try_from(c.int("maxsplit", 0)?).unwrap_or(usize::MAX - 1),
        None => usize::MAX - 1,
    };
    let delimiter = c.text("delimiter", "")?;
    let split_text = |text: &String| -> Vec<String> {
        if delimiter.is_empty() {
            return split_words(text, max_splits);
        }
        let pieces = text.splitn(max_splits + 1, delimiter);
        pieces.map(String::from).collect()
    };
    let lists: Vec<Vec<String>> = x.elements().iter().map(split_text).collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    if lists
        .len()
        .checked_mul(longest)
        .is_none_or(|n| n > MAX_TEXTS)
    {
        return Err(invalid(format!(
            "{} texts have {longest} parts",
            lists.len()
        )));
    }
    let counts: Vec<i64> = lists.iter().map(|l| l.len() as i64).collect();
    let mut elements = Vec::new();
    for mut list in lists {
        list.resize(longest, String::new());
        elements.extend(list);
    }
    let shape = [x.shape(), &[longest]].concat();
    Ok(vec![
        Text::new(elements, &shape)?.into(),
        Tensor::from_slice(&counts, sizes(&x)).into(),
    ])
}

/// Returns the words between white space; after `max_words` of them, the rest as it is.
fn split_words(text: &str, max_words: usize) -> Vec<String> {
    let mut words = Vec::new();
    let mut remaining = text.trim();
    while !remaining.is_empty() {
        match remaining.split_once(char::is_whitespace) {
            Some((word, behind)) if words.len() < max_words => {
                words.push(word.to_string());
                remaining = behind.trim_start();
            }
            _ => {
                words.push(remaining.to_string());
                break;
            }
        }
    }
    words
}

/// Elements of text or integers, as keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Text(String),
    Number(i64),
}

/// Returns the keys of an input, and its shape.
pub(super) fn keys(c: &Call, i: usize) -> Result<(Vec<Key>, Vec<usize>)> {
    match c.value(i)? {
        Value::Text(_) | Value::Chosen(..) => {
            let t = c.text_input(i)?;
            let keys = t.elements().iter().cloned().map(Key::Text);
            Ok((keys.collect(), t.shape().to_vec()))
        }
        _ => {
            let x = c.tensor(i)?;
            let list = x.to_dtype(DType::I64).to_vec::<i64>()?;
            Ok((list.into_iter().map(Key::Number).collect(), x.shape()?))
        }
    }
}
