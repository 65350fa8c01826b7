//! Shapes, views and joins.

use super::rows;
use kiln_tensor::{
    Device, Diagonal, Dim, PadSequence, Result, Strided, Tensor, Window, block_diag, cat,
    column_stack, dstack, hstack, pad_sequence, pad_sequence_with, stack, vstack,
};

rows! {
    (x: &Tensor, y: &Tensor, dim: i64, sizes: &[Dim]);
    "Tensor.shape" = { x.shape()? } "an error if the tensor carries one";
    "Tensor.shape with symbolic sizes" = { x.dims() } "inside `compile`";
    "Tensor.size" = { x.size::<4>()? } "`let [n, c, h, w] = x.size()?`";
    "Tensor.ndim", "Tensor.dim" = { x.ndim() };
    "Tensor.numel", "torch.numel" = { x.numel()? };
    "Tensor.dtype" = { x.dtype() };
    "Tensor.device" = { x.device() };
    "Tensor.to(device)", "Tensor.cuda", "Tensor.cpu" = { x.to(Device::cuda(0)?) } "`Device::best()` is the first GPU, else the CPU";
    "Tensor.stride" = { x.stride()? };
    "Tensor.is_contiguous" = { x.is_contiguous() };
    "Tensor.contiguous" = { x.contiguous() } "costs nothing; it makes `view` accept the shape";
    "torch.reshape", "Tensor.reshape" = { x.reshape([-1, 8]) };
    "Tensor.view" = { x.view([-1, 8]) } "the error where PyTorch would have to copy";
    "Tensor.view_as", "Tensor.reshape_as" = { x.view_as(y) };
    "torch.reshape with symbolic sizes" = { x.reshape(sizes) } "inside `compile`";
    "Tensor.expand" = { x.expand([4, -1]) };
    "torch.broadcast_to" = { x.broadcast_to([4, 3]) };
    "Tensor.expand_as" = { x.expand_as(y) };
    "torch.permute" = { x.permute([2, 0, 1]) };
    "torch.transpose", "torch.swapaxes", "torch.swapdims" = { x.transpose(0, 1) };
    "torch.t", "Tensor.T" = { x.t() };
    "Tensor.mT" = { x.transpose(-2, -1) };
    "torch.movedim", "torch.moveaxis" = { x.movedim(0, -1) };
    "torch.squeeze" = { x.squeeze_all() };
    "torch.squeeze(dim=)" = { x.squeeze([0, 2]) };
    "torch.unsqueeze" = { x.unsqueeze(0) };
    "torch.flatten" = { x.flatten(1) };
    "torch.ravel" = { x.flatten(()) };
    "torch.unflatten" = { x.unflatten(dim, [2, -1]) };
    "torch.atleast_1d" = { x.atleast_1d() };
    "torch.atleast_2d" = { x.atleast_2d() };
    "torch.atleast_3d" = { x.atleast_3d() };
    "torch.as_strided" = { x.as_strided(Strided::new([3, 2]).stride([2, 1])) } "walks the elements in row-major order; a copy";
    "Tensor.unfold" = { x.unfold(dim, Window::new(3).step(2)) } "`x.unfold(dim, 3)` has a step of 1";
    "torch.cat", "torch.concat", "torch.concatenate" = { cat(&[x, y], dim) };
    "torch.stack" = { stack(&[x, y], 0) };
    "torch.nn.utils.rnn.pad_sequence" = { pad_sequence([x, y]) };
    "torch.nn.utils.rnn.pad_sequence(batch_first=, padding_value=)" = { pad_sequence_with([x, y], PadSequence::new().batch_first(true).padding_value(-1.0)) };
    "torch.vstack", "torch.row_stack" = { vstack(&[x, y]) };
    "torch.hstack" = { hstack(&[x, y]) };
    "torch.dstack" = { dstack(&[x, y]) };
    "torch.column_stack" = { column_stack(&[x, y]) };
    "torch.block_diag" = { block_diag(&[x, y]) };
    "torch.split" = { x.split(2, dim) };
    "torch.split with a list", "torch.split_with_sizes" = { x.split_with_sizes([1, 2], dim) };
    "torch.chunk" = { x.chunk(3, dim) };
    "torch.tensor_split" = { x.tensor_split(3, dim) };
    "torch.tensor_split with a list" = { x.tensor_split_at([1, 4], dim) };
    "torch.unbind" = { x.unbind(dim) };
    "Tensor.repeat" = { x.repeat([2, 1]) };
    "torch.tile" = { x.tile([2, 1]) };
    "torch.repeat_interleave" = { x.repeat_interleave(2, dim) } "`()` for the flattened tensor";
    "torch.repeat_interleave with a tensor" = { x.repeat_interleave_each([1, 2, 0], dim) } "the repeats are numbers, not a tensor";
    "torch.flip" = { x.flip([0, 1]) };
    "torch.fliplr" = { x.flip(1) };
    "torch.flipud" = { x.flip(0) };
    "torch.roll" = { x.roll(1, dim) } "`()` for the flattened tensor";
    "torch.fft.fftshift" = { x.roll([2, 3], [0, 1]) } "by half of each dim's size";
    "torch.rot90" = { x.rot90(1, [0, 1]) };
    "torch.tril" = { x.tril() };
    "torch.tril(diagonal=)" = { x.tril_with(1) };
    "torch.triu" = { x.triu() };
    "torch.triu(diagonal=)" = { x.triu_with(1) };
    "torch.diag" = { x.diag() };
    "torch.diag(diagonal=)" = { x.diag_with(1) };
    "torch.diagflat" = { x.flatten(()).diag() };
    "torch.diagonal" = { x.diagonal() };
    "torch.diagonal(offset=, dim1=, dim2=)" = { x.diagonal_with(Diagonal::new().offset(1)) };
    "torch.linalg.diagonal" = { x.diagonal_with(Diagonal::new().dim1(-2).dim2(-1)) };
    "torch.diag_embed" = { x.diag_embed() };
    "torch.diag_embed(offset=, dim1=, dim2=)" = { x.diag_embed_with(Diagonal::new().offset(1).dim1(0).dim2(-1)) };
    "Tensor.refine_names" = { x.refine_names(["N", "C", "..."]) } "names go where a dim's number goes: `x.sum(\"C\")`";
    "Tensor.rename" = { x.rename(["batch", "..."]) };
    "Tensor.rename(None)" = { x.drop_names() };
    "Tensor.names" = { x.names() };
    "Tensor.align_to" = { x.align_to(["C", "..."]) };
    "Tensor.align_as" = { x.align_as(y) };
}
