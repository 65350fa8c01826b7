//! The gradient of a value of which many slices are read, such as the parts of `unbind`.
//!
//! The derivative of a slice pads its cotangent with zeros, and a sum of thousands of pads would be quadratic. The
//! cotangents of slices that don't overlap are concatenated instead.

use crate::{BackwardStep, Rule};
use kiln_base::Dim;
use kiln_ir::ops::{Concat, SliceAxis};
use kiln_ir::{Builder, Op, OpError};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The number of slices from which on their cotangents are concatenated. The rule `pads_side_by_side` serves fewer.
const MIN_SLICES: usize = 33;

/// A slice along one axis, and its cotangent.
struct Piece<V> {
    /// The output of the step that is sliced, and its value.
    output: u32,
    source: V,
    axis: usize,
    start: i64,
    end: i64,
    cotangent: V,
}

/// The slices of the steps of which many are read, by step.
pub(crate) struct Slices<V>(HashMap<usize, Vec<Piece<V>>>);

impl<V: Clone> Slices<V> {
    /// Returns the slices of a program, without cotangents.
    pub fn new(steps: &[BackwardStep<'_, V>]) -> Slices<V> {
        let mut counts: HashMap<usize, usize> = HashMap::new();
        for step in steps {
            if let (Rule::Op(Op::Slice(_)), Some((_, Some(x)))) = (&step.rule, step.inputs.first())
            {
                *counts.entry(x.0).or_default() += 1;
            }
        }
        let often_sliced = counts.into_iter().filter(|(_, count)| *count >= MIN_SLICES);
        Slices(often_sliced.map(|(step, _)| (step, Vec::new())).collect())
    }

    /// Keeps the cotangent of a step if it is one of many slices along one axis with known sizes. Returns true if kept.
    pub fn keep<B: Builder<Value = V>>(
        &mut self,
        b: &B,
        step: &BackwardStep<'_, V>,
        cotangents: &[Option<V>],
    ) -> bool {
        let mut keep = || {
            let Rule::Op(Op::Slice(slice)) = &step.rule else {
                return None;
            };
            let (x, producer) = step.inputs.first()?;
            let (step_index, output) = (*producer)?;
            let pieces = self.0.get_mut(&step_index)?;
            let extents = b.fact(x).shape;
            let parts = slice.axes.iter().zip(&extents).enumerate();
            let mut parts = parts.filter(|(_, (part, extent))| **part != SliceAxis::all(extent));
            let (axis, (part, _)) = parts.next()?;
            let (start, len) = (part.start.as_const()?, part.len.as_const()?);
            if part.step != 1 || len == 0 || parts.next().is_some() {
                return None;
            }
            pieces.push(Piece {
                output,
                source: x.clone(),
                axis,
                start,
                end: start + len,
                cotangent: cotangents.first()?.clone()?,
            });
            Some(())
        };
        keep().is_some()
    }

    /// Returns the gradients of a step's outputs from its slices. An output has several where slices overlap.
    pub fn gradients<B: Builder<Value = V>>(
        &mut self,
        b: &mut B,
        step: usize,
    ) -> Result<Vec<(u32, V)>, OpError> {
        let mut pieces = self.0.remove(&step).unwrap_or_default();
        pieces.sort_by_key(|p| (p.output, p.axis, p.start));
        let mut gradients = Vec::new();
        for same_axis in pieces.chunk_by(|p, q| (p.output, p.axis) == (q.output, q.axis)) {
            for layer in layers(same_axis) {
                gradients.push((same_axis[0].output, concatenate(b, &layer)?));
            }
        }
        Ok(gradients)
    }
}

/// Distributes pieces, sorted by their start, over lists without overlaps.
fn layers<V>(pieces: &[Piece<V>]) -> Vec<Vec<&Piece<V>>> {
    let mut layers: Vec<Vec<&Piece<V>>> = Vec::new();
    let mut ends: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    for piece in pieces {
        let free = ends.peek().filter(|Reverse((end, _))| *end <= piece.start);
        let layer = match free.copied() {
            Some(Reverse((_, layer))) => {
                ends.pop();
                layer
            }
            None => {
                layers.push(Vec::new());
                layers.len() - 1
            }
        };
        layers[layer].push(piece);
        ends.push(Reverse((piece.end, layer)));
    }
    layers
}

/// Concatenates the cotangents, with zeros between them.
fn concatenate<B: Builder>(b: &mut B, pieces: &[&Piece<B::Value>]) -> Result<B::Value, OpError> {
    let (source, axis) = (b.fact(&pieces[0].source), pieces[0].axis);
    let mut zeros: HashMap<Dim, B::Value> = HashMap::new();
    let mut pieces_out = Vec::with_capacity(pieces.len());
    let mut fill = |b: &mut B, pieces_out: &mut Vec<B::Value>, len: Dim| {
        if len.is(0) {
            return Ok(());
        }
        let gap = match zeros.get(&len) {
            Some(gap) => gap.clone(),
            None => {
                let mut shape = source.shape.clone();
                shape[axis] = len.clone();
                let gap = b.full(0.0, source.dtype, &shape)?;
                zeros.insert(len, gap.clone());
                gap
            }
        };
        pieces_out.push(gap);
        Ok(())
    };
    let mut end = 0;
    for piece in pieces {
        fill(b, &mut pieces_out, Dim::Const(piece.start - end))?;
        pieces_out.push(piece.cotangent.clone());
        end = piece.end;
    }
    fill(b, &mut pieces_out, &source.shape[axis] - &Dim::Const(end))?;
    match &pieces_out[..] {
        [only] => Ok(only.clone()),
        _ => b.op(Concat { axis }, &pieces_out),
    }
}
