//! GPU kernels that are compiled when a package is written.

use crate::buffers;
use crate::error::{Error, Result, failed};
use crate::manifest::{CudaInfo, Manifest};
use crate::map::Map;
use crate::program;
use crate::write::{Contents, File, Piece};
use kiln_plan::Plan;
use kiln_runtime::cuda::{self, Code, Image};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Compiles the kernels of all programs for CUDA into files, and returns their descriptions.
pub(crate) fn add(contents: &Contents, files: &mut Vec<File>) -> Result<Vec<CudaInfo>> {
    let programs = contents.entries.iter().flat_map(|e| &e.programs);
    let plans = programs.map(|p| &p.program.plan);
    let plans: Vec<&Plan> = plans.filter(|plan| program::is_cuda(plan)).collect();
    let mut infos = Vec::new();
    for code in &contents.cuda {
        let images = cuda::compile_ahead(&plans, *code);
        let images = images.map_err(|e| Error::Contents(format!("kernels for {code}: {e}")))?;
        for (number, image) in images.into_iter().enumerate() {
            let kind = match image.code {
                Code::Cubin(_) => "cubin",
                Code::Ptx(_) | Code::Portable(_) => "ptx",
            };
            let file = format!("cuda/{code}-{number}.{kind}");
            files.push((file.clone(), vec![Piece::Stored(image.bytes)]));
            infos.push(CudaInfo {
                code: code.to_string(),
                compiler: image.compiler,
                kernels: image.kernels.iter().map(|k| format!("{k:032x}")).collect(),
                file,
            });
        }
    }
    Ok(infos)
}

/// A loader of the package's compiled kernels for a GPU.
pub(crate) fn loader(
    gpu: &Arc<cuda::Device>,
    map: &Arc<Map>,
    manifest: &Manifest,
    files: &BTreeMap<String, Range<usize>>,
) -> Result<cuda::Loader> {
    let image = |info: &CudaInfo| {
        let range = files.get(&info.file).cloned().unwrap_or(0..0);
        let bytes = buffers::storage(map, range).map_err(failed(&info.file))?;
        Ok(Image {
            code: info.code()?,
            compiler: info.compiler,
            kernels: info.keys()?,
            bytes: Arc::new(bytes),
        })
    };
    let images = manifest.cuda.iter().map(image);
    Ok(cuda::Loader::new(gpu, images.collect::<Result<_>>()?))
}

/// The targets that kernels are compiled for anew; none without a compiler.
pub(crate) fn codes(manifest: &Manifest) -> Result<Vec<Code>> {
    let mut codes = Vec::new();
    for info in &manifest.cuda {
        let code = info.code()?;
        if !codes.contains(&code) && cuda::Nvrtc::get().is_ok() {
            codes.push(code);
        }
    }
    Ok(codes)
}
