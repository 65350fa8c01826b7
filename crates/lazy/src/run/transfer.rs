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

/// Computes a value on its device, and copies it to another. Gradients flow back.
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
    let mut copy = copy_to(x, device, loc)?;
    if flows {
        let source = x.device();
        let rule: Arc<CustomRule> = Arc::new(move |_, _, cotangents, _| {
            let copy = cotangents.iter().map(|g| match g {
                // A value that depends on no data can be computed anywhere.
                Some(g) if g.node.device.is_some() => to(g, source, loc).map(Some),
                g => Ok(g.clone()),
            });
            let copy: Result<Vec<_>> = copy.collect();
            copy.map_err(|e| OpError(e.in_one_line()))
        });
        let node = GradNode::with_caller(&copy.node, Some(rule), &[x], ("to", loc));
        copy.edge = Edge::Node(node, 0);
    }
    Ok(copy)
}

/// Moves values to devices. They are computed first, in one program for each device, and devices compute concurrently.
/// The derivative moves the gradients back likewise.
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
    let copies = values
        .iter()
        .map(|(x, device)| match x.node.device == Some(*device) {
            true => Ok(x.plain()),
            false => copy_to(x, *device, loc),
        });
    let mut copies = copies.collect::<Result<Vec<Handle>>>()?;
    if !operands.iter().any(|x| flows(x)) {
        return Ok(copies);
    }
    let homes: Vec<Device> = operands.iter().map(|x| x.device()).collect();
    let rule: Arc<CustomRule> = Arc::new(move |_, _, cotangents, _| {
        let mut gradients = cotangents.to_vec();
        // A value that depends on no data can be computed anywhere.
        let has_device = |g: &Option<Handle>| g.as_ref().is_some_and(|g| g.node.device.is_some());
        let on_device: Vec<usize> = (0..gradients.len())
            .filter(|i| has_device(&gradients[*i]))
            .collect();
        let moves = on_device
            .iter()
            .filter_map(|i| Some((cotangents[*i].as_ref()?, homes[*i])));
        let moves: Vec<(&Handle, Device)> = moves.collect();
        let returned = to_each(&moves, loc).map_err(|e| OpError(e.in_one_line()))?;
        for (i, g) in on_device.into_iter().zip(returned) {
            gradients[i] = Some(g);
        }
        Ok(gradients)
    });
    // One node stands for all results, which have nodes of their own on their devices.
    let buffers = copies
        .iter()
        .filter_map(|t| t.node.ready(t.output))
        .collect();
    let facts: Facts = copies.iter().map(|t| t.fact().clone()).collect();
    let op = input_op(facts[0].clone(), Role::Data);
    let gradients = Node::new(op, facts, None, loc, "to", NodeState::Ready(buffers));
    let node = GradNode::with_caller(&Arc::new(gradients), Some(rule), &operands, ("to", loc));
    for (i, (t, x)) in copies.iter_mut().zip(&operands).enumerate() {
        if flows(x) {
            t.edge = Edge::Node(node.clone(), i as u32);
        }
    }
    Ok(copies)
}

/// True if a copy passes gradients on.
fn flows(x: &Handle) -> bool {
    x.requires_grad() && is_grad_enabled() && x.dtype().is_float()
}

fn lost_gradient(loc: &'static Location<'static>) -> Error {
    let text = "the gradient of a copy is lost inside scan and cond; move the tensor outside";
    Error::new(ErrorKind::Op, "to", text, loc)
}

/// Returns a leaf with a copy of the values on a device.
fn copy_to(x: &Handle, device: Device, loc: &'static Location<'static>) -> Result<Handle> {
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
