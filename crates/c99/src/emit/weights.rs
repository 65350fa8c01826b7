//! Constant tensors: arrays of C, or a file that is mapped.

use super::dialect::{C99, Dialect, memory};
use super::kernel::View;
use crate::error::{Error, Result};
use kiln_base::{DType, Scalar};
use kiln_plan::memory::ALIGN;
use std::collections::HashMap;
use std::fmt::Write as _;

/// The constant tensors.
#[derive(Default)]
pub(crate) struct WeightTable {
    /// The tensors as programs name them.
    sources: Vec<Tensor>,
    /// The tensors as kernels read them.
    arrays: Vec<Tensor>,
    laid: HashMap<(usize, Option<View>), usize>,
    same: HashMap<Tensor, usize>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Tensor {
    dtype: DType,
    bytes: Vec<u8>,
}

impl WeightTable {
    /// Adds a tensor and returns its number.
    pub fn add(&mut self, dtype: DType, bytes: Vec<u8>) -> usize {
        self.sources.push(Tensor { dtype, bytes });
        self.sources.len() - 1
    }

    /// The number of the array of a tensor in this layout.
    pub fn array(&mut self, source: usize, view: Option<View>) -> Result<usize> {
        let key = (source, view);
        if let Some(index) = self.laid.get(&key) {
            return Ok(*index);
        }
        let source_bytes = &self.sources[source];
        let tensor = match &key.1 {
            None => source_bytes.clone(),
            Some(view) => source_bytes.lay_out(view)?,
        };
        let index = match self.same.get(&tensor) {
            Some(index) => *index,
            None => {
                self.arrays.push(tensor.clone());
                self.same.insert(tensor, self.arrays.len() - 1);
                self.arrays.len() - 1
            }
        };
        self.laid.insert(key, index);
        Ok(index)
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.arrays.iter().map(|a| a.bytes.len()).sum()
    }

    /// Declarations of the arrays, for files that read them.
    pub fn declared(&self, prefix: &str) -> String {
        let mut text = String::new();
        for (i, a) in self.arrays.iter().enumerate() {
            let _ = writeln!(
                text,
                "extern const {} {prefix}_w{i}[{}];",
                memory(a.dtype),
                a.len()
            );
        }
        text
    }

    /// The arrays as C.
    pub fn defined(&self, prefix: &str) -> String {
        let mut text = String::new();
        for (i, a) in self.arrays.iter().enumerate() {
            let (ctype, len) = (memory(a.dtype), a.len());
            let _ = writeln!(text, "const {ctype} {prefix}_w{i}[{len}] = {{");
            let mut elements = a.elements();
            elements.resize(len, "0".into());
            for line in elements.chunks(8) {
                let _ = writeln!(text, "  {},", line.join(", "));
            }
            text += "};\n";
        }
        text
    }

    /// The arrays as a file, and macros for their places in it.
    pub fn file(&self, prefix: &str) -> (String, Vec<u8>) {
        let (mut text, mut file) = (String::new(), Vec::new());
        for (i, a) in self.arrays.iter().enumerate() {
            let ctype = memory(a.dtype);
            let offset = file.len();
            let _ = writeln!(
                text,
                "#define {prefix}_w{i} ((const {ctype} *)(const void *)(weights + {offset}))"
            );
            file.extend_from_slice(&a.bytes);
            file.resize(file.len().next_multiple_of(ALIGN), 0);
        }
        (text, file)
    }
}

impl Tensor {
    /// The number of its elements; an array of C has at least one.
    fn len(&self) -> usize {
        (self.bytes.len() / self.dtype.size()).max(1)
    }

    fn lay_out(&self, view: &View) -> Result<Tensor> {
        let size = self.dtype.size();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for position in view.positions() {
            let from = usize::try_from(position)
                .ok()
                .and_then(|p| p.checked_mul(size));
            let element = from.and_then(|f| self.bytes.get(f..f + size));
            let element =
                element.ok_or_else(|| Error::Damaged("an operand beyond its tensor".into()))?;
            bytes.extend_from_slice(element);
        }
        let dtype = self.dtype;
        Ok(Tensor { dtype, bytes })
    }

    /// Each element as a literal of C.
    fn elements(&self) -> Vec<String> {
        let elements = self.bytes.chunks_exact(self.dtype.size());
        let dtype = self.dtype;
        let text = |b: &[u8]| match dtype {
            DType::F16 | DType::BF16 => DType::U16.ints(b)[0].to_string(),
            _ if dtype.is_narrow_float() => b[0].to_string(),
            DType::F32 | DType::F64 => {
                C99::number(Scalar::Float(dtype.floats(b)[0]), dtype.compute())
            }
            DType::U64 => format!("{}U", dtype.ints(b)[0] as u64),
            _ => C99::number(Scalar::Int(dtype.ints(b)[0]), dtype.compute()),
        };
        elements.map(text).collect()
    }
}
