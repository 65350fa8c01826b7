//! The text of a CUDA kernel during emission.

use kiln_base::{Compute, Dim, Gpu, Scalar};
use kiln_plan::cstyle::Dialect;
pub(super) use kiln_plan::cuda::memory;
use kiln_plan::cuda::{Blocks, CudaCpp, CudaKernel, Pointer, SharedLaunch, TensorMap, Text};
use kiln_plan::tile::Arg;

/// The integer type that indices and addresses are computed in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Index {
    /// `int`: everything is known and small.
    Int,
    /// `long long`.
    Long,
}

impl Index {
    /// Returns the C type.
    pub fn name(self) -> &'static str {
        match self {
            Index::Int => "int",
            Index::Long => "long long",
        }
    }
}

/// The text of a kernel: its lines, and the parameters that they refer to.
///
/// Arguments are named `arg0`, `arg1`, …; numbers that are known only at run time are parameters `s0`, `s1`, … (see
/// [`Source::dim`]); sites are `site0`, …; then `errors` and `guarded`.
#[derive(Debug)]
pub(super) struct Source {
    /// The number of threads for which a multiprocessor has enough registers.
    resident: u32,
    /// The number of blocks that a multiprocessor is to hold, if it is known.
    min_blocks: Option<u32>,
    /// The number of blocks of a cluster.
    pub cluster: u32,
    name: String,
    args: Vec<Pointer>,
    scalars: Vec<Dim>,
    sites: u32,
    /// The type of indices.
    pub index: Index,
    /// The kernels that it may share a launch with.
    pub shared_launch: SharedLaunch,
    scope: String,
    shared: Option<String>,
    dynamic: u32,
    maps: Vec<TensorMap>,
    body: String,
    depth: usize,
}

impl Source {
    /// Returns a kernel for a GPU, without a body. `sites` is the number of its data-error sites.
    pub fn new(gpu: &Gpu, name: &str, args: &[Arg], sites: u32, index: Index) -> Source {
        let unaliased = |a: &Arg| Pointer {
            dtype: a.dtype,
            written: a.written,
            alone: true,
        };
        Source {
            resident: gpu.resident(),
            min_blocks: None,
            cluster: 1,
            name: name.into(),
            args: args.iter().map(unaliased).collect(),
            scalars: Vec::new(),
            sites,
            index,
            shared_launch: SharedLaunch::default(),
            scope: String::new(),
            shared: None,
            dynamic: 0,
            maps: Vec::new(),
            body: String::new(),
            depth: 1,
        }
    }

    /// Declares that two arguments may alias.
    pub fn may_alias(&mut self, a: usize, b: usize) {
        self.args[a].alone = false;
        self.args[b].alone = false;
    }

    /// Adds a line to the body. A line that ends in `{` indents those after it, up to one that begins with `}`.
    pub fn line(&mut self, text: impl AsRef<str>) {
        let text = text.as_ref();
        if text.starts_with('}') {
            self.depth -= 1;
        }
        for _ in 0..self.depth {
            self.body += "    ";
        }
        self.body += text;
        self.body += "\n";
        if text.ends_with('{') {
            self.depth += 1;
        }
    }

    /// Returns the lines that `emit` adds, without adding them to the body.
    pub fn capture(&mut self, emit: impl FnOnce(&mut Source)) -> String {
        let body = std::mem::take(&mut self.body);
        emit(self);
        let text = std::mem::replace(&mut self.body, body);
        text.lines()
            .map(|l| format!("{}\n", l.trim_start()))
            .collect()
    }

    /// Adds text at file scope.
    pub fn scope(&mut self, text: &str) {
        self.scope += text.trim_end();
        self.scope += "\n";
    }

    /// Declares static shared memory: the object `shared` of a class at file scope.
    pub fn shared(&mut self, class: &str) {
        self.shared = Some(class.into());
    }

    /// Declares `shared` in at least `bytes` bytes of dynamic shared memory.
    pub fn dynamic_shared(&mut self, class: &str, bytes: u32) {
        self.shared(class);
        self.dynamic = bytes;
    }

    /// Adds a tensor map and returns its name.
    pub fn map(&mut self, map: TensorMap) -> String {
        self.maps.push(map);
        format!("map{}", self.maps.len() - 1)
    }

    /// Bounds the registers of threads so that a multiprocessor holds `blocks` blocks.
    pub fn bound_registers(&mut self, blocks: u32) {
        self.min_blocks = Some(blocks);
    }

    /// Returns a number as a C expression: a literal, or a parameter.
    pub fn dim(&mut self, d: &Dim) -> String {
        match d {
            Dim::Const(c) => {
                let is_small = i32::try_from(*c).is_ok();
                let compute = if is_small { Compute::I32 } else { Compute::I64 };
                CudaCpp::literal(Scalar::Int(*c), compute)
            }
            d => {
                let known = self.scalars.iter().position(|s| s == d);
                let index = known.unwrap_or_else(|| {
                    self.scalars.push(d.clone());
                    self.scalars.len() - 1
                });
                format!("s{index}")
            }
        }
    }

    /// Returns the affine expression `offset + Σ stride · index`, where `indices` are C expressions.
    pub fn affine(&mut self, offset: &Dim, strides: &[Dim], indices: &[String]) -> String {
        let mut terms = Vec::new();
        for (stride, index) in strides.iter().zip(indices) {
            match stride {
                Dim::Const(0) => {}
                _ if index == "0" => {}
                Dim::Const(1) => terms.push(index.clone()),
                d => terms.push(format!("{index} * {}", self.dim(d))),
            }
        }
        if !offset.is(0) || terms.is_empty() {
            terms.push(self.dim(offset));
        }
        terms.join(" + ")
    }

    /// Returns the kernel with its grid and block. The number of threads that a multiprocessor is to hold bounds the
    /// registers of a thread; without a bound the compiler aims at more threads, and spills.
    pub fn finish(self, grid: [Blocks; 3], block: [u32; 3]) -> CudaKernel {
        let threads: u32 = block.iter().product();
        let max_blocks = self.resident / threads;
        let kernel = CudaKernel {
            name: self.name,
            entry: String::new(),
            text: Text {
                scope: self.scope,
                shared: self.shared,
                body: self.body,
                shared_launch: self.shared_launch,
            },
            args: self.args,
            scalars: self.scalars,
            sites: self.sites,
            footprints: Vec::new(),
            grid,
            block,
            cluster: self.cluster,
            resident: self
                .min_blocks
                .map_or(max_blocks, |min_blocks| min_blocks.min(max_blocks))
                .max(1),
            shared: self.dynamic,
            maps: self.maps,
        };
        kernel.named()
    }
}
