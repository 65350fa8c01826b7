//! Parsing of an op from its name, its attributes and its facts.

use crate::text::attributes::{Cast, Constant, Custom, Full, Input, Loop, Random, options};
use crate::{Fact, Graph, Op, Pw, ops};
use serde::Deserialize;
use std::sync::Arc;

/// The op of this name with attributes in parentheses (or none) whose first output has this fact.
pub(super) fn op(
    name: &str,
    attributes: &str,
    fact: Option<&Fact>,
    bodies: Vec<Graph>,
) -> Result<Op, String> {
    let fact = || fact.cloned().ok_or("the op needs an output".to_string());
    let attributes = if attributes.is_empty() {
        "()"
    } else {
        attributes
    };
    if !matches!(name, "if" | "loop") && !bodies.is_empty() {
        return Err(format!("{name} has no bodies"));
    }
    if let Some(row) = Pw::from_name(name) {
        return no_attributes(name, attributes).map(|()| ops::Pointwise(row).into());
    }
    Ok(match name {
        "cast" => {
            let Cast { is_step } = read(attributes)?;
            let dtype = fact()?.dtype;
            ops::Cast { dtype, is_step }.into()
        }
        "broadcast" => {
            no_attributes(name, attributes)?;
            let shape = fact()?.shape;
            ops::Broadcast { shape }.into()
        }
        "reshape" => {
            no_attributes(name, attributes)?;
            let shape = fact()?.shape;
            ops::Reshape { shape }.into()
        }
        "iota" => {
            no_attributes(name, attributes)?;
            let len = fact()?.shape.first().cloned();
            let len = len.ok_or("iota gives a vector")?;
            ops::Iota { len }.into()
        }
        "input" => {
            let Input { index, role } = read(attributes)?;
            let fact = fact()?;
            ops::Input { index, fact, role }.into()
        }
        "full" => {
            let Full { value } = read(attributes)?;
            let Fact { dtype, shape } = fact()?;
            ops::Full {
                value,
                dtype,
                shape,
            }
            .into()
        }
        "constant" => constant(read(attributes)?, &fact()?)?.into(),
        "random" => {
            let Random { kind } = read(attributes)?;
            let Fact { dtype, shape } = fact()?;
            ops::Random { kind, dtype, shape }.into()
        }
        "custom" => {
            let Custom { name } = read(attributes)?;
            let output = fact()?;
            ops::Custom { name, output }.into()
        }
        "if" => {
            no_attributes(name, attributes)?;
            let branches: [Graph; 2] = bodies
                .try_into()
                .map_err(|_| "if needs two bodies".to_string())?;
            let branches = branches.map(Arc::new);
            ops::If { branches }.into()
        }
        "loop" => {
            let attributes_of: Loop = read(attributes)?;
            let [body]: [Graph; 1] = bodies
                .try_into()
                .map_err(|_| "loop needs one body".to_string())?;
            ops::Loop {
                trips: attributes_of.trips,
                carried: attributes_of.carried.unwrap_or(body.outputs.len()),
                scanned: attributes_of.scanned,
                reverse: attributes_of.reverse,
                conditional: attributes_of.conditional,
                body: Arc::new(body),
            }
            .into()
        }
        _ => {
            // `arg_reduce` is the variant `ArgReduce`.
            let joined = name.replace('_', "");
            let variant = Op::VARIANTS
                .iter()
                .find(|v| v.eq_ignore_ascii_case(&joined))
                .ok_or_else(|| format!("there is no op {name}"))?;
            let op: Op = read(&format!("{variant}{attributes}"))?;
            if op.name() != name {
                return Err(format!("there is no op {name}"));
            }
            op
        }
    })
}

fn no_attributes(name: &str, attributes: &str) -> Result<(), String> {
    match attributes {
        "()" => Ok(()),
        _ => Err(format!("{name} has no attributes")),
    }
}

fn constant(text: Constant, fact: &Fact) -> Result<ops::Constant, String> {
    let digits = text.hex.as_bytes();
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?))
        .collect();
    let shape: Option<Vec<usize>> = fact
        .shape
        .iter()
        .map(|d| usize::try_from(d.as_const()?).ok())
        .collect();
    match (bytes, shape) {
        (Some(bytes), Some(shape)) if rest.is_empty() => Ok(ops::Constant {
            dtype: fact.dtype,
            shape,
            bytes: bytes.into(),
        }),
        (_, None) => Err(format!("a constant can't be {fact}")),
        _ => Err("hex must be pairs of hexadecimal digits".into()),
    }
}

/// Reads the output of `attributes::write`.
pub(super) fn read<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, String> {
    options().from_str(text).map_err(|e| e.code.to_string())
}
