//! Kernel IR and library kernels printed in CUDA C++.
//!
//! What the CPU runs as one launch may be several here, with memory between them (partial results of a
//! split reduction, passes of a sort).

use crate::kir;
use crate::program::Launch;
use kiln_base::cuda::CudaKernel;
use kiln_base::plan::Kernel;
use kiln_base::{DType, Dim};

mod beside;
mod families;
mod parts;
mod points;
mod rows;
mod rows_shape;
mod scalar;
mod source;
mod values;
mod vector;
mod walk;
mod ways;

pub use beside::{fit_in_a_launch, shares_a_launch, side_by_side};
pub use ways::Ways;

/// A way to compute a launch on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// What tells it from the others, such as `tile 64x64 by 128 threads in 4 parts`; empty where there are no
    /// others.
    pub name: String,
    /// What it costs by a model, in a unit that the ways of a launch share.
    pub predicted: Option<f64>,
    /// Its kernels.
    pub printed: Printed,
}

impl Way {
    /// The only one.
    fn only(printed: Printed) -> Vec<Way> {
        let (name, predicted) = (String::new(), None);
        vec![Way {
            name,
            predicted,
            printed,
        }]
    }
}

/// A launch in CUDA C++.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Printed {
    /// What runs, in order.
    pub steps: Vec<Step>,
    /// Memory that only these steps use: dtype and shape.
    pub scratch: Vec<(DType, Vec<Dim>)>,
    /// Pairs (read argument, written argument) of the launch that may share memory.
    pub in_place: Vec<(usize, usize)>,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The kernel.
    pub kernel: CudaKernel,
    /// One for each of the kernel's arguments.
    pub args: Vec<Slot>,
    /// For each of the kernel's sites its position among the launch's.
    pub sites: Vec<usize>,
}

/// What a kernel argument is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// An argument of the launch.
    Arg(usize),
    /// One of [`Printed::scratch`].
    Scratch(usize),
}

/// A launch that was made for the CPU, in CUDA C++: the default, and with `all` every other way to compute it.
///
/// # Errors
/// What is not supported.
pub(crate) fn print(launch: &Launch, all: bool) -> Result<Vec<Way>, String> {
    match (&launch.kernel, &launch.kir) {
        (Kernel::Tile(_), Some(kernel)) => Ok(fused(kernel, &launch.in_place, all)),
        _ => families::print(launch, all),
    }
}

/// The ways of a kernel that the Kernel IR says everything about.
fn fused(kernel: &kir::Kernel, in_place: &[(usize, usize)], all: bool) -> Vec<Way> {
    let way = |name, kernel, in_place| Way {
        name,
        predicted: None,
        printed: Printed {
            steps: vec![whole(kernel)],
            scratch: Vec::new(),
            in_place,
        },
    };
    match kernel.inner.is_empty() {
        true => {
            let print = |(name, vector)| {
                let kernel = points::print(kernel, in_place, &vector);
                way(name, kernel, in_place.to_vec())
            };
            points::shapes(kernel, all).into_iter().map(print).collect()
        }
        false => {
            let print = |(name, shape)| {
                let (kernel, in_place) = rows::print(kernel, in_place, &shape);
                way(name, kernel, in_place)
            };
            let shapes = rows_shape::shapes(kernel, all);
            shapes.into_iter().map(print).collect()
        }
    }
}

/// A step that takes what the launch takes.
fn whole(kernel: CudaKernel) -> Step {
    Step {
        args: (0..kernel.args.len()).map(Slot::Arg).collect(),
        sites: (0..kernel.sites as usize).collect(),
        kernel,
    }
}
