//! Every size that a kernel or a plan is made with. Nothing is left out: patterns here name every field.

use crate::cuda::CudaKernel;
use crate::tile::{Access, Bound, Inst, TileProgram};
use crate::{
    ArgSort, Array, Attention, Conv, ConvRole, Custom, If, Kernel, Loop, MatMul, Matrix, Plan,
    Scan, Scatter, Strided,
};
use kiln_base::Dim;

/// Is called with each size; false ends the walk.
type Visit<'a> = dyn FnMut(&Dim) -> bool + 'a;

impl Plan {
    /// Whether something holds for every size in the plan, those of its kernels and their bodies among them.
    pub fn all_dims(&self, mut holds: impl FnMut(&Dim) -> bool) -> bool {
        plan(self, &mut holds)
    }
}

impl Kernel {
    /// Whether something holds for every size in the kernel, in its programs and bodies: extents, strides,
    /// offsets and numbers that it is called with.
    pub fn all_dims(&self, mut holds: impl FnMut(&Dim) -> bool) -> bool {
        kernel(self, &mut holds)
    }
}

impl Kernel {
    /// The extents whose product is the number of elements of the one result that a library kernel writes, if it
    /// is one.
    pub fn results(&self) -> Option<Vec<&Dim>> {
        Some(match self {
            Kernel::MatMul(p) => p.batch.iter().chain([&p.m, &p.n]).collect(),
            Kernel::Attention(a) => a.batch.iter().chain([&a.length, &a.columns]).collect(),
            Kernel::Conv(c) => match c.role {
                ConvRole::Result => (c.output.iter())
                    .chain([&c.batch, &c.groups, &c.out_channels])
                    .collect(),
                ConvRole::Input => (c.input.iter())
                    .chain([&c.batch, &c.groups, &c.in_channels])
                    .collect(),
                ConvRole::Weight => (c.kernel.iter())
                    .chain([&c.groups, &c.out_channels, &c.in_channels])
                    .collect(),
            },
            Kernel::Scan(s) => vec![&s.outer, &s.len, &s.inner],
            Kernel::ArgSort(s) => vec![&s.lanes, &s.kept],
            Kernel::Scatter(s) => s.shape.iter().collect(),
            Kernel::Custom(c) => c.out.shape.iter().collect(),
            Kernel::Tile(_) | Kernel::Loop(_) | Kernel::If(_) | Kernel::Cuda(_) => return None,
        })
    }
}

fn plan(p: &Plan, v: &mut Visit<'_>) -> bool {
    p.inputs.iter().all(|i| i.shape.iter().all(&mut *v))
        && p.outputs.iter().all(|o| o.shape.iter().all(&mut *v))
        && p.buffers.iter().all(|b| v(&b.len))
        && p.kernels.iter().all(|k| kernel(k, v))
}

fn kernel(k: &Kernel, v: &mut Visit<'_>) -> bool {
    let own = match k {
        Kernel::Tile(_) => true,
        Kernel::MatMul(m) => matmul(m, v),
        Kernel::Conv(c) => conv(c, v),
        Kernel::Attention(a) => attention(a, v),
        Kernel::Scan(s) => {
            let Scan {
                outer, len, inner, ..
            } = s;
            [outer, len, inner].into_iter().all(&mut *v)
        }
        Kernel::ArgSort(s) => {
            let ArgSort {
                lanes, len, kept, ..
            } = s;
            [lanes, len, kept].into_iter().all(&mut *v)
        }
        Kernel::Scatter(s) => scatter(s, v),
        Kernel::Loop(Loop { trips, .. }) => v(trips),
        Kernel::If(If { .. }) => true,
        Kernel::Custom(Custom { operands, out, .. }) => {
            let mut arrays = operands.iter().chain([out]);
            arrays.all(|Array { shape, .. }| shape.iter().all(&mut *v))
        }
        Kernel::Cuda(CudaKernel { scalars, grid, .. }) => {
            scalars.iter().all(&mut *v) && grid.iter().all(|b| v(&b.points))
        }
    };
    own && k.programs().all(|p| program(p, v)) && k.bodies().iter().all(|b| plan(b, v))
}

fn matmul(m: &MatMul, v: &mut Visit<'_>) -> bool {
    let MatMul {
        dtype: _,
        batch,
        m,
        k,
        n,
        lhs,
        rhs,
        out: _,
        prologues: _,
        epilogue: _,
        algorithm: _,
    } = m;
    batch.iter().chain([m, k, n]).all(&mut *v) && matrix(lhs, v) && matrix(rhs, v)
}

fn matrix(x: &Matrix, v: &mut Visit<'_>) -> bool {
    let Matrix {
        arg: _,
        offset,
        batch_strides,
        row,
        col,
    } = x;
    batch_strides.iter().chain([offset, row, col]).all(v)
}

fn conv(c: &Conv, v: &mut Visit<'_>) -> bool {
    let Conv {
        dtype: _,
        role: _,
        batch,
        groups,
        in_channels,
        out_channels,
        input,
        output,
        kernel,
        stride,
        padding,
        dilation,
        operands: _,
        out: _,
        prologue: _,
        epilogue: _,
        algorithm: _,
        images: _,
    } = c;
    let lists = [input, output, kernel, stride, padding, dilation];
    let one = [batch, groups, in_channels, out_channels];
    lists.into_iter().flatten().chain(one).all(v)
}

fn attention(a: &Attention, v: &mut Visit<'_>) -> bool {
    let Attention {
        dtype: _,
        scale: _,
        causal: _,
        batch,
        length,
        keys,
        width,
        columns,
        query,
        key,
        value,
        mask,
        out: _,
        epilogue: _,
    } = a;
    let mask = mask.as_ref().map(|(m, _)| m);
    let one = [length, keys, width, columns];
    batch.iter().chain(one).all(&mut *v)
        && [query, key, value]
            .into_iter()
            .chain(mask)
            .all(|m| matrix(m, v))
}

fn scatter(s: &Scatter, v: &mut Visit<'_>) -> bool {
    let Scatter {
        dtype: _,
        kind: _,
        axis: _,
        shape,
        index_shape,
        x: _,
        index,
        src,
        out: _,
    } = s;
    let mut strided = [index, src].into_iter();
    shape.iter().chain(index_shape).all(&mut *v)
        && strided.all(
            |Strided {
                 offset, strides, ..
             }| v(offset) && strides.iter().all(&mut *v),
        )
}

fn program(p: &TileProgram, v: &mut Visit<'_>) -> bool {
    let TileProgram {
        name: _,
        axes,
        inner,
        serial: _,
        schedule: _,
        cut: _,
        args: _,
        accesses,
        registers: _,
        constants: _,
        slots: _,
        stages,
        sites: _,
    } = p;
    let mut code = stages.iter().flat_map(|s| &s.code);
    axes.iter().chain(inner).all(&mut *v)
        && accesses.iter().all(|a| access(a, v))
        && code.all(|i| inst(i, v))
}

fn access(a: &Access, v: &mut Visit<'_>) -> bool {
    let Access {
        arg: _,
        offset,
        strides,
        bounds,
        fill: _,
    } = a;
    let bound =
        |Bound {
             offset,
             strides,
             extent,
         }: &Bound,
         v: &mut Visit<'_>| { strides.iter().chain([offset, extent]).all(v) };
    strides.iter().chain([offset]).all(&mut *v) && bounds.iter().all(|b| bound(b, v))
}

fn inst(i: &Inst, v: &mut Visit<'_>) -> bool {
    match i {
        Inst::LoadAt { dynamic, .. } => dynamic.iter().all(|d| v(&d.stride) && v(&d.extent)),
        Inst::Index {
            offset, strides, ..
        } => strides.iter().chain([offset]).all(v),
        Inst::Load { .. }
        | Inst::Unary { .. }
        | Inst::Binary { .. }
        | Inst::Select { .. }
        | Inst::Convert { .. }
        | Inst::Random { .. }
        | Inst::Reduce { .. }
        | Inst::ArgReduce { .. }
        | Inst::Keep { .. }
        | Inst::Kept { .. }
        | Inst::Store { .. } => true,
    }
}
