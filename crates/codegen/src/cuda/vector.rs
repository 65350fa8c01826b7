//! Neighbouring points of a thread, and the accesses that read or write several at once.

use crate::kir::{Access, Dynamic, Expr, Kernel};
use kiln_base::Dim;

/// Points that one thread takes along an axis, and the accesses that take them as one vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vector {
    /// The axis: a position among `axes` and `inner` together.
    pub axis: usize,
    /// The number of points; the extent of the axis is a multiple of it.
    pub width: u32,
    /// For each access, true if it is one vector.
    pub whole: Vec<bool>,
    /// For each value, true if it depends on the axis.
    pub varies: Vec<bool>,
}

/// The movement of an access along the axis.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Movement {
    /// Not at all.
    Still,
    /// From one aligned vector to the next.
    Whole,
    /// Through neighbouring elements.
    Near,
    /// In strides.
    Far,
}

impl Vector {
    /// Returns a vector of one point.
    pub fn scalar(kernel: &Kernel) -> Vector {
        let axes = kernel.axes.len() + kernel.inner.len();
        Vector {
            axis: axes.saturating_sub(1),
            width: 1,
            whole: vec![false; kernel.accesses.len()],
            varies: vec![false; kernel.body.len()],
        }
    }

    /// Returns a vector of as many points along an axis as fill 16 bytes, as far as the extents and strides allow.
    pub fn along(kernel: &Kernel, axis: usize) -> Vector {
        let size = |a: &Access| kernel.args[a.arg as usize].dtype.size() as u32;
        let moving = kernel.accesses.iter().filter(|a| !a.strides[axis].is(0));
        let Some(largest) = moving.map(size).max() else {
            return Vector::scalar(kernel);
        };
        let mut width = (16 / largest).clamp(2, 8);
        while width > 1 {
            if let Some(v) = Vector::of_width(kernel, axis, width) {
                return v;
            }
            width /= 2;
        }
        Vector::scalar(kernel)
    }

    /// Returns a vector of `width` points along an axis, if extents and strides allow it.
    pub fn of_width(kernel: &Kernel, axis: usize, width: u32) -> Option<Vector> {
        let outer = kernel.axes.len();
        let extent = match axis.checked_sub(outer) {
            None => &kernel.axes[axis],
            Some(i) => &kernel.inner[i],
        };
        if !divides(extent, width) {
            return None;
        }
        let varies = varies_along(kernel, axis);
        let mut candidates: Vec<Movement> = (kernel.accesses.iter())
            .map(|a| movement(kernel, a, axis, width))
            .collect();
        for def in &kernel.body {
            if let Expr::LoadAt { access, dynamic } = &def.expr {
                let steady = |d: &Dynamic| !varies[d.index.index()] && divides(&d.stride, width);
                let movement = &mut candidates[*access as usize];
                if *movement == Movement::Whole && !dynamic.iter().all(steady) {
                    *movement = Movement::Near;
                }
            }
        }
        let useful = candidates.contains(&Movement::Whole) && !candidates.contains(&Movement::Far);
        useful.then(|| Vector {
            axis,
            width,
            whole: candidates.iter().map(|w| *w == Movement::Whole).collect(),
            varies,
        })
    }
}

fn divides(d: &Dim, by: u32) -> bool {
    d.div_exact(&Dim::from(i64::from(by))).is_ok()
}

fn movement(kernel: &Kernel, a: &Access, axis: usize, width: u32) -> Movement {
    let stride = &a.strides[axis];
    let bounded = a.bounds.iter().any(|b| !b.strides[axis].is(0));
    match stride.as_const() {
        Some(0) if !bounded => return Movement::Still,
        Some(-2..=2) => {}
        _ => return Movement::Far,
    }
    let size = kernel.args[a.arg as usize].dtype.size() as u32;
    let aligned = (16 / size).min(width);
    let others = a.strides.iter().enumerate().filter(|(i, _)| *i != axis);
    let whole = stride.is(1)
        && !bounded
        && divides(&a.offset, aligned)
        && others.map(|o| o.1).all(|s| divides(s, aligned));
    if whole {
        Movement::Whole
    } else {
        Movement::Near
    }
}

/// For each value, true if it depends on the index of an axis.
fn varies_along(kernel: &Kernel, axis: usize) -> Vec<bool> {
    let moves = |strides: &[Dim]| !strides[axis].is(0);
    let access = |a: u16| {
        let a = &kernel.accesses[a as usize];
        moves(&a.strides) || a.bounds.iter().any(|b| moves(&b.strides))
    };
    let mut varies: Vec<bool> = Vec::with_capacity(kernel.body.len());
    for def in &kernel.body {
        let mut v = match &def.expr {
            Expr::Load { access: a } | Expr::LoadAt { access: a, .. } => access(*a),
            Expr::Index { strides, .. } => moves(strides),
            _ => false,
        };
        if !def.expr.is_reduction() || axis < kernel.axes.len() {
            def.expr.operands(|o| v |= varies[o.index()]);
        }
        varies.push(v);
    }
    varies
}
