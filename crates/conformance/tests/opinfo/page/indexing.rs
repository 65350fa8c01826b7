//! Indexing, gathering and scattering.

use super::rows;
use kiln_tensor::{BagMode, Bags, Ellipsis, NewAxis, Result, ScatterReduction, Tensor, step};

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
    "torch.slice_copy" = { x.slice(dim, 1, None, 2) } "`x[1::2]` along a dim";
    "torch.gather" = { x.gather(dim, index) };
    "torch.take_along_dim" = { x.take_along_dim(index, dim) } "`()` for the flattened tensor";
    "torch.take" = { x.take(index) };
    "torch.index_select" = { x.index_select(dim, index) };
    "torch.ops.aten.index" = { x.index(&[None, Some(index)]) } "index tensors by dim; `x.i(..)` is the short form";
    "torch.masked_select" = { x.masked_select(mask) } "computes the mask";
    "torch.masked_fill", "Tensor.masked_fill" = { x.masked_fill(mask, 0.0) };
    "torch.masked_scatter", "Tensor.masked_scatter" = { x.masked_scatter(mask, src) };
    "torch.nonzero" = { x.nonzero() } "computes `x`";
    "torch.nonzero(as_tuple=True)" = { x.nonzero_as_tuple() } "computes `x`";
    "torch.argwhere" = { x.argwhere() } "computes `x`";
    "torch.index_fill", "Tensor.index_fill" = { x.index_fill(dim, index, 0.0) };
    "torch.index_add", "Tensor.index_add" = { x.index_add(dim, index, src, 1) };
    "torch.index_copy", "Tensor.index_copy" = { x.index_copy(dim, index, src) };
    "torch.index_reduce", "Tensor.index_reduce" = { x.index_reduce(dim, index, src, ScatterReduction::Mean, true) };
    "torch.index_put", "Tensor.index_put" = { x.index_put(&[Some(index)], src, false) };
    "torch.put", "Tensor.put" = { x.put(index, src, false) };
    "torch.scatter", "Tensor.scatter" = { x.scatter(dim, index, src) } "the last of equal indices stays; a number as the source, too";
    "torch.scatter_add", "Tensor.scatter_add" = { x.scatter_add(dim, index, src) };
    "torch.scatter_reduce", "Tensor.scatter_reduce" = { x.scatter_reduce(dim, index, src, ScatterReduction::Amax, true) };
    "torch.select_scatter" = { x.select_scatter(src, dim, 0) };
    "torch.slice_scatter" = { x.slice_scatter(src, dim, 1, None, 2) };
    "torch.diagonal_scatter" = { x.diagonal_scatter(src, 0, 0, 1) };
    "torch.nn.functional.embedding" = { weight.embedding(index) } "the weight comes first; `max_norm` is a `renorm` of the weight";
    "torch.nn.functional.embedding_bag" = { weight.embedding_bag(index) };
    "torch.nn.functional.embedding_bag(offsets, mode, …)" = { weight.embedding_bag_with(index, Bags::new().offsets(offsets).mode(BagMode::Sum)) };
    "torch.nn.functional.one_hot" = { index.one_hot(10) } "the number of classes must be given";
}
