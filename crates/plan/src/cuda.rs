//! Kernels in CUDA C++.
//!
//! A [`CudaKernel`] is text in parts, without headers. It may use [`PRELUDE`], which comes before it in the compiled
//! text. Several kernels share a translation unit, so declarations at file scope are in a namespace of the kernel's
//! own.
//!
//! # The call of a kernel
//! The parameters of `extern "C" __global__ void entry(..)` are, in order:
//!
//! 1. `arg0`, `arg1`, …: one pointer per argument (`const T*` unless it is written), in the order of `args`; bool is
//!    `unsigned char` and f16 and bf16 are `unsigned short`. Each is a multiple of [`ARGUMENT_ALIGN`];
//! 2. `s0`, `s1`, …: one `long long` for each of `scalars`, the value of that [`Dim`] under the run's binding;
//! 3. `site0`, `site1`, …: one `unsigned` per site, the plan's number of the site;
//! 4. `kiln_errors* errors`, the run's [`ErrorRecord`];
//! 5. `int guarded`: true if this step writes memory that an error must leave untouched. A kernel begins with
//!    `if (guarded && errors->state) return;`. With tensor maps, whose barriers all threads of a block need, one thread
//!    reads the state for its block;
//! 6. `map0`, `map1`, …: one `kiln_tensor_map` for each of `maps`.

mod dialect;

use crate::Footprint;
use crate::contract::{Contract, Contradiction, Described, Draft, Reads};
use crate::cstyle::Dialect;
use crate::dims::dims;
pub use dialect::CudaCpp;
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use xxhash_rust::xxh3::xxh3_128;

/// The alignment of arguments in bytes. Kernels read and write vectors of so many.
pub const ARGUMENT_ALIGN: usize = 16;

/// The source text that every kernel may use.
pub const PRELUDE: &str = concat!(
    include_str!("cuda/prelude.cu"),
    include_str!("cuda/special.cu")
);

/// A kernel in CUDA C++; see the [module](self) for its call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaKernel {
    /// A readable name, such as `mul_add_relu`.
    pub name: String,
    /// The name of the function: `name` and a hash of the text, so that equal names mean equal code.
    pub entry: String,
    /// The text of the kernel.
    pub text: Text,
    /// The pointers that it is called with.
    pub args: Vec<Pointer>,
    /// The numbers that it is called with.
    pub scalars: Vec<Dim>,
    /// The number of data-error sites that the text names.
    pub sites: u32,
    /// Its footprints in its arguments, derived from the work that it was emitted from.
    pub footprints: Vec<Footprint>,
    /// The blocks along x, y and z. A grid without blocks is not launched.
    pub grid: [Blocks; 3],
    /// The threads of a block along x, y and z.
    pub block: [u32; 3],
    /// The blocks of a cluster along x, which divide those of the grid.
    pub cluster: u32,
    /// The minimum number of blocks that a multiprocessor has registers for, which bounds those of a thread.
    pub resident: u32,
    /// The bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// The tensor maps that it is called with. Such a kernel is for compute capability 9.0 alone, and its dynamic shared
    /// memory begins at a multiple of 1024.
    pub maps: Vec<TensorMap>,
}

dims!(CudaKernel: scalars, footprints, grid, maps; name, entry, text, args, sites, block, cluster, resident, shared);

/// A tensor map (`CUtensorMap`): the memory of an argument as a tensor, boxes of which are copied to shared memory at
/// once, or from there if the argument is written. The 16-byte chunks of a box are permuted in rows of 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMap {
    /// The index of the argument, whose dtype is that of the elements.
    pub arg: u16,
    /// The element at index zero.
    pub offset: Dim,
    /// The extents, that of the contiguous dimension first.
    pub extents: Vec<Dim>,
    /// The strides of the other dimensions, in elements.
    pub strides: Vec<Dim>,
    /// The elements that are copied at once.
    pub boxes: Boxes,
    /// True if elements, of f32, are rounded to TF32.
    pub rounds_to_tf32: bool,
}

dims!(TensorMap: offset, extents, strides; arg, boxes, rounds_to_tf32);

/// The elements of a tensor that are copied at once. Those outside of the tensor are 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boxes {
    /// Those of a box of these extents.
    Tiled(Vec<u16>),
    /// Pixels of images, whose dimensions are channels, then one to three spatial ones, then the images of a batch.
    Im2col(Im2col),
}

/// Pixels that follow each other on a path through images. The path goes along the nearest spatial dimension first, then
/// along the next one, and so on to the next image. A copy names its first pixel, and what to add to the coordinates of
/// all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Im2col {
    /// The number of channels of a pixel.
    pub channels: u16,
    /// The number of pixels.
    pub pixels: u16,
    /// The path along each spatial dimension, the nearest first.
    pub paths: Vec<Path>,
}

/// A path along a spatial dimension: from `lower` in steps up to `upper` past the last coordinate inside.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The first coordinate.
    pub lower: i16,
    /// The distance of the last possible coordinate from the last inside.
    pub upper: i16,
    /// The distance of neighbours.
    pub step: u8,
}

impl Path {
    /// Returns the range of `lower` and `upper` of paths along this number of spatial dimensions.
    pub fn corners(dimensions: usize) -> RangeInclusive<i64> {
        let lower = [i64::from(i16::MIN), -128, -16][dimensions.clamp(1, 3) - 1];
        lower..=-lower - 1
    }

    /// The maximum distance of neighbours.
    pub const MAX_STEP: i64 = 8;
}

/// The text of a kernel, without the head of its function, which follows from its call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The declarations at file scope, in a namespace that the body uses.
    pub scope: String,
    /// The class of its shared memory, all of which is one object named `shared`: static, unless the kernel has bytes
    /// of dynamic shared memory.
    pub shared: Option<String>,
    /// The lines of the function, after the guard.
    pub body: String,
    /// The kernels that it may share a launch with.
    pub shared_launch: SharedLaunch,
}

/// The kernels that a kernel may share a launch with. All blocks of a launch get as many registers as the largest
/// needs.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedLaunch {
    /// Anything.
    #[default]
    Anything,
    /// A few like it, and little else: it takes many registers and is slow to compile.
    Few,
    /// Nothing.
    Nothing,
}

/// A pointer that a kernel is called with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The dtype of the elements.
    pub dtype: DType,
    /// True if the kernel writes there.
    pub written: bool,
    /// True if elements written there are not accessed through another pointer (`__restrict__`).
    pub alone: bool,
}

impl Pointer {
    /// Returns the parameter of a function.
    pub fn parameter(&self, name: &str) -> String {
        let constant = if self.written { "" } else { "const " };
        let restrict = if self.alone { " __restrict__" } else { "" };
        format!("{constant}{}*{restrict} {name}", memory(self.dtype))
    }
}

impl CudaKernel {
    /// Returns the kernel with an entry derived from its name and text.
    #[must_use]
    pub fn named(mut self) -> CudaKernel {
        let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.name.chars().map(allowed).collect();
        self.entry = String::new();
        let hash = xxh3_128(self.source().as_bytes());
        self.entry = format!("kiln_{name}_{hash:032x}");
        self
    }

    /// Returns the text after the prelude.
    pub fn source(&self) -> String {
        let (entry, text) = (&self.entry, &self.text);
        let threads: u32 = self.block.iter().product();
        let (mut globals, mut declared) = (String::new(), String::new());
        if !text.scope.is_empty() {
            globals = format!(
                "namespace {entry}_scope {{\n{}\n}}\n",
                text.scope.trim_end()
            );
            declared = format!("    using namespace {entry}_scope;\n");
        }
        let [align, dynamic] = match self.maps.is_empty() {
            true => ["", "kiln_dynamic"],
            false => ["__align__(1024) ", "kiln_boxes"],
        };
        // All threads that meet at barriers must decide alike.
        let (guard, cluster) = match (self.maps.is_empty(), self.cluster) {
            (true, 1) => ("errors->state", String::new()),
            (false, 1) => (
                "__syncthreads_or(threadIdx.x == 0 && errors->state)",
                String::new(),
            ),
            (_, blocks) => (
                "kiln_any_of_cluster(threadIdx.x == 0 && errors->state)",
                format!("__cluster_dims__({blocks}, 1, 1) "),
            ),
        };
        declared += &match (&text.shared, self.shared) {
            (None, _) => String::new(),
            (Some(class), 0) => format!("    __shared__ {class} shared;\n"),
            (Some(class), bytes) => format!(
                "    extern __shared__ {align}uint4 {dynamic}[];\n    \
                 {class}& shared = *({class}*){dynamic};\n    \
                 static_assert(sizeof({class}) <= {bytes}, \"it lies in dynamic shared memory\");\n"
            ),
        };
        let args = self.args.iter().enumerate();
        let mut params: Vec<String> = args.map(|(i, a)| a.parameter(&format!("arg{i}"))).collect();
        params.extend((0..self.scalars.len()).map(|i| format!("long long s{i}")));
        params.extend((0..self.sites).map(|i| format!("unsigned site{i}")));
        params.extend(["kiln_errors* errors", "int guarded"].map(String::from));
        let maps = 0..self.maps.len();
        params.extend(maps.map(|i| format!("const __grid_constant__ kiln_tensor_map map{i}")));
        format!(
            "{globals}extern \"C\" __global__ void {cluster}__launch_bounds__({threads}, {}) \
             {entry}({}) {{\n    \
             if (guarded && {guard}) return;\n{declared}{}}}\n",
            self.resident,
            params.join(", "),
            text.body
        )
    }
}

impl Described for CudaKernel {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns the contract as the compiler declared it; it is not checked against the text.
    fn contract(&self) -> Result<Contract, Contradiction> {
        let mut draft = Draft::new(self.name());
        for (index, arg) in self.args.iter().enumerate() {
            match arg.written {
                true => draft.writes(index as u16, arg.dtype)?,
                false => draft.reads(index as u16, arg.dtype, Reads::First)?,
            }
        }
        draft.finish(self.sites)
    }

    fn footprints(&self) -> Vec<Footprint> {
        self.footprints.clone()
    }
}

/// Returns the C type of a dtype in memory.
pub fn memory(dtype: DType) -> &'static str {
    CudaCpp::memory(dtype)
}

/// A number of blocks: ⌈points / each⌉.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// The points that are divided among blocks.
    pub points: Dim,
    /// The number of points of a block; at least 1.
    pub each: u32,
}

dims!(Blocks: points; each);

impl Blocks {
    /// Returns one block.
    pub fn one() -> Blocks {
        Blocks {
            points: Dim::Const(1),
            each: 1,
        }
    }

    /// Returns the number of blocks under a binding.
    pub fn count(&self, values: &[i64]) -> i64 {
        let points_per_block = i64::from(self.each.max(1));
        (self.points.eval(values) + points_per_block - 1) / points_per_block
    }
}

/// The first data error of a run, in device memory; `kiln_errors` in CUDA C++. The thread that changes
/// `state` from 0 writes the rest.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ErrorRecord {
    /// 0, or the plan's number of the site plus one.
    pub state: u32,
    /// Unused.
    pub padding: u32,
    /// The offending index (the dividend for a division by zero).
    pub index: i64,
    /// The exclusive upper bound of the index (0 for a division by zero).
    pub bound: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> CudaKernel {
        let pointer = |written, alone| Pointer {
            dtype: DType::BF16,
            written,
            alone,
        };
        let kernel = CudaKernel {
            name: "add.relu".into(),
            entry: String::new(),
            text: Text {
                scope: "struct Room { int x; };\n".into(),
                shared: Some("Room".into()),
                body: "    arg2[0] = arg0[s0];\n".into(),
                shared_launch: SharedLaunch::Anything,
            },
            args: vec![
                pointer(false, true),
                pointer(false, false),
                pointer(true, false),
            ],
            scalars: vec![Dim::Const(7)],
            sites: 2,
            footprints: Vec::new(),
            grid: [Blocks::one(), Blocks::one(), Blocks::one()],
            block: [32, 2, 1],
            cluster: 1,
            resident: 8,
            shared: 0,
            maps: Vec::new(),
        };
        kernel.named()
    }

    #[test]
    fn the_source_is_made_of_the_parts() {
        let kernel = kernel();
        let text = kernel.source().replace(&kernel.entry, "entry");
        assert_eq!(
            text,
            "\
namespace entry_scope {
struct Room { int x; };
}
extern \"C\" __global__ void __launch_bounds__(64, 8) entry(const unsigned short* __restrict__ arg0, \
             const unsigned short* arg1, unsigned short* arg2, long long s0, unsigned site0, unsigned site1, \
             kiln_errors* errors, int guarded) {
    if (guarded && errors->state) return;
    using namespace entry_scope;
    __shared__ Room shared;
    arg2[0] = arg0[s0];
}
"
        );
        let plain = CudaKernel {
            text: Text {
                body: kernel.text.body.clone(),
                ..Text::default()
            },
            ..kernel.clone()
        };
        let text = plain.source();
        assert!(
            !text.contains("namespace") && !text.contains("__shared__"),
            "{text}"
        );
        let mapped = CudaKernel {
            shared: 64,
            maps: vec![TensorMap {
                arg: 0,
                offset: Dim::ZERO,
                extents: vec![Dim::Const(64)],
                strides: Vec::new(),
                boxes: Boxes::Tiled(vec![64]),
                rounds_to_tf32: false,
            }],
            ..kernel
        };
        let text = mapped.source();
        for part in [
            "int guarded, const __grid_constant__ kiln_tensor_map map0) {",
            "if (guarded && __syncthreads_or(threadIdx.x == 0 && errors->state)) return;",
            "extern __shared__ __align__(1024) uint4 kiln_boxes[];",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn kernels_of_one_name_have_one_text() {
        let named = |change: &dyn Fn(&mut CudaKernel)| {
            let mut kernel = kernel();
            change(&mut kernel);
            kernel.named().entry
        };
        let entry = named(&|_| {});
        assert!(entry.starts_with("kiln_add_relu_"), "{entry}");
        let same = named(&|k| k.grid[0].points = Dim::Const(5));
        assert_eq!(same, entry, "the grid is not part of the text");
        let map = || TensorMap {
            arg: 0,
            offset: Dim::ZERO,
            extents: vec![Dim::Const(64)],
            strides: Vec::new(),
            boxes: Boxes::Tiled(vec![64]),
            rounds_to_tf32: false,
        };
        let changes: [&dyn Fn(&mut CudaKernel); 9] = [
            &|k| k.text.scope += "struct Other;\n",
            &|k| k.text.shared = None,
            &|k| k.text.body += "    return;\n",
            &|k| k.args[1].alone = true,
            &|k| k.args[1].dtype = DType::F32,
            &|k| k.sites = 1,
            &|k| k.block[0] = 64,
            &|k| k.resident = 4,
            &|k| k.maps.push(map()),
        ];
        let mut texts: Vec<String> = changes.map(named).into();
        texts.push(entry);
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 10);
    }
}
