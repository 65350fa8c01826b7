//! Attributes of ops as RON, without those that follow from the facts of a node.

use crate::{Op, Role};
use kiln_base::prim::RandomKind;
use kiln_base::{Dim, Scalar};
use ron::Options;
use ron::extensions::Extensions;
use ron::ser::PrettyConfig;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
pub(super) struct Input {
    pub(super) index: u32,
    pub(super) role: Role,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Full {
    pub(super) value: Scalar,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cast {
    #[serde(default)]
    pub(super) is_step: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Constant {
    /// Two hexadecimal digits a byte.
    pub(super) hex: String,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Random {
    pub(super) kind: RandomKind,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Custom {
    pub(super) name: Arc<str>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Loop {
    pub(super) trips: Dim,
    /// `None` if all outputs of the body are carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) carried: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) scanned: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) reverse: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) conditional: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The attributes in parentheses; empty where there are none.
pub(super) fn print(op: &Op) -> Result<String, ron::Error> {
    let text = match op {
        Op::Cast(op) if op.is_step => write(&Cast {
            is_step: op.is_step,
        })?,
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
            conditional: op.conditional,
        })?,
        op => write(op)?,
    };
    // A variant's name precedes the attributes.
    let from = text.find('(').unwrap_or(text.len());
    Ok(match &text[from..] {
        "()" => String::new(),
        attributes => attributes.to_string(),
    })
}

pub(super) fn options() -> Options {
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
