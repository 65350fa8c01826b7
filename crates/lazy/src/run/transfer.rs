//! Moving values between devices.

use super::outcome;
use super::read::realize_at;
use crate::grad::edge::{CustomRule, Edge, GradNode};
use crate::grad::is_grad_enabled;
use crate::node::Handle;
use crate::{Device, Error, ErrorKind, Result, body};
use kiln_ir::{OpError, Role};
use kiln_runtime::Error as RunError;
use std::panic::Location;
use std::sync::Arc;

/// A value on another device, computed on its own device and copied. Gradients flow back.
///
/// # Errors
/// If it can't be computed, the device fails, or inside `scan` and `cond` the gradient would be lost.
pub fn to(x: &Handle, device: Device, loc: &'static Location<'static>) -> Result<Handle> {
    if x.node.device == Some(device) {
        return Ok(x.clone());
    }
    let flows = x.requires_grad() && is_grad_enabled() && x.dtype().is_float();
    if flows && body::may_flow() {
        let text = "the gradient of a copy is lost inside scan and cond; move the tensor outside";
        return Err(Error::new(ErrorKind::Op, "to", text, loc));
    }
    let mut moved = copied(x, device, loc)?;
    if flows {
        let back = x.device();
        let rule: Arc<CustomRule> = Arc::new(move |_, _, cotangents, _| {
            let moved = cotangents.iter().map(|g| match g {
                // A value that depends on no data can be computed anywhere.
                Some(g) if g.node.device.is_some() => to(g, back, loc).map(Some),
                g => Ok(g.clone()),
            });
            let moved: Result<Vec<_>> = moved.collect();
            moved.map_err(|e| OpError(e.in_one_line()))
        });
        let node = GradNode::called_at(&moved.node, Some(rule), &[x], ("to", loc));
        moved.edge = Edge::Node(node, 0);
    }
    Ok(moved)
}

/// A leaf of the same values.
fn copied(x: &Handle, device: Device, loc: &'static Location<'static>) -> Result<Handle> {
    if !x.is_realized() {
        realize_at(&[x], loc)?;
    }
    let lost = || Error::new(ErrorKind::Internal, "to", "the value is gone", loc);
    let buffer = x.node.ready(x.output).ok_or_else(lost)?;
    outcome::settle(&buffer)?;
    let buffer = device.bring(buffer).map_err(|e| {
        let kind = match e {
            RunError::OutOfMemory { .. } => ErrorKind::Memory,
            _ => ErrorKind::Device,
        };
        Error::new(kind, "to", e.to_string(), loc)
    })?;
    Ok(Handle::leaf(buffer, Role::Data, Some(device), loc, "to"))
}
