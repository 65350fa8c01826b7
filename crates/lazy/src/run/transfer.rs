//! Moving values between devices.

use super::outcome;
use super::read::realize_at;
use crate::grad::edge::{CustomRule, Edge, GradNode};
use crate::grad::is_grad_enabled;
use crate::node::{Handle, Node, NodeState, input_op};
use crate::{Device, Error, ErrorKind, Result, body};
use kiln_ir::{Facts, OpError, Role};
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
    let flows = flows(x);
    if flows && body::may_flow() {
        return Err(lost_gradient(loc));
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

/// Values, each on a device: those that are elsewhere are copied. They are computed before, every device in one program,
/// so that several devices compute at the same time; their derivative moves the gradients back in the same way.
///
/// # Errors
/// As [`to`].
pub fn to_each(
    values: &[(&Handle, Device)],
    loc: &'static Location<'static>,
) -> Result<Vec<Handle>> {
    let operands: Vec<&Handle> = values.iter().map(|(x, _)| *x).collect();
    if operands.iter().any(|x| flows(x)) && body::may_flow() {
        return Err(lost_gradient(loc));
    }
    realize_at(&operands, loc)?;
    let moved = values
        .iter()
        .map(|(x, device)| match x.node.device == Some(*device) {
            true => Ok(x.plain()),
            false => copied(x, *device, loc),
        });
    let mut moved = moved.collect::<Result<Vec<Handle>>>()?;
    if !operands.iter().any(|x| flows(x)) {
        return Ok(moved);
    }
    let homes: Vec<Device> = operands.iter().map(|x| x.device()).collect();
    let rule: Arc<CustomRule> = Arc::new(move |_, _, cotangents, _| {
        let mut all = cotangents.to_vec();
        // A value that depends on no data can be computed anywhere.
        let placed = |g: &Option<Handle>| g.as_ref().is_some_and(|g| g.node.device.is_some());
        let at: Vec<usize> = (0..all.len()).filter(|i| placed(&all[*i])).collect();
        let given = at
            .iter()
            .filter_map(|i| Some((cotangents[*i].as_ref()?, homes[*i])));
        let given: Vec<(&Handle, Device)> = given.collect();
        let back = to_each(&given, loc).map_err(|e| OpError(e.in_one_line()))?;
        for (i, g) in at.into_iter().zip(back) {
            all[i] = Some(g);
        }
        Ok(all)
    });
    // One node stands for all results, which have nodes of their own on their devices.
    let buffers = moved
        .iter()
        .filter_map(|t| t.node.ready(t.output))
        .collect();
    let facts: Facts = moved.iter().map(|t| t.fact().clone()).collect();
    let op = input_op(facts[0].clone(), Role::Data);
    let all = Node::new(op, facts, None, loc, "to", NodeState::Ready(buffers));
    let node = GradNode::called_at(&Arc::new(all), Some(rule), &operands, ("to", loc));
    for (i, (t, x)) in moved.iter_mut().zip(&operands).enumerate() {
        if flows(x) {
            t.edge = Edge::Node(node.clone(), i as u32);
        }
    }
    Ok(moved)
}

/// True if a copy passes gradients on.
fn flows(x: &Handle) -> bool {
    x.requires_grad() && is_grad_enabled() && x.dtype().is_float()
}

fn lost_gradient(loc: &'static Location<'static>) -> Error {
    let text = "the gradient of a copy is lost inside scan and cond; move the tensor outside";
    Error::new(ErrorKind::Op, "to", text, loc)
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
