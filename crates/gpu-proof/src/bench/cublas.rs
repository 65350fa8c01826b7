//! cuBLASLt, opened at run time in this process: what the same GPU gives for products at the same moment.

use crate::driver::{Array, Driver};
use crate::{Failed, Report, Settings};
use cudarc::cublaslt::{result, sys};
use kiln_tensor::DType;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::{from_ref, null_mut};
use std::time::Instant;

/// Bytes of workspace, which NVIDIA advises for Hopper.
const WORKSPACE: usize = 32 << 20;
/// M, N and K of the products that measure the peak of the library.
pub(crate) const PEAK_SIZE: usize = 8192;

/// The opened library.
pub(crate) struct Cublas {
    driver: Driver,
    handle: sys::cublasLtHandle_t,
}

/// Where the library may be: beside NVRTC, in the wheel of its own, or where the loader looks.
fn places(nvrtc: &Path) -> Vec<PathBuf> {
    let folder = nvrtc.parent().unwrap_or(Path::new(""));
    let folders = [
        folder.to_path_buf(),
        folder.join("../../cublas/lib"),
        PathBuf::new(),
    ];
    let names = ["libcublasLt.so.13", "libcublasLt.so.12"];
    let files = folders.iter().flat_map(|f| names.map(|n| f.join(n)));
    files.collect()
}

impl Cublas {
    /// The library, or a note that says why there is none.
    pub(crate) fn open(settings: &Settings, report: &mut Report) -> Option<Cublas> {
        if settings.emulated() {
            return None;
        }
        match Cublas::find() {
            Ok(cublas) => Some(cublas),
            Err(e) => {
                report.note(format!("cuBLASLt is not measured: {e}"));
                None
            }
        }
    }

    pub(crate) fn find() -> Result<Cublas, Failed> {
        let nvrtc = kiln_runtime::cuda::Nvrtc::get()?.path();
        for path in places(nvrtc) {
            // SAFETY: the initialisers of NVIDIA's libraries have no preconditions.
            if let Ok(library) = unsafe { libloading::Library::new(&path) } {
                // The loader gives it for its soname from now on.
                std::mem::forget(library);
                break;
            }
        }
        // SAFETY: as above.
        if !unsafe { sys::is_culib_present() } {
            return Err(format!("there is no libcublasLt beside {}", nvrtc.display()).into());
        }
        let driver = Driver::open()?;
        Ok(Cublas {
            driver,
            handle: result::create_handle()?,
        })
    }

    /// A product of these sizes of random operands, in the arithmetic of the dtype.
    pub(crate) fn product(
        &self,
        dtype: DType,
        [m, n, k]: [usize; 3],
    ) -> Result<Product<'_>, Failed> {
        let kind = match dtype {
            DType::F32 => sys::cudaDataType::CUDA_R_32F,
            DType::F16 => sys::cudaDataType::CUDA_R_16F,
            DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
            other => return Err(format!("no products of {other} are measured").into()),
        };
        // Its matrices are column by column, so this is the product of the transposes.
        let layout = |rows: usize, columns: usize| {
            result::create_matrix_layout(kind, rows as u64, columns as u64, rows as i64)
        };
        let layouts = [layout(n, k)?, layout(k, m)?, layout(n, m)?];
        let of = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let what = result::create_matmul_desc(of, sys::cudaDataType::CUDA_R_32F)?;
        let preference = result::create_matmul_pref()?;
        let most =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the layouts, the description and the preference are alive, and the bytes of a number are given.
        let found = unsafe {
            let bytes = from_ref(&WORKSPACE).cast::<c_void>();
            result::set_matmul_pref_attribute(preference, most, bytes, size_of::<usize>())?;
            let [a, b, c] = layouts;
            result::get_matmul_algo_heuristic(self.handle, what, a, b, c, c, preference)?
        };
        let operands = [(n, k), (k, m)].map(|(rows, columns)| {
            let bytes = rows * columns * dtype.size();
            Array::random(bytes, dtype)
        });
        let [a, b] = operands;
        Ok(Product {
            cublas: self,
            layouts,
            what,
            algorithm: found.algo,
            memory: [
                a?,
                b?,
                Array::new(m * n * dtype.size())?,
                Array::new(WORKSPACE)?,
            ],
        })
    }

    /// Operations a second of large products, measured several times.
    pub(crate) fn rates(&self, dtype: DType) -> Result<Vec<f64>, Failed> {
        let product = self.product(dtype, [PEAK_SIZE; 3])?;
        let flops = 2.0 * (PEAK_SIZE as f64).powi(3);
        let rate = |_| Ok(flops / product.seconds(0.05)?);
        (0..9).map(rate).collect()
    }
}

/// A product, ready to run.
pub(crate) struct Product<'a> {
    cublas: &'a Cublas,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    what: sys::cublasLtMatmulDesc_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
    memory: [Array; 4],
}

impl Product<'_> {
    fn start(&self) -> Result<(), Failed> {
        let (one, zero) = (1f32, 0f32);
        let [a, b, c, workspace] = [0, 1, 2, 3].map(|i| self.memory[i].address() as *mut c_void);
        let [la, lb, lc] = self.layouts;
        // SAFETY: the arrays have what the layouts say, and live until the device was waited for.
        Ok(unsafe {
            result::matmul(
                self.cublas.handle,
                self.what,
                from_ref(&one).cast(),
                from_ref(&zero).cast(),
                a,
                la,
                b,
                lb,
                c,
                lc,
                c,
                lc,
                from_ref(&self.algorithm),
                workspace,
                WORKSPACE,
                null_mut(),
            )
        }?)
    }

    /// Seconds of one, of as many as take about so long.
    pub(crate) fn seconds(&self, about: f64) -> Result<f64, Failed> {
        let round = |count: usize| -> Result<f64, Failed> {
            let start = Instant::now();
            for _ in 0..count {
                self.start()?;
            }
            self.cublas.driver.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        round(2)?;
        let once = round(4)? / 4.0;
        let count = ((about / once) as usize).clamp(4, 4096);
        Ok(round(count)? / count as f64)
    }
}

impl Drop for Product<'_> {
    fn drop(&mut self) {
        let _ = self.cublas.driver.synchronize();
        // SAFETY: nothing uses them any more.
        unsafe {
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.what);
        }
    }
}
