//! cuBLASLt's objects, and products on the emulated memory.
//!
//! An algorithm is for one product, and says so: it is refused for another, for memory that is aligned less than was
//! said when it was asked for, and with too little workspace. Workspaces are overwritten.

use crate::status::{Failure, failure};
use half::{bf16, f16};
use kiln_gpu_emulator::{Memory, NotAllocated, Trail};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUBLAS_STATUS_INVALID_VALUE`
pub(crate) const INVALID: i32 = 7;
/// `CUBLAS_STATUS_NOT_SUPPORTED`
pub(crate) const NOT_SUPPORTED: i32 = 15;

/// A `cublasLtMatmulDesc_t`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Operation {
    pub compute: i32,
    pub scale: i32,
    pub transposed: [bool; 2],
}

/// A `cublasLtMatrixLayout_t`: matrices column by column.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub kind: i32,
    pub rows: u64,
    pub columns: u64,
    pub leading: i64,
    pub count: i32,
    pub stride: i64,
}

/// A `cublasLtMatmulPreference_t`, with the library's defaults.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Preference {
    pub workspace: u64,
    pub reductions: u32,
    pub aligned: [u32; 4],
}

impl Default for Preference {
    fn default() -> Preference {
        Preference {
            workspace: 0,
            reductions: 7,
            aligned: [256; 4],
        }
    }
}

#[derive(Copy, Clone, Debug)]
pub(crate) enum Object {
    /// A library handle, of a device.
    Handle(usize),
    Operation(Operation),
    Layout(Layout),
    Preference(Preference),
}

static OBJECTS: Mutex<BTreeMap<usize, Object>> = Mutex::new(BTreeMap::new());

pub(crate) fn objects() -> MutexGuard<'static, BTreeMap<usize, Object>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Object {
    pub fn add(self) -> usize {
        let mut objects = objects();
        let handle = objects.keys().next_back().map_or(0x7_0000, |h| h + 0x10);
        objects.insert(handle, self);
        handle
    }

    pub fn find(handle: usize) -> Result<Object, Failure> {
        let object = objects().get(&handle).copied();
        object.ok_or_else(|| failure(INVALID, format!("no object {handle:#x}")))
    }
}

/// Defines functions that find an object of a kind.
macro_rules! finders {
    ($($name:ident: $kind:ident -> $type:ty),*) => {
        $(pub(crate) fn $name(handle: usize) -> Result<$type, Failure> {
            match Object::find(handle)? {
                Object::$kind(found) => Ok(found),
                other => Err(failure(INVALID, format!("{other:?} is no {}", stringify!($name)))),
            }
        })*
    };
}

finders! {
    device: Handle -> usize,
    operation: Operation -> Operation,
    layout: Layout -> Layout,
    preference: Preference -> Preference
}

/// A product without its memory: the operation, and the layouts of A, B, C and D.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    pub operation: Operation,
    pub layouts: [Layout; 4],
}

const F32: i32 = 0;
const F16: i32 = 2;
const I8: i32 = 3;
const I32: i32 = 10;
const BF16: i32 = 14;
/// `CUBLAS_COMPUTE_32F`, `..32I` and `..32F_FAST_TF32`
const BY_F32: i32 = 68;
const BY_I32: i32 = 72;
const BY_TF32: i32 = 77;

fn size(kind: i32) -> u64 {
    match kind {
        I8 => 1,
        F16 | BF16 => 2,
        _ => 4,
    }
}

/// The parts into which the second algorithm divides sums.
const PARTS: u64 = 2;

/// A `cublasLtMatmulAlgo_t`.
#[derive(Copy, Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Algorithm {
    pub number: u64,
    pub workspace: u64,
    problem: u64,
    aligned: [u32; 4],
    rest: [u64; 3],
}

impl Problem {
    pub fn new(operation_of: usize, layouts: [usize; 4]) -> Result<Problem, Failure> {
        let mut layouts_of = [layout(layouts[0])?; 4];
        for (layouts_of, handle) in layouts_of.iter_mut().zip(layouts) {
            *layouts_of = layout(handle)?;
        }
        let problem = Problem {
            operation: operation(operation_of)?,
            layouts: layouts_of,
        };
        problem.check()?;
        Ok(problem)
    }

    /// Rows, columns and terms of the result.
    fn sizes(&self) -> [u64; 3] {
        let [a, _, _, d] = self.layouts;
        let terms = if self.operation.transposed[0] {
            a.rows
        } else {
            a.columns
        };
        [d.rows, d.columns, terms]
    }

    fn check(&self) -> Result<(), Failure> {
        let invalid = |why: String| Err(failure(INVALID, why));
        let [rows, columns, terms] = self.sizes();
        let effective_shape = |index: usize| {
            let x = self.layouts[index];
            match self.operation.transposed.get(index) {
                Some(true) => [x.columns, x.rows],
                _ => [x.rows, x.columns],
            }
        };
        let expected_shapes = [
            [rows, terms],
            [terms, columns],
            [rows, columns],
            [rows, columns],
        ];
        for (index, (x, expected)) in self.layouts.iter().zip(expected_shapes).enumerate() {
            if effective_shape(index) != expected {
                return invalid(format!(
                    "matrix {index} is {:?}, not {expected:?}",
                    effective_shape(index)
                ));
            }
            if x.leading < x.rows as i64 || x.rows == 0 || x.columns == 0 || x.count < 1 {
                return invalid(format!("matrix {index} is {x:?}"));
            }
            if x.count != self.layouts[0].count {
                return invalid("batches of several sizes".into());
            }
            let extent = x.leading * (x.columns as i64 - 1) + x.rows as i64;
            if index > 1 && x.count > 1 && x.stride < extent {
                return invalid(format!("results of a batch overlap: {x:?}"));
            }
        }
        let [a, b, c, d] = self.layouts.map(|x| x.kind);
        let known = match (a, self.operation.compute, self.operation.scale) {
            (F32, BY_F32 | BY_TF32, F32) => d == F32,
            (F16 | BF16, BY_F32, F32) => d == a || d == F32,
            // Tensor cores take bytes along the terms, four at a time.
            (I8, BY_I32, I32) => {
                let fours = self.layouts[..2].iter();
                let fours = fours.map(|x| x.leading | x.stride | x.rows as i64);
                d == I32
                    && self.operation.transposed == [true, false]
                    && fours.fold(0, |expected_shapes, n| expected_shapes | n) % 4 == 0
            }
            _ => false,
        };
        match known && a == b && c == d {
            true => Ok(()),
            // A library says so without a word.
            false => Err(NOT_SUPPORTED.into()),
        }
    }

    fn hash(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self)
    }

    /// The algorithms for the product, best first, with their reductions.
    pub fn algorithms(&self, preference: &Preference) -> Vec<Algorithm> {
        let [rows, columns, _] = self.sizes();
        let count = self.layouts[3].count as u64;
        // Whole sums, parts that are added in the workspace, and parts that are added in the result.
        let algorithms_listed = [(0, 0), (PARTS * rows * columns * count * 4, 2), (0, 1)];
        let legal = |(_, (workspace, reduction)): &(usize, (u64, u32))| {
            *workspace <= preference.workspace && reduction & !preference.reductions == 0
        };
        let algorithm = |(number, (workspace, _)): (usize, (u64, u32))| Algorithm {
            number: number as u64 + 1,
            workspace,
            problem: self.hash(),
            aligned: preference.aligned,
            rest: [0; 3],
        };
        algorithms_listed
            .into_iter()
            .enumerate()
            .filter(legal)
            .map(algorithm)
            .collect()
    }

    /// Checks that an algorithm is for this product.
    pub fn takes(&self, algorithm: &Algorithm) -> Result<(), Failure> {
        match algorithm.problem == self.hash() && (1..=3).contains(&algorithm.number) {
            true => Ok(()),
            false => Err(failure(INVALID, "an algorithm for another product")),
        }
    }
}

/// A product in memory.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub problem: Problem,
    pub algorithm: Algorithm,
    /// The addresses of A, B, C and D, and of the workspace.
    pub memory: [u64; 4],
    pub workspace: u64,
}

impl Product {
    pub fn check(&self, bytes: u64, factors: [f64; 2]) -> Result<(), Failure> {
        self.problem.takes(&self.algorithm)?;
        for (address, aligned) in self.memory.iter().zip(self.algorithm.aligned) {
            if !address.is_multiple_of(aligned.into()) {
                let why = format!("{address:#x} is not aligned to {aligned} bytes");
                return Err(failure(INVALID, why));
            }
        }
        let needed = self.algorithm.workspace;
        if needed > 0 && (bytes < needed || !self.workspace.is_multiple_of(256)) {
            let why = format!(
                "a workspace of {bytes} bytes at {:#x}, not {needed}",
                self.workspace
            );
            return Err(failure(INVALID, why));
        }
        match factors == [1.0, 0.0] {
            true => Ok(()),
            false => Err(failure(NOT_SUPPORTED, format!("factors {factors:?}"))),
        }
    }

    /// The memory that it touches.
    pub fn trail(&self, memory: &Memory) -> Trail {
        let [a, b, _, d] = [0, 1, 2, 3].map(|i| columns(&self.problem.layouts[i], self.memory[i]));
        let workspace = (self.workspace, self.algorithm.workspace as usize);
        Trail::of(memory, &[a, b].concat(), &[d, vec![workspace]].concat())
    }

    /// Computes the result.
    pub fn execute(&self, memory: &Memory) -> Result<(), NotAllocated> {
        let [a, b, _, d] = self.problem.layouts;
        let [rows, columns, terms] = self.problem.sizes().map(|n| n as usize);
        let [ta, tb] = self.problem.operation.transposed;
        let tf32 = self.problem.operation.compute == BY_TF32;
        let needed = self.algorithm.workspace as usize;
        memory.fill(self.workspace, &[0xa5], needed)?;
        let split_count = if self.algorithm.number == 1 {
            1
        } else {
            PARTS as usize
        };
        for batch in 0..d.count as i64 {
            let x = elements(memory, &a, self.memory[0], batch, tf32)?;
            let y = elements(memory, &b, self.memory[1], batch, tf32)?;
            for j in 0..columns {
                let column = (0..rows).map(|i| {
                    let product = |k: usize| {
                        let x = if ta { x[i][k] } else { x[k][i] };
                        let y = if tb { y[k][j] } else { y[j][k] };
                        x * y
                    };
                    // Products of operands are exact in f64.
                    let partial = |p: usize| {
                        let own =
                            (terms * p / split_count..terms * (p + 1) / split_count).map(product);
                        match d.kind {
                            I32 => own.sum::<f64>(),
                            _ => f64::from(own.fold(0f32, |sum, x| (f64::from(sum) + x) as f32)),
                        }
                    };
                    (0..split_count)
                        .map(partial)
                        .fold(0f64, |sum, x| match d.kind {
                            I32 => sum + x,
                            _ => f64::from((sum + x) as f32),
                        })
                });
                let bytes: Vec<u8> = column.flat_map(|x| encode(d.kind, x)).collect();
                let offset = batch * d.stride + j as i64 * d.leading;
                let address = self.memory[3] + offset as u64 * size(d.kind);
                memory.write(address, &bytes)?;
            }
        }
        Ok(())
    }
}

/// The addresses and bytes of the columns of all matrices of a batch.
fn columns(x: &Layout, address: u64) -> Vec<(u64, usize)> {
    let size = size(x.kind);
    let address_of =
        |batch: i64, j: i64| address + (batch * x.stride + j * x.leading) as u64 * size;
    let batches = 0..i64::from(x.count);
    let column = |batch| {
        (0..x.columns as i64).map(move |j| (address_of(batch, j), (x.rows * size) as usize))
    };
    batches.flat_map(column).collect()
}

/// The columns of a matrix in memory.
fn elements(
    memory: &Memory,
    x: &Layout,
    address: u64,
    batch: i64,
    tf32: bool,
) -> Result<Vec<Vec<f64>>, NotAllocated> {
    let size = size(x.kind);
    let column = |j: u64| {
        let offset = batch * x.stride + j as i64 * x.leading;
        let mut bytes = vec![0; (x.rows * size) as usize];
        let from = address + offset as u64 * size;
        memory.read(from, &mut bytes)?;
        let elements = bytes.chunks_exact(size as usize);
        Ok(elements.map(|b| decode(x.kind, b, tf32)).collect())
    };
    (0..x.columns).map(column).collect()
}

fn decode(kind: i32, bytes: &[u8], tf32: bool) -> f64 {
    let short = || u16::from_le_bytes([bytes[0], bytes[1]]);
    match kind {
        I8 => f64::from(bytes[0] as i8),
        F16 => f16::from_bits(short()).into(),
        BF16 => bf16::from_bits(short()).into(),
        _ => {
            let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let x = f32::from_bits(bits);
            match tf32 && x.is_finite() {
                // To nearest, of 13 bits fewer.
                true => f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff).into(),
                false => x.into(),
            }
        }
    }
}

fn encode(kind: i32, x: f64) -> Vec<u8> {
    match kind {
        F16 => f16::from_f64(x).to_le_bytes().into(),
        BF16 => bf16::from_f64(x).to_le_bytes().into(),
        // Sums of bytes are exact in f64 and wrap around.
        I32 => (x as i64 as i32).to_le_bytes().into(),
        _ => (x as f32).to_le_bytes().into(),
    }
}
