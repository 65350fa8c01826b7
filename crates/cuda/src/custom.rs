//! Kernels that users provide.

use super::launch::{GRID, Launch};
use super::loader::Loader;
use super::module::{Parameters, Unloaded};
use kiln_base::custom::CudaFunction;
use kiln_kernel::custom::{Array, Custom};
use kiln_kernel::error::{Error, Result};
use kiln_plan::cuda::Pointer;
use std::fmt::Write;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

impl Launch {
    /// Links a kernel that calls a user's function, unless a guard skips it.
    ///
    /// # Errors
    /// [`Error::Cuda`] if there is no function or it can't be compiled.
    pub fn custom(loader: &Loader, custom: &Custom) -> Result<Arc<Launch>> {
        let Custom {
            name,
            operands,
            out,
            ..
        } = custom;
        let function = custom.kernels.cuda(custom.kernel.as_deref());
        let function = &function.map_err(Error::Cuda)?;
        let shapes: Vec<&[usize]> = operands.iter().map(|o| &o.shape[..]).collect();
        let grid = (function.grid)(&shapes, &out.shape);
        let fits = |(n, max): (&u32, &i64)| i64::from(*n) <= *max;
        let threads: u64 = grid.threads.iter().map(|t| u64::from(*t)).product();
        if !grid.blocks.iter().zip(&GRID).all(fits) || !(1..=1024).contains(&threads) {
            let (blocks, threads) = (grid.blocks, grid.threads);
            return Err(Error::Cuda(format!(
                "no GPU runs {blocks:?} blocks of {threads:?} threads"
            )));
        }
        let mut args: Vec<Option<Pointer>> = Vec::new();
        for (array, written) in operands.iter().map(|o| (o, false)).chain([(out, true)]) {
            if args.len() <= array.arg {
                args.resize(array.arg + 1, None);
            }
            let dtype = array.dtype;
            args[array.arg] = Some(Pointer {
                dtype,
                written,
                alone: false,
            });
        }
        let args = args.into_iter().flatten().collect::<Vec<Pointer>>();
        let text = wrapper_text(name, function, operands, out, &args, grid.numbers.len());
        let entry = format!("kiln_custom_{:016x}", xxh3_64(text.as_bytes()));
        let kernel = Unloaded {
            name,
            entry: &entry,
            source: text.replace(ENTRY, &entry).into(),
            shared: grid.shared,
            parameters: Parameters {
                pointers: args.len(),
                numbers: grid.numbers.len(),
                ..Parameters::default()
            },
        };
        Launch::of(loader, kernel, grid.blocks, grid.threads, grid.numbers)
    }
}

const ENTRY: &str = "@entry@";

/// The text of a kernel that calls a user's function, and the function's source.
fn wrapper_text(
    name: &str,
    function: &CudaFunction,
    operands: &[Array],
    out: &Array,
    args: &[Pointer],
    numbers: usize,
) -> String {
    let mut parameters = String::new();
    for (i, arg) in args.iter().enumerate() {
        let _ = write!(parameters, "{}, ", arg.parameter(&format!("arg{i}")));
    }
    for i in 0..numbers {
        let _ = write!(parameters, "long long n{i}, ");
    }
    let arrays = operands
        .iter()
        .chain([out])
        .map(|a| format!("arg{}", a.arg));
    let numbers = (0..numbers).map(|i| format!("n{i}"));
    let call_args: Vec<String> = arrays.chain(numbers).collect();
    let (source, callee) = (&function.source, &function.function);
    let call_args = call_args.join(", ");
    // The compiler's messages count the lines of the user's source.
    format!(
        "#line 1 \"{}\"\n{source}\n#line 1 \"the call of {callee}\"\n\
         extern \"C\" __global__ void {ENTRY}({parameters}kiln_errors* errors, int guarded) {{\n    \
         if (guarded && errors->state) return;\n    {callee}({call_args});\n}}\n",
        name.escape_default()
    )
}
