//! Indexing, gathering and scattering.

use super::rows;
use kiln_tensor::{
    BagMode, Bags, Combine, Diagonal, Ellipsis, NewAxis, Put, Result, ScatterReduction, Tensor,
    step,
};

rows! {
    (x: &Tensor, y: &Tensor, src: &Tensor, index: &Tensor, mask: &Tensor, weight: &Tensor, offsets: Option<&Tensor>, dim: i64);
    "Tensor.__getitem__" = { x.i((1..3, -1)) } "`x[1:3, -1]`";
    "Tensor.__getitem__(slice)" = { x.i((.., step(0..10, 2), ..-1)) } "`x[:, 0:10:2, :-1]`; negative steps work, too";
    "Tensor.__getitem__(None, ...)" = { x.i((Ellipsis, NewAxis, 0)) } "`x[..., None, 0]`";
    "Tensor.__getitem__(list)" = { x.i([0, 2]) } "`x[[0, 2]]`";
    "Tensor.__getitem__(tensor)" = { x.i((.., index)) } "`x[:, index]`; a bool tensor is a mask";
    "Tensor.__setitem__" = { x.set((.., 0), y) } "a new tensor: `x = x.set((.., 0), y)` for `x[:, 0] = y`";
    "Tensor.narrow", "torch.narrow" = { x.narrow(dim, 0, 2) };
    "Tensor.select", "torch.select" = { x.select(dim, 0) };
    "torch.slice_copy" = { x.i((.., step(1.., 2))) } "`x[:, 1::2]`";
    "torch.gather" = { x.gather(dim, index) };
    "torch.take_along_dim" = { x.take_along_dim(index, dim) } "`()` for the flattened tensor";
    "torch.take" = { x.take(index) };
    "torch.index_select" = { x.index_select(dim, index) };
    "torch.ops.aten.index" = { x.i((.., index)) };
    "torch.masked_select" = { x.masked_select(mask) } "computes the mask";
    "torch.masked_fill", "Tensor.masked_fill" = { x.masked_fill(mask, 0.0) };
    "torch.masked_scatter", "Tensor.masked_scatter" = { x.masked_scatter(mask, src) };
    "torch.nonzero" = { x.nonzero() } "computes `x`";
    "torch.nonzero(as_tuple=True)" = { x.nonzero_as_tuple() } "computes `x`";
    "torch.argwhere" = { x.argwhere() } "computes `x`";
    "torch.index_fill", "Tensor.index_fill" = { x.index_fill(dim, index, 0.0) };
    "torch.index_add", "Tensor.index_add" = { x.index_add(dim, index, src) };
    "torch.index_add(alpha=)" = { x.index_add_scaled(dim, index, src, 2) };
    "torch.index_copy", "Tensor.index_copy" = { x.index_copy(dim, index, src) };
    "torch.index_reduce", "Tensor.index_reduce" = { x.index_reduce(dim, index, src, ScatterReduction::Mean) } "`Combine` has `include_self`";
    "torch.index_put", "Tensor.index_put" = { x.index_put((.., index), src) } "or `x.set(..)`, which casts";
    "torch.index_put(accumulate=)" = { x.index_put_with((.., index), src, Put::new().accumulate(true)) };
    "torch.put", "Tensor.put" = { x.put(index, src) };
    "torch.put(accumulate=)" = { x.put_with(index, src, Put::new().accumulate(true)) };
    "torch.scatter", "Tensor.scatter" = { x.scatter(dim, index, src) } "the last of equal indices stays; a number as the source, too";
    "torch.scatter_add", "Tensor.scatter_add" = { x.scatter_add(dim, index, src) };
    "torch.scatter_reduce", "Tensor.scatter_reduce" = { x.scatter_reduce(dim, index, src, ScatterReduction::Amax) };
    "torch.scatter_reduce(include_self=)" = { x.scatter_reduce(dim, index, src, Combine::new(ScatterReduction::Amax).include_self(false)) };
    "torch.select_scatter" = { x.select_scatter(src, dim, 0) };
    "torch.slice_scatter" = { x.slice_scatter(src, dim, step(1.., 2)) };
    "torch.diagonal_scatter" = { x.diagonal_scatter(src) };
    "torch.diagonal_scatter(offset=, dim1=, dim2=)" = { x.diagonal_scatter_with(src, Diagonal::new().offset(1)) };
    "torch.nn.functional.embedding" = { weight.embedding(index) } "the weight comes first; `max_norm` is a `renorm` of the weight";
    "torch.nn.functional.embedding_bag" = { weight.embedding_bag(index) };
    "torch.nn.functional.embedding_bag(offsets, mode, …)" = { weight.embedding_bag_with(index, Bags::new().offsets(offsets).mode(BagMode::Sum)) };
    "torch.nn.functional.one_hot" = { index.one_hot(10) } "the number of classes must be given";
}
