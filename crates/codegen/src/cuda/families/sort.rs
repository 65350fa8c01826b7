//! Sorting. A block sorts a few short lanes, or a part of a long one, in shared memory. The sorted parts
//! are merged, several at once and all where their number is not known: each record finds its place by
//! binary search in the other parts.

use super::{Call, few, line_of_blocks, lines, scope};
use crate::cuda::source::{Index, Source, memory};
use crate::cuda::{Printed, Slot, Step};
use crate::program::Launch;
use kiln_base::plan::ArgSort;
use kiln_base::{DType, Dim};

/// Records that a block sorts at most.
const WIDTH: i64 = 1024;
/// Threads of a block at least.
const THREADS: i64 = 64;

/// Runs that are merged at once.
const WAYS: i64 = 16;

pub(super) fn print(launch: &Launch, s: &ArgSort) -> Printed {
    let sort = Sort { launch, s };
    let mut steps = Vec::new();
    match s.len.as_const() {
        Some(len) if len <= WIDTH => steps.push(sort.parts(false)),
        Some(len) => {
            steps.push(sort.parts(true));
            let mut run = WIDTH;
            while run < len {
                let span = run.saturating_mul(WAYS).min(len);
                steps.push(sort.merge(steps.len(), run, &Dim::Const(span), span >= len));
                run = span;
            }
        }
        None => steps.extend([sort.parts(true), sort.merge(1, WIDTH, &s.len, true)]),
    }
    Printed {
        scratch: vec![sort.scratch(); steps.len() - 1],
        steps,
        in_place: Vec::new(),
    }
}

struct Sort<'a> {
    launch: &'a Launch,
    s: &'a ArgSort,
}

impl Sort<'_> {
    /// A record is two words where one does not hold a key and an index.
    fn is_wide(&self) -> bool {
        self.s.dtype.size() == 8
    }

    /// Records in memory.
    fn scratch(&self) -> (DType, Vec<Dim>) {
        let words = if self.is_wide() { 2 } else { 1 };
        (
            DType::I64,
            vec![self.s.lanes.clone(), self.s.len.clone(), Dim::Const(words)],
        )
    }

    /// A kernel that names these records, and the sizes of the sort.
    fn source(&self, call: &Call, name: &str, width: i64) -> Source {
        let s = self.s;
        let words = &(&s.lanes * &s.len) * &Dim::Const(2);
        let index = if few(&words) { Index::Int } else { Index::Long };
        let mut source = call.source(&format!("{name}_{}", s.dtype), index);
        let mut text = format!(
            "typedef {} Index;\nconstexpr int WIDTH = {width};\n",
            index.name()
        );
        text += match self.is_wide() {
            true => include_str!("sort_wide.cu"),
            false => include_str!("sort_narrow.cu"),
        };
        text += include_str!("sort.cu");
        scope(&mut source, &text);
        for (name, d) in [("lanes", &s.lanes), ("len", &s.len), ("kept", &s.kept)] {
            let value = source.dim(d);
            source.line(format!("const Index {name} = {value};"));
        }
        source.line("if (len <= 0) return;");
        source
    }

    /// Sorts lanes, or the parts of lanes that are merged later.
    fn parts(&self, merged: bool) -> Step {
        let s = self.s;
        let mut width = 2;
        let len = if merged {
            WIDTH
        } else {
            s.len.as_const().unwrap_or(WIDTH)
        };
        while width < len {
            width *= 2;
        }
        let together = (2 * THREADS / width).max(1);
        let mut call = Call::new(self.launch);
        call.push(Slot::Arg(s.x as usize), s.dtype, false);
        match merged {
            true => call.push(Slot::Scratch(0), DType::I64, true),
            false => call.push(Slot::Arg(s.out as usize), DType::I64, true),
        }
        let mut source = self.source(&call, if merged { "sort_parts" } else { "sort" }, width);
        let x = call.pointer(Slot::Arg(s.x as usize));
        let (key, bits) = key(s.dtype);
        let flip = match s.descending {
            true => format!(" ^ ~0ull >> {}", 64 - bits),
            false => String::new(),
        };
        lines(
            &mut source,
            &format!(
                "\
const Index parts = (len + WIDTH - 1) / WIDTH;
__shared__ Record records[WIDTH * {together}];
for (int e = threadIdx.x; e < WIDTH * {together}; e += blockDim.x) {{
const Index part = (Index)blockIdx.x * {together} + e / WIDTH, lane = part / parts;
const Index at = part % parts * WIDTH + e % WIDTH;
if (lane < lanes && at < len) {{
const {} x = {x}[lane * len + at];
records[e] = record(({key}){flip}, at);
}} else records[e] = last_record();
}}
sort_shared(records);
for (int e = threadIdx.x; e < WIDTH * {together}; e += blockDim.x) {{
const Index part = (Index)blockIdx.x * {together} + e / WIDTH, lane = part / parts;
const Index at = part % parts * WIDTH + e % WIDTH;",
                memory(s.dtype)
            ),
        );
        let to = match merged {
            true => {
                let scratch = call.pointer(Slot::Scratch(0));
                format!(
                    "if (lane < lanes && at < len) ((Record*){scratch})[lane * len + at] = records[e];"
                )
            }
            false => {
                let out = call.pointer(Slot::Arg(s.out as usize));
                format!(
                    "if (lane < lanes && at < kept) {out}[lane * kept + at] = index_of(records[e]);"
                )
            }
        };
        source.line(to);
        source.line("}");
        let padded = match s.len.as_const() {
            Some(len) => Dim::Const((len + width - 1) / width * width),
            None => &s.len + &Dim::Const(width - 1),
        };
        let points = &s.lanes * &padded;
        let grid = line_of_blocks(points, (width * together) as u32);
        call.step(source.finish(grid, [(width * together / 2) as u32, 1, 1], 0))
    }

    /// The pass of this number, which merges sorted runs, `span` records together.
    fn merge(&self, pass: usize, run: i64, span: &Dim, last: bool) -> Step {
        let s = self.s;
        let (from, to) = (Slot::Scratch(pass - 1), Slot::Scratch(pass));
        let out = Slot::Arg(s.out as usize);
        let mut call = Call::new(self.launch);
        call.push(from, DType::I64, false);
        call.push(if last { out } else { to }, DType::I64, true);
        let mut source = self.source(&call, if last { "sort" } else { "sort_merge" }, WIDTH);
        let span = source.dim(span);
        lines(
            &mut source,
            &format!(
                "\
const Index point = (Index)blockIdx.x * 256 + threadIdx.x, lane = point / len, at = point % len;
if (lane >= lanes) return;
const Record* records = (const Record*){} + lane * len;
const Index place = merged_place(records, len, {run}, {span}, at);",
                call.pointer(from)
            ),
        );
        source.line(match last {
            true => format!(
                "if (place < kept) {}[lane * kept + place] = index_of(records[at]);",
                call.pointer(out)
            ),
            false => format!(
                "((Record*){})[lane * len + place] = records[at];",
                call.pointer(to)
            ),
        });
        let grid = line_of_blocks(&s.lanes * &s.len, 256);
        call.step(source.finish(grid, [256, 1, 1], 0))
    }
}

/// The key of an element `x` as a C expression, and its bits.
fn key(dtype: DType) -> (String, u32) {
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
