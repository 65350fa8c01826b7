//! Candidates by cuBLASLt.

use super::choose::LIBRARY;
use super::settings::Precision;
use crate::Options;
use kiln_base::{DType, Gpu};
use kiln_codegen::{Approximation, Candidate, Work, library_candidate, library_product};
use kiln_plan::LibraryProduct;
use kiln_runtime::cuda;
use std::sync::Arc;

/// cuBLASLt on a device.
pub(super) struct Library {
    device: Arc<cuda::Device>,
    version: String,
}

impl Library {
    /// Returns the library, if it is found and may be tried.
    pub fn new(device: &Arc<cuda::Device>, options: &Options) -> Option<Library> {
        // Candidates differ in the memory that they take.
        let is_wanted = options.tune.cublaslt && options.memory_budget.is_none();
        let version = is_wanted.then(cuda::cublas_lt_version)?.ok()?;
        let device = device.clone();
        Some(Library { device, version })
    }

    /// The candidates for some work: each algorithm that the library advises for its product, by rank. A product that
    /// it refuses has none.
    pub fn candidates(&self, work: &Work, gpu: &Gpu, precision: Precision) -> Vec<Candidate> {
        let Some(plain) = library_product(work) else {
            return Vec::new();
        };
        let allows_tf32 = plain.dtype == DType::F32 && precision.allows(Approximation::Tf32);
        let tf32_product = allows_tf32.then(|| LibraryProduct {
            tf32: true,
            ..plain.clone()
        });
        let mut candidates = Vec::new();
        for product in [plain].into_iter().chain(tf32_product) {
            let algorithms = cuda::library_algorithms(&self.device, &product).unwrap_or_default();
            candidates.extend(algorithms.iter().enumerate().map(|(rank, algorithm)| {
                let product = LibraryProduct {
                    algorithm: algorithm.description,
                    workspace_bytes: algorithm.workspace,
                    ..product.clone()
                };
                let name = format!("{LIBRARY}{} #{rank}", self.version);
                library_candidate(work, gpu, product, name)
            }));
        }
        candidates
    }
}
