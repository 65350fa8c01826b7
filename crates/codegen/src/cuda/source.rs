//! The text of a CUDA kernel while it is written.

use kiln_base::{Dim, Gpu};
pub(super) use kiln_plan::cuda::memory;
use kiln_plan::cuda::{Blocks, CudaKernel};
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
    /// The C type.
    pub fn name(self) -> &'static str {
        match self {
            Index::Int => "int",
            Index::Long => "long long",
        }
    }
}

/// The text of a kernel: its lines, and the parameters that they turn out to need.
///
/// Arguments are called `arg0`, `arg1`, …; numbers that are known only at run time are parameters `s0`,
/// `s1`, … (see [`Source::dim`]); sites are `site0`, …; then `errors` and `guarded`.
#[derive(Debug)]
pub(super) struct Source {
    /// Threads of a multiprocessor that the kernel leaves room for.
    resident: u32,
    name: String,
    args: Vec<Arg>,
    /// For each argument whether it may share memory with another.
    shares: Vec<bool>,
    scalars: Vec<Dim>,
    sites: u32,
    /// The type of indices.
    pub index: Index,
    globals: String,
    body: String,
    depth: usize,
}

/// How a kernel begins.
pub(super) const KERNEL: &str = "extern \"C\" __global__ void __launch_bounds__";

/// The place of the entry's name in [`Source::global`] texts.
pub(super) const ENTRY: &str = "@entry@";
/// How a kernel declares its static shared memory, if it has any: one object, whose class is in its
/// [scope](Source::scope).
pub(super) const SHARED: &str = "__shared__ Shared shared;";

impl Source {
    /// A kernel for a GPU, without a body. `sites` is the number of data-error sites that it names.
    pub fn new(gpu: &Gpu, name: &str, args: &[Arg], sites: u32, index: Index) -> Source {
        Source {
            resident: gpu.resident(),
            name: name.into(),
            args: args.to_vec(),
            shares: vec![false; args.len()],
            scalars: Vec::new(),
            sites,
            index,
            globals: String::new(),
            body: String::new(),
            depth: 1,
        }
    }

    /// Notes that two arguments may share memory.
    pub fn share(&mut self, a: usize, b: usize) {
        self.shares[a] = true;
        self.shares[b] = true;
    }

    /// Adds a line to the body. One that ends in `{` indents those after it, up to one that begins with
    /// `}`.
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

    /// The lines that something adds, as text of their own.
    pub fn apart(&mut self, print: impl FnOnce(&mut Source)) -> String {
        let body = std::mem::take(&mut self.body);
        print(self);
        let text = std::mem::replace(&mut self.body, body);
        text.lines()
            .map(|l| format!("{}\n", l.trim_start()))
            .collect()
    }

    /// Adds text at file scope, in front of the kernel. What it declares is named after [`ENTRY`].
    pub fn global(&mut self, text: &str) {
        self.globals += text;
        self.globals += "\n";
    }

    /// Puts text at file scope, where its names are the kernel's own.
    pub fn scope(&mut self, text: &str) {
        self.global(&format!(
            "namespace {ENTRY}_scope {{\n{}\n}}",
            text.trim_end()
        ));
        self.line(format!("using namespace {ENTRY}_scope;"));
    }

    /// A number as a C expression: a literal, or a parameter.
    pub fn dim(&mut self, d: &Dim) -> String {
        match d {
            Dim::Const(c) => match i32::try_from(*c) {
                Ok(c) if c < 0 => format!("({c})"),
                Ok(c) => c.to_string(),
                Err(_) => long(*c),
            },
            d => {
                let known = self.scalars.iter().position(|s| s == d);
                let at = known.unwrap_or_else(|| {
                    self.scalars.push(d.clone());
                    self.scalars.len() - 1
                });
                format!("s{at}")
            }
        }
    }

    /// The affine expression `offset + Σ stride · index`, where `indices` are C expressions.
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

    /// The kernel, called with a grid of blocks of threads and bytes of dynamic shared memory.
    pub fn finish(self, grid: [Blocks; 3], block: [u32; 3], shared: u32) -> CudaKernel {
        let mut params: Vec<String> = Vec::new();
        for (i, arg) in self.args.iter().enumerate() {
            let restrict = if self.shares[i] { "" } else { " __restrict__" };
            params.push(format!("{}{restrict} arg{i}", pointer(arg)));
        }
        params.extend((0..self.scalars.len()).map(|i| format!("long long s{i}")));
        params.extend((0..self.sites).map(|i| format!("unsigned site{i}")));
        params.push("kiln_errors* errors".into());
        params.push("int guarded".into());
        let text = format!(
            "{}{} {{\n    if (guarded && errors->state) return;\n{}}}\n",
            self.globals,
            head(self.resident, block, &params.join(", ")),
            self.body
        );
        let (entry, source) = named(&self.name, &text);
        CudaKernel {
            name: self.name,
            source,
            entry,
            args: self.args,
            scalars: self.scalars,
            grid,
            block,
            shared,
            sites: self.sites,
        }
    }
}

/// The declaration of a kernel that leaves room for so many threads of a multiprocessor: as many as have 128 registers
/// each. Without a number the compiler aims at more, and spills.
pub(super) fn head(resident: u32, block: [u32; 3], params: &str) -> String {
    let threads: u32 = block.iter().product();
    let blocks = (resident / threads).max(1);
    format!("{KERNEL}({threads}, {blocks}) {ENTRY}({params})")
}

/// The entry of a text in which it is called [`ENTRY`], and the text with its name.
pub(super) fn named(name: &str, text: &str) -> (String, String) {
    let entry = format!("{}_{:016x}", identifier(name), hash(text));
    let text = text.replace(ENTRY, &entry);
    (entry, text)
}

/// The C type of an argument.
pub(super) fn pointer(arg: &Arg) -> String {
    let constant = if arg.written { "" } else { "const " };
    format!("{constant}{}*", memory(arg.dtype))
}

/// A literal of type `long long`.
pub(super) fn long(c: i64) -> String {
    match c {
        i64::MIN => "(-9223372036854775807LL - 1)".into(),
        c if c < 0 => format!("({c}LL)"),
        c => format!("{c}LL"),
    }
}

/// A name with nothing in it that C does not allow.
fn identifier(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("kiln_{}", name.chars().map(allowed).collect::<String>())
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}
