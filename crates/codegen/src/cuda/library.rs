//! Plain products by cuBLASLt, with their epilogue as a kernel of its own.

use super::fused_candidates;
use super::job::Job;
use crate::Approximation;
use crate::cuda::set_footprints;
use crate::schedule::Schedule;
use crate::work::{Body, Candidate, KernelCall, KernelCalls, Slot, Work};
use kiln_base::{DType, Dim, Gpu, numel};
use kiln_plan::{Kernel, LibraryMatrix, LibraryProduct};

/// Returns the product of some work for a library, without an algorithm. `None` if operands have prologues, sizes are
/// unknown, or the dtype or layout is not supported.
pub fn library_product(work: &Work) -> Option<LibraryProduct> {
    let Body::MatMul(m) = &work.body else {
        return None;
    };
    let dtype = m.dtype();
    let is_supported = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::I8);
    if !is_supported || m.dtypes != [dtype; 2] || work.prologues.iter().any(Option::is_some) {
        return None;
    }
    let extents = m
        .batch
        .iter()
        .map(Dim::as_const)
        .collect::<Option<Vec<i64>>>()?;
    let [rows, terms, columns] = [m.m.as_const()?, m.k.as_const()?, m.n.as_const()?];
    let batch: i64 = extents.iter().product();
    if [batch, rows, terms, columns].iter().any(|n| *n < 1) {
        return None;
    }
    let stored = match &work.epilogue {
        Some(kernel) => kernel.args.last()?.dtype,
        None => work.args.get(usize::from(m.out))?.dtype,
    };
    Some(LibraryProduct {
        dtype,
        stored,
        tf32: false,
        batch,
        m: rows,
        k: terms,
        n: columns,
        operands: [
            LibraryMatrix::new(&m.lhs, &extents, [rows, terms])?,
            LibraryMatrix::new(&m.rhs, &extents, [terms, columns])?,
        ],
        out: 0,
        workspace: None,
        workspace_bytes: 0,
        algorithm: [0; 8],
    })
}

/// Returns the candidate that computes some work by a product with its algorithm. `name` names its schedule.
pub fn library_candidate(
    work: &Work,
    gpu: &Gpu,
    mut product: LibraryProduct,
    name: String,
) -> Candidate {
    let Body::MatMul(m) = &work.body else {
        unreachable!("library_product returns products only");
    };
    let mut scratch = Vec::new();
    // The arguments of the kernel, each once.
    let mut args: Vec<Slot> = Vec::new();
    let mut arg_of = |slot: Slot| {
        let index = args.iter().position(|s| *s == slot);
        index.unwrap_or_else(|| {
            args.push(slot);
            args.len() - 1
        }) as u16
    };
    for x in &mut product.operands {
        x.arg = arg_of(Slot::Arg(x.arg.into()));
    }
    product.out = arg_of(match &work.epilogue {
        None => Slot::Arg(m.out.into()),
        Some(_) => {
            let sizes = [product.batch, product.m, product.n];
            scratch.push((product.stored, vec![numel(&sizes.map(Dim::from))]));
            Slot::Scratch(0)
        }
    });
    if product.workspace_bytes > 0 {
        product.workspace = Some(arg_of(Slot::Scratch(scratch.len())));
        scratch.push((DType::U8, vec![Dim::from(product.workspace_bytes as i64)]));
    }
    let approximation = product.tf32.then_some(Approximation::Tf32);
    let mut steps = vec![KernelCall {
        kernel: Kernel::Library(Box::new(product)).into(),
        args,
        sites: Vec::new(),
    }];
    let mut in_place = work.in_place.clone();
    if let Some(kernel) = &work.epilogue {
        let job = Job {
            work,
            gpu,
            schedule: None,
        };
        let epilogue = fused_candidates(job, kernel, false).swap_remove(0).calls;
        in_place = epilogue.in_place;
        steps.extend(epilogue.steps.into_iter().map(|mut step| {
            // The result of the product comes last.
            if let Some(raw) = step.args.last_mut() {
                *raw = Slot::Scratch(0);
            }
            step
        }));
    }
    let mut calls = KernelCalls {
        steps,
        scratch,
        in_place,
    };
    set_footprints(&mut calls, &work.footprints());
    Candidate {
        schedule: Schedule::Library(name),
        approximation,
        predicted: None,
        calls,
    }
}
