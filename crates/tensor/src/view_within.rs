//! The place of a view in the tensor that it is a view of, as files of PyTorch hold it.

use crate::Tensor;
use crate::strides::{contiguous, view_strides};
use kiln_base::Dim;
use kiln_ir::Op;
use kiln_lazy::Handle;
use kiln_lazy::node::{Node, NodeState};

/// A view's offset and strides within the tensor that it is a view of: the element at `i` is number `offset + Σ i · strides`.
pub struct ViewWithin {
    /// The tensor that it is a view of, contiguous.
    pub whole: Tensor,
    /// The number of the view's first element.
    pub offset: usize,
    /// The distance between neighbours along each dim.
    pub strides: Vec<usize>,
}

impl Tensor {
    /// Returns the tensor that this one is a view of, with the view's offset and strides, as PyTorch saves it: the last
    /// tensor of the chain of views that `is_whole` accepts. Values that are computed know of no chain.
    pub fn view_within(&self, is_whole: impl Fn(&Tensor) -> bool) -> Option<ViewWithin> {
        let (mut at, mut views, mut found) = (self.handle.plain(), Vec::new(), None);
        while let Some(operand) = viewed_operand(&at.node) {
            views.push(std::mem::replace(&mut at, operand).node.clone());
            let operand = Tensor::from(at.plain());
            if is_whole(&operand) {
                found = Some((operand, views.len()));
            }
        }
        let (base, count) = found?;
        let mut dims = base.dims();
        let (mut strides, mut offset) = (contiguous(dims), Dim::ZERO);
        for view in views[..count].iter().rev() {
            if let Op::Slice(s) = &view.op {
                let starts = s.axes.iter().zip(&strides);
                offset = starts.fold(offset, |sum, (a, stride)| &sum + &(&a.start * stride));
            }
            let new = &view.facts[0].shape;
            strides = view_strides(&view.op, dims, &strides, new)?;
            dims = new;
        }
        let known = |d: &Dim| d.as_const().and_then(|d| usize::try_from(d).ok());
        Some(ViewWithin {
            offset: known(&offset)?,
            strides: strides.iter().map(known).collect::<Option<_>>()?,
            whole: base,
        })
    }
}

/// The operand of a node that is a view and not computed yet. An expanded tensor is not a view here: it has more
/// elements than its operand.
fn viewed_operand(node: &Node) -> Option<Handle> {
    match (&node.op, &*node.state()) {
        (Op::Permute(_) | Op::Slice(_) | Op::Reshape(_), NodeState::Lazy { inputs, .. }) => {
            let operand = inputs.first()?;
            Some(Handle::output_of(&operand.node, operand.output))
        }
        _ => None,
    }
}
