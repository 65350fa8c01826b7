//! Kernel IR and library kernels printed in CUDA C++.
//!
//! What the CPU runs as one launch may be several here, with memory between them (partial results of a
//! split reduction, passes of a sort).

use crate::kir;
use crate::program::Launch;
use kiln_base::{DType, Dim};
use kiln_plan::Kernel;
use kiln_plan::cuda::CudaKernel;

mod approximation;
mod beside;
mod families;
mod fast;
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

pub use approximation::Approximation;
pub use beside::{fit_in_a_launch, shares_a_launch, side_by_side};
pub use ways::Ways;

/// A way to compute a launch on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// What tells it from the others, such as `tile 64x64 by 128 threads in 4 parts`; empty where there are no
    /// others.
    pub name: String,
    /// What it gives up; the default gives up nothing.
    pub approximation: Option<Approximation>,
    /// What it costs by a model, in a unit that the ways of a launch share.
    pub predicted: Option<f64>,
    /// Its kernels.
    pub printed: Printed,
}

impl Way {
    /// The only one.
    fn only(printed: Printed) -> Vec<Way> {
        vec![Way {
            name: String::new(),
            approximation: None,
            predicted: None,
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
    let fast = fast::approximation(kernel).filter(|_| all);
    let by = |approximation| fused_by(kernel, in_place, all, approximation);
    let mut ways = by(None);
    ways.extend(fast.into_iter().flat_map(|a| by(Some(a))));
    ways
}

/// Those that give up nothing, or those with fast math.
fn fused_by(
    kernel: &kir::Kernel,
    in_place: &[(usize, usize)],
    all: bool,
    approximation: Option<Approximation>,
) -> Vec<Way> {
    let fast = approximation.is_some();
    let way = |name: String, kernel, in_place| Way {
        name: approximation.map_or(name.clone(), |a| format!("{a}: {name}")),
        approximation,
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
                let kernel = points::print(kernel, in_place, &vector, fast);
                way(name, kernel, in_place.to_vec())
            };
            points::shapes(kernel, all).into_iter().map(print).collect()
        }
        false => {
            let print = |(name, shape)| {
                let (kernel, in_place) = rows::print(kernel, in_place, &shape, fast);
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
