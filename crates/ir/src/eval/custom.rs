use super::{Array, Context, Data, Problem};
use crate::ops::Custom;
use kiln_base::custom::{ArrayView, ArrayViewMut, find};

/// The user's kernel, the same one that the engines run.
pub(super) fn eval(op: &Custom, x: &[&Array], cx: &Context) -> Result<Data, Problem> {
    let failed = |text: String| Problem::Custom {
        name: op.name.to_string(),
        text,
    };
    let kernels = find(&op.name).map_err(failed)?;
    let mut memory: Vec<Memory> = x.iter().map(|a| Memory::new(&a.to_bytes())).collect();
    let inputs = x.iter().zip(&mut memory);
    let inputs: Vec<ArrayView<'_>> = inputs
        .map(|(a, m)| ArrayView::new(a.dtype(), a.shape(), m.bytes()))
        .collect();
    let len = cx.shape.iter().product::<usize>() * cx.dtype.size();
    let mut out = Memory::new(&vec![0; len]);
    let mut view = ArrayViewMut::new(cx.dtype, &cx.shape, out.bytes());
    kernels.run(&inputs, &mut view).map_err(failed)?;
    let array = Array::from_bytes(cx.dtype, &cx.shape, out.bytes());
    Ok(array.map_err(|e| failed(e.to_string()))?.data().clone())
}

/// Bytes that begin at a multiple of eight.
struct Memory {
    padded: Vec<u8>,
    len: usize,
}

impl Memory {
    fn new(bytes: &[u8]) -> Memory {
        let len = bytes.len();
        let mut memory = Memory {
            padded: vec![0; len + 8],
            len,
        };
        memory.bytes().copy_from_slice(bytes);
        memory
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.padded.as_ptr().align_offset(8);
        &mut self.padded[start..start + self.len]
    }
}
