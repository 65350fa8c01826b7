//! Sorting. A block sorts a few short lanes, or a part of a long one, in shared memory. The sorted parts are then
//! merged, several at once, or all at once if their number is not known. A binary search in the other parts gives each
//! record its new index.

use super::call::{Call, fits_i32, line_of_blocks, lines};
use crate::cuda::job::Job;
use crate::cuda::source::{Index, Source, memory};
use crate::work::{KernelCall, KernelCalls, Slot};
use kiln_base::{DType, Dim};
use kiln_plan::ArgSort;
use kiln_plan::cuda::SharedLaunch;

/// The maximum number of records that a block sorts.
const WIDTH: i64 = 1024;
/// The minimum number of threads of a block.
const MIN_THREADS: i64 = 64;
/// The number of runs that are merged at once.
const MERGED_RUNS: i64 = 16;

pub(super) fn emit(work: Job, s: &ArgSort) -> KernelCalls {
    let sort = Sort {
        work,
        dtype: s.dtype,
        descending: s.descending,
        lanes: s.lanes.clone(),
        len: s.len.clone(),
        kept: s.kept.clone(),
        x: s.x,
        strided_lane: None,
        bound: None,
        out: Some(Slot::Arg(s.out as usize)),
    };
    let (steps, scratch) = sort.emit();
    KernelCalls {
        steps,
        scratch,
        in_place: Vec::new(),
    }
}

/// Lanes to be sorted.
pub(super) struct Sort<'a> {
    pub work: Job<'a>,
    pub dtype: DType,
    pub descending: bool,
    pub lanes: Dim,
    pub len: Dim,
    /// The number of indices of a lane that are stored.
    pub kept: Dim,
    pub x: u16,
    /// The offset and stride of a single lane that is not contiguous.
    pub strided_lane: Option<(Dim, Dim)>,
    /// The upper bound of elements that are indices; those out of bounds are reported.
    pub bound: Option<Dim>,
    /// The destination of the indices. Without one, sorted records stay in the last scratch memory.
    pub out: Option<Slot>,
}

impl Sort<'_> {
    /// Returns the kernels and their scratch memory.
    pub fn emit(&self) -> (Vec<KernelCall>, Vec<(DType, Vec<Dim>)>) {
        let mut steps = Vec::new();
        let destination = |is_last: bool, pass: usize| match self.out {
            Some(out) if is_last => out,
            _ => Slot::Scratch(pass),
        };
        match self.len.as_const() {
            Some(len) => {
                let mut run = WIDTH.min(len);
                steps.push(self.emit_parts(destination(run >= len, 0)));
                while run < len {
                    let span = run.saturating_mul(MERGED_RUNS).min(len);
                    let to = destination(span >= len, steps.len());
                    steps.push(self.emit_merge(steps.len(), run, &Dim::Const(span), to));
                    run = span;
                }
            }
            None => {
                steps.push(self.emit_parts(Slot::Scratch(0)));
                steps.push(self.emit_merge(1, WIDTH, &self.len, destination(true, 1)));
            }
        }
        let scratch = steps.len() - usize::from(self.out.is_some());
        (steps, vec![self.record_memory(); scratch])
    }

    /// True if a record is two words because a key and an index may not fit into one.
    fn is_wide(&self) -> bool {
        let is_long = |n: i64| n > i64::from(u32::MAX);
        match self.dtype.size() {
            8 => true,
            4 => self.len.as_const().is_none_or(is_long),
            // Indices fit into 48 bits, as addresses do.
            _ => false,
        }
    }

    /// Returns the dtype and shape of records in scratch memory.
    fn record_memory(&self) -> (DType, Vec<Dim>) {
        let words = if self.is_wide() { 2 } else { 1 };
        (
            DType::I64,
            vec![self.lanes.clone(), self.len.clone(), Dim::Const(words)],
        )
    }

    /// Returns a kernel's text with its record type and the sizes of the sort.
    fn begin_kernel(&self, call: &Call, name: &str, width: i64) -> Source {
        let words = &(&self.lanes * &self.len) * &Dim::Const(2);
        let index = if fits_i32(&words) {
            Index::Int
        } else {
            Index::Long
        };
        let mut source = call.source(&format!("{name}_{}", self.dtype), index);
        let mut text = format!(
            "typedef {} Index;\nconstexpr int WIDTH = {width};\n",
            index.name()
        );
        match self.is_wide() {
            true => text += include_str!("sort_wide.cu"),
            false => {
                let index_bits = 64 - 8 * self.dtype.size();
                text += &format!("constexpr int INDEX_BITS = {index_bits};\n");
                text += include_str!("sort_narrow.cu");
            }
        }
        text += include_str!("sort.cu");
        source.scope(&text);
        let dims = [&self.lanes, &self.len, &self.kept];
        for (name, d) in ["lanes", "len", "kept"].into_iter().zip(dims) {
            let value = source.dim(d);
            source.line(format!("const Index {name} = {value};"));
        }
        source.line("if (len <= 0) return;");
        source
    }

    /// Emits a kernel that sorts lanes, or the parts of lanes that are merged later.
    fn emit_parts(&self, to: Slot) -> KernelCall {
        let mut width = 2;
        let len = self.len.as_const().unwrap_or(WIDTH).min(WIDTH);
        while width < len {
            width *= 2;
        }
        let parts_per_block = (2 * MIN_THREADS / width).max(1);
        let mut call = Call::new(self.work);
        call.push(Slot::Arg(self.x as usize), self.dtype, false);
        call.push(to, DType::I64, true);
        let mut source = match &self.bound {
            Some(_) => {
                call.sites = vec![0];
                self.begin_kernel(&call, "sort_indices", width)
            }
            None => self.begin_kernel(&call, "sort", width),
        };
        source.scope(&format!(
            "struct Shared {{\n    Record records[WIDTH * {parts_per_block}];\n}};"
        ));
        source.shared("Shared");
        source.shared_launch = SharedLaunch::Nothing;
        let x = call.pointer(Slot::Arg(self.x as usize));
        let (key, bits) = key_expression(self.dtype);
        let flip = match self.descending {
            true => format!(" ^ ~0ull >> {}", 64 - bits),
            false => String::new(),
        };
        let address = match &self.strided_lane {
            Some((offset, stride)) => {
                format!("{} + i * {}", source.dim(offset), source.dim(stride))
            }
            None => "lane * len + i".into(),
        };
        let check = match &self.bound {
            Some(bound) => format!(
                "if (x < 0 || x >= {0}) kiln_report(errors, site0, x, {0});\n",
                source.dim(bound)
            ),
            None => String::new(),
        };
        lines(
            &mut source,
            &format!(
                "\
const Index parts = (len + WIDTH - 1) / WIDTH;
Record* records = shared.records;
for (int e = threadIdx.x; e < WIDTH * {parts_per_block}; e += blockDim.x) {{
const Index part = (Index)blockIdx.x * {parts_per_block} + e / WIDTH, lane = part / parts;
const Index i = part % parts * WIDTH + e % WIDTH;
if (lane < lanes && i < len) {{
const {} x = {x}[{address}];
{check}records[e] = record(({key}){flip}, i);
}} else records[e] = last_record();
}}
sort_shared(records);
for (int e = threadIdx.x; e < WIDTH * {parts_per_block}; e += blockDim.x) {{
const Index part = (Index)blockIdx.x * {parts_per_block} + e / WIDTH, lane = part / parts;
const Index i = part % parts * WIDTH + e % WIDTH;",
                memory(self.dtype)
            ),
        );
        let end = if self.out == Some(to) { "kept" } else { "len" };
        let store = self.store_statement(&call, to, "i", "records[e]");
        source.line(format!("if (lane < lanes && i < {end}) {store}"));
        source.line("}");
        let padded = match self.len.as_const() {
            Some(len) => Dim::Const((len + width - 1) / width * width),
            None => &self.len + &Dim::Const(width - 1),
        };
        let points = &self.lanes * &padded;
        let grid = line_of_blocks(points, (width * parts_per_block) as u32);
        call.step(source.finish(grid, [(width * parts_per_block / 2) as u32, 1, 1]))
    }

    /// Emits pass number `pass`, which merges each `span` records from sorted runs of `run`.
    fn emit_merge(&self, pass: usize, run: i64, span: &Dim, to: Slot) -> KernelCall {
        let from = Slot::Scratch(pass - 1);
        let mut call = Call::new(self.work);
        call.push(from, DType::I64, false);
        call.push(to, DType::I64, true);
        let mut source = self.begin_kernel(&call, "sort_merge", WIDTH);
        let span = source.dim(span);
        lines(
            &mut source,
            &format!(
                "\
const Index point = (Index)blockIdx.x * 256 + threadIdx.x, lane = point / len, i = point % len;
if (lane >= lanes) return;
const Record* records = (const Record*){} + lane * len;
const Index merged = merged_index(records, len, {run}, {span}, i);",
                call.pointer(from)
            ),
        );
        let end = if self.out == Some(to) { "kept" } else { "len" };
        let store = self.store_statement(&call, to, "merged", "records[i]");
        source.line(format!("if (merged < {end}) {store}"));
        let grid = line_of_blocks(&self.lanes * &self.len, 256);
        call.step(source.finish(grid, [256, 1, 1]))
    }
}

impl Sort<'_> {
    /// Returns the statement that stores a record, or its index, at index `i` of a lane.
    fn store_statement(&self, call: &Call, to: Slot, i: &str, record: &str) -> String {
        let pointer = call.pointer(to);
        match self.out == Some(to) {
            true => format!("{pointer}[lane * kept + {i}] = index_of({record});"),
            false => format!("((Record*){pointer})[lane * len + {i}] = {record};"),
        }
    }
}

/// Returns the C expression of the key of element `x`, and its number of bits.
fn key_expression(dtype: DType) -> (String, u32) {
    let bits = 8 * dtype.size() as u32;
    let text = match dtype {
        DType::F16 => "float_key((unsigned)x, 0x8000u, 0x7c00u)".into(),
        DType::BF16 => "float_key((unsigned)x, 0x8000u, 0x7f80u)".into(),
        DType::F32 => "float_key(__float_as_uint(x), 0x80000000u, 0x7f800000u)".into(),
        DType::F64 => {
            "float_key((unsigned long long)__double_as_longlong(x), 1ull << 63, 0x7ffull << 52)"
                .into()
        }
        DType::I64 => "(unsigned long long)x ^ 1ull << 63".into(),
        DType::I8 | DType::I16 | DType::I32 => format!("(unsigned)x + {}u", 1u32 << (bits - 1)),
        _ => "x".into(),
    };
    (text, bits)
}
