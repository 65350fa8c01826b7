//! The keys of the store. A key names everything that the best algorithm of some work depends on.

use kiln_base::{DType, Dim, Machine};
use kiln_codegen::{Body, Work, kir};
use kiln_plan::{Array, Conv, Custom, FORMAT, Images, Kernel, MatMul, Matrix};
use std::fmt::Write;
use xxhash_rust::xxh3::xxh3_128;

/// To be changed when kernels become faster or slower without their algorithms getting other names.
const GENERATION: u32 = 6;

/// Returns the key of some work on a device: the op with its sizes, the work fused with it, the default candidate, the
/// device and the engine. `None` for work that has only one candidate.
///
/// Sizes that change from run to run (batches, lengths, images) count by quarter octaves (1 to 8, 10, 12, 14,
/// 16, 20, …), so that a new length is rarely a new key. Channels count exactly, and so do all sizes of a custom op,
/// which alone knows what its kernels can do. Legality is nevertheless decided by the exact sizes.
pub(super) fn key(work: &Work, values: &[i64], default: &str, device: &str) -> Option<String> {
    let sizes = SymbolValues(values);
    let op = match &work.body {
        Body::MatMul(m) => sizes.matmul(m),
        Body::Conv(c) => sizes.conv(c),
        Body::Library(Kernel::Custom(c)) => sizes.custom(c),
        Body::Fused(k) => sizes.fused(k),
        _ => return None,
    };
    let prologues = work.prologues().into_iter().zip([" left", " right"]);
    let prologues = prologues.filter_map(|(k, side)| Some(format!("{side}{}", fused(k?))));
    let epilogue = work.epilogue.as_ref().map(fused).unwrap_or_default();
    // Weights that do not change are packed once.
    let weights = match work.packs() {
        true => " fixed",
        false => "",
    };
    let prologues = prologues.collect::<String>();
    // The bits of results are compared with the default's.
    let stamp = stamp(device);
    Some(format!(
        "{op}{prologues}{epilogue}{weights} default {default} | {stamp}"
    ))
}

/// The end of every key: the device and the engine.
pub(super) fn stamp(device: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("{device} | kiln {version} plan {FORMAT} kernels {GENERATION}")
}

/// Returns the traits of a machine that affect the speed of kernels, and of the compiler of a GPU's code. Machines with
/// equal names share measurements, as do all numbers of threads: algorithms differ in their rounding, and results must
/// not depend on the number of threads.
pub fn device(machine: &Machine) -> String {
    escape(&machine.to_string())
}

/// Replaces the characters that a key may not contain.
pub(super) fn escape(text: &str) -> String {
    let replace = |c: char| match c {
        '"' | '\\' | '|' => '_',
        c if c.is_control() => '_',
        c => c,
    };
    text.chars().map(replace).collect()
}

/// Rounds a size up to the next quarter octave.
pub(super) fn bucket(n: i64) -> i64 {
    if n <= 8 {
        return n;
    }
    let step = 1i64 << (61 - (n - 1).leading_zeros() as i64);
    n.div_euclid(step).saturating_add((n % step != 0) as i64) * step
}

/// The values of symbols.
struct SymbolValues<'a>(&'a [i64]);

/// The dtypes of the operands, the second only if it differs, and whether they are reduced to seven bits.
fn multiplied([a, b]: [DType; 2], reduce_range: bool) -> String {
    let bits = if reduce_range { " of 7 bits" } else { "" };
    match a == b {
        true => format!("{a}{bits}"),
        false => format!("{a}{bits} by {b}"),
    }
}

impl SymbolValues<'_> {
    fn exact(&self, d: &Dim) -> i64 {
        d.eval_checked(self.0).unwrap_or(-1)
    }

    fn rough(&self, d: &Dim) -> i64 {
        bucket(self.exact(d))
    }

    fn list(&self, dims: &[Dim], size: impl Fn(&Self, &Dim) -> i64) -> String {
        let sizes = dims.iter().map(|d| size(self, d).to_string());
        sizes.collect::<Vec<_>>().join("x")
    }

    fn matmul(&self, m: &MatMul) -> String {
        let [rows, sum, columns] = [&m.m, &m.k, &m.n].map(|d| self.rough(d));
        let batch = self.list(&m.batch, SymbolValues::rough);
        let [lhs, rhs] = [&m.lhs, &m.rhs].map(|x| self.layout(x));
        format!(
            "matmul {} [{batch}] {rows}x{sum}x{columns} {lhs} {rhs}",
            multiplied(m.dtypes, m.reduce_range)
        )
    }

    /// Describes which index of a matrix is contiguous in memory, and which batch dims share the matrix.
    fn layout(&self, x: &Matrix) -> String {
        let order = match (x.col.is(1), x.row.is(1)) {
            (true, _) => "rows",
            (_, true) => "columns",
            _ => "strided",
        };
        let shared = x.batch_strides.iter().map(|s| s.is(0));
        let shared: String = shared.map(|s| if s { '=' } else { '.' }).collect();
        format!("{order}{shared}")
    }

    fn conv(&self, c: &Conv) -> String {
        let rough = |dims: &[Dim]| self.list(dims, SymbolValues::rough);
        let exact = |dims: &[Dim]| self.list(dims, SymbolValues::exact);
        format!(
            "{} {}{} {} x {}:{}->{} [{}] -> [{}] filter {} step {} zeros {} spread {}",
            c.role.name(),
            multiplied(c.dtypes, c.reduce_range),
            match c.images {
                Images::ChannelsFirst => "",
                Images::ChannelsLast => " channels last",
                Images::ToChannelsLast => " channels last of first",
                Images::ToChannelsFirst => " channels first of last",
            },
            self.rough(&c.batch),
            self.exact(&c.groups),
            self.exact(&c.in_channels),
            self.exact(&c.out_channels),
            rough(&c.input),
            rough(&c.output),
            exact(&c.kernel),
            exact(&c.stride),
            exact(&c.padding),
            exact(&c.dilation),
        )
    }

    fn fused(&self, kernel: &kir::Kernel) -> String {
        let [axes, inner] =
            [&kernel.axes, &kernel.inner].map(|d| self.list(d, SymbolValues::rough));
        format!("fused [{axes}] [{inner}]{}", fused(kernel))
    }

    fn custom(&self, c: &Custom) -> String {
        let array =
            |a: &Array| format!("{}[{}]", a.dtype, self.list(&a.shape, SymbolValues::exact));
        let operands: Vec<String> = c.operands.iter().map(array).collect();
        let (name, operands, out) = (escape(&c.name), operands.join(" "), array(&c.out));
        format!("custom {name} {operands} -> {out}")
    }
}

/// Describes fused work: its name, and a hash of everything that distinguishes it from other work except the sizes of
/// its axes and arguments.
fn fused(kernel: &kir::Kernel) -> String {
    let kir::Kernel {
        name,
        axes: _,
        serial,
        inner: _,
        args,
        accesses,
        body,
        stores,
        sites: _,
    } = kernel;
    let mut text = format!("{body:?} {stores:?} {serial} {args:?}");
    for access in accesses {
        let steps = access.strides.iter().map(|s| match s {
            s if s.is(0) => '=',
            s if s.is(1) => '+',
            _ => '*',
        });
        let (steps, bounds) = (steps.collect::<String>(), access.bounds.len());
        let _ = write!(text, " {} {steps} {bounds} {:?}", access.arg, access.fill);
    }
    format!(" + {} {:032x}", escape(name), xxh3_128(text.as_bytes()))
}

/// Returns the assumed values of symbols for a kernel that serves all of them.
pub(super) fn typical(symbols: usize) -> Vec<i64> {
    vec![64; symbols]
}

/// The number of bytes of `len` elements of a dtype.
pub(super) fn bytes(dtype: DType, len: i64) -> usize {
    len.max(0) as usize * dtype.size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_differs_in_anything_but_sizes_has_a_key_of_its_own() {
        use kiln_base::Scalar;
        use kiln_codegen::kir::{Access, Kernel};
        let kernel = Kernel {
            name: "pad".into(),
            axes: vec![Dim::Const(4)],
            accesses: vec![Access {
                arg: 0,
                offset: Dim::ZERO,
                strides: vec![Dim::ONE],
                bounds: vec![],
                fill: Scalar::Float(0.0),
            }],
            ..Kernel::default()
        };
        let key = fused(&kernel);
        let hash = key.rsplit(' ').next().unwrap_or_default();
        assert_eq!(hash.len(), 32, "{key}");
        let mut filled = kernel.clone();
        filled.accesses[0].fill = Scalar::Float(1.0);
        let mut rows = kernel.clone();
        rows.serial = 1;
        let mut longer = kernel.clone();
        longer.axes[0] = Dim::Const(5);
        assert_ne!(fused(&filled), key);
        assert_ne!(fused(&rows), key);
        assert_eq!(fused(&longer), key);
    }

    #[test]
    fn buckets_are_quarter_octaves_and_no_size_is_above_its_own() {
        let list: Vec<i64> = (1..=64).map(bucket).collect();
        let mut distinct = list.clone();
        distinct.dedup();
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64,
        ];
        assert_eq!(distinct, expected);
        for n in (1..100_000).chain([1 << 40, (1 << 40) + 1]) {
            assert!((n..=n + n / 4).contains(&bucket(n)), "{n}: {}", bucket(n));
            assert_eq!(bucket(bucket(n)), bucket(n));
        }
        for common in [28, 56, 112, 224, 384, 512, 768, 1024, 1536, 2048] {
            assert_eq!(bucket(common), common);
        }
        assert_eq!([-1, 0].map(bucket), [-1, 0]);
    }
}
