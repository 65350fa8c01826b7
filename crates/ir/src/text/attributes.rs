//! Attributes of ops as RON. What the facts of a node say already is left out.

use crate::{Fact, Graph, Op, Pw, Role, ops};
use kiln_base::prim::RandomKind;
use kiln_base::{Dim, Scalar};
use ron::Options;
use ron::extensions::Extensions;
use ron::ser::PrettyConfig;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
struct Input {
    index: u32,
    role: Role,
}

#[derive(Serialize, Deserialize)]
struct Full {
    value: Scalar,
}

#[derive(Serialize, Deserialize)]
struct Constant {
    /// Two digits a byte.
    hex: String,
}

#[derive(Serialize, Deserialize)]
struct Random {
    kind: RandomKind,
}

#[derive(Serialize, Deserialize)]
struct Custom {
    name: Arc<str>,
}

#[derive(Serialize, Deserialize)]
struct Loop {
    trips: Dim,
    /// All outputs of the body where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    carried: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    scanned: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    reverse: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The attributes in parentheses; empty where there are none.
pub(super) fn print(op: &Op) -> Result<String, ron::Error> {
    let text = match op {
        Op::Pointwise(_) | Op::Cast(_) | Op::Broadcast(_) | Op::Reshape(_) | Op::Iota(_) => {
            return Ok(String::new());
        }
        Op::If(_) => return Ok(String::new()),
        Op::Input(op) => write(&Input {
            index: op.index,
            role: op.role,
        })?,
        Op::Full(op) => write(&Full { value: op.value })?,
        Op::Constant(op) => write(&Constant {
            hex: op.bytes.iter().map(|b| format!("{b:02x}")).collect(),
        })?,
        Op::Random(op) => write(&Random { kind: op.kind })?,
        Op::Custom(op) => write(&Custom {
            name: op.name.clone(),
        })?,
        Op::Loop(op) => write(&Loop {
            trips: op.trips.clone(),
            carried: (op.carried != op.body.outputs.len()).then_some(op.carried),
            scanned: op.scanned,
            reverse: op.reverse,
        })?,
        op => write(op)?,
    };
    // A variant's name stands in front of the attributes.
    let from = text.find('(').unwrap_or(text.len());
    Ok(match &text[from..] {
        "()" => String::new(),
        attributes => attributes.to_string(),
    })
}

/// The op of this name with attributes in parentheses (or none) whose first output has this fact.
pub(super) fn parse(
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
        "cast" => no_attributes(name, attributes)
            .and(Ok(ops::Cast {
                dtype: fact()?.dtype,
            }))?
            .into(),
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
            let from: Loop = read(attributes)?;
            let [body]: [Graph; 1] = bodies
                .try_into()
                .map_err(|_| "loop needs one body".to_string())?;
            ops::Loop {
                trips: from.trips,
                carried: from.carried.unwrap_or(body.outputs.len()),
                scanned: from.scanned,
                reverse: from.reverse,
                body: Arc::new(body),
            }
            .into()
        }
        _ => {
            // `arg_reduce` is the variant `ArgReduce`.
            let plain = name.replace('_', "");
            let variant = Op::VARIANTS
                .iter()
                .find(|v| v.eq_ignore_ascii_case(&plain))
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

fn options() -> Options {
    Options::default().with_default_extension(Extensions::UNWRAP_VARIANT_NEWTYPES)
}

/// RON on one line.
pub(super) fn write<T: Serialize>(value: &T) -> Result<String, ron::Error> {
    let config = PrettyConfig::new()
        .compact_arrays(true)
        .compact_structs(true)
        .compact_maps(true);
    options().to_string_pretty(value, config)
}

/// What [`write`] printed.
pub(super) fn read<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, String> {
    options().from_str(text).map_err(|e| e.code.to_string())
}
