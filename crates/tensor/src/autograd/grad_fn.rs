//! Inspecting the graph of gradients.

use crate::Tensor;
use kiln_base::Loc;
use kiln_lazy::grad::edge::{Edge, GradNode, Leaf};
use std::fmt;
use std::sync::Arc;

/// A step of the backward pass (PyTorch's `grad_fn`): the operation whose derivative it computes, or a leaf that
/// keeps its gradient. See [`Tensor::grad_fn`].
#[derive(Clone)]
pub struct GradFn(Target);

#[derive(Clone)]
enum Target {
    Node(Arc<GradNode>),
    Leaf(Arc<Leaf>),
}

impl GradFn {
    fn from_edge(edge: &Edge) -> Option<GradFn> {
        match edge {
            Edge::None => None,
            Edge::Node(node, _) => Some(GradFn(Target::Node(node.clone()))),
            Edge::Leaf(leaf) => Some(GradFn(Target::Leaf(leaf.clone()))),
        }
    }

    /// The function that the user called, such as `matmul`; `AccumulateGrad` of a leaf.
    pub fn name(&self) -> &'static str {
        match &self.0 {
            Target::Node(node) => node.called,
            Target::Leaf(_) => "AccumulateGrad",
        }
    }

    /// The line of the call; `None` for a leaf.
    pub fn loc(&self) -> Option<Loc> {
        match &self.0 {
            Target::Node(node) => Some(Loc::from(node.loc)),
            Target::Leaf(_) => None,
        }
    }

    /// The name of the parameter that keeps the gradient, if it has one.
    pub fn parameter(&self) -> Option<Arc<str>> {
        match &self.0 {
            Target::Node(_) => None,
            Target::Leaf(leaf) => leaf.label.get(),
        }
    }

    /// The steps that the gradients of the operands go to, in order; `None` for an operand without gradient. Empty
    /// once a backward pass has released the values that the derivative needs.
    pub fn next_functions(&self) -> Vec<Option<GradFn>> {
        match &self.0 {
            Target::Node(node) => node.saved().map_or(Vec::new(), |saved| {
                let edges = saved.inputs.iter().map(|(_, edge)| edge);
                edges.map(GradFn::from_edge).collect()
            }),
            Target::Leaf(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for GradFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.loc(), self.parameter()) {
            (Some(loc), _) => write!(f, "{} at {loc}", self.name()),
            (None, Some(name)) => write!(f, "{} of {name}", self.name()),
            (None, None) => f.write_str(self.name()),
        }
    }
}

impl Tensor {
    /// The operation whose derivative a backward pass from here begins with. `None` for leaves, and for tensors that
    /// were not computed from tensors that require gradients.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let w = Tensor::ones([2, 2], DType::F32).requires_grad_(true);
    /// let y = (Tensor::ones([3, 2], DType::F32).matmul(&w)).relu();
    /// let relu = y.grad_fn().unwrap();
    /// let product = relu.next_functions()[0].clone().unwrap();
    /// assert_eq!((relu.name(), product.name()), ("relu", "matmul"));
    /// let [data, weight] = &product.next_functions()[..] else { panic!("two operands") };
    /// assert!(data.is_none());
    /// assert_eq!(weight.as_ref().unwrap().name(), "AccumulateGrad");
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn grad_fn(&self) -> Option<GradFn> {
        let function = GradFn::from_edge(&self.handle.edge);
        function.filter(|f| matches!(f.0, Target::Node(_)))
    }
}
