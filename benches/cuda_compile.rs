//! The cost of compiling ResNet-50 for inference on a GPU: NVRTC on all cores, NVRTC for each kernel, and a start from
//! the disk cache.
//!
//! Run `cargo bench --bench cuda_compile`, with NVRTC in `KILN_NVRTC`. Without a GPU driver in `KILN_CUDA_DRIVER`, the
//! emulated driver loads the kernels; decoding PTX then dominates the start from the cache.

use kiln::nn::{Forward, Module};
use kiln::{Compiled, DType, Device, Spec, Tensor, compile, no_grad};
use kiln_models::ResNet;
use kiln_plan::Kernel;
use kiln_plan::cuda::{CudaKernel, PRELUDE};
use kiln_runtime::cuda::{self, Code, Nvrtc};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = Nvrtc::get() {
        println!(
            "skipped: {}",
            e.to_string().lines().next().unwrap_or_default()
        );
        return Ok(());
    }
    // A new process has no loaded kernels.
    if std::env::args().any(|a| a == "--once") {
        return compile_once();
    }
    let cache = std::env::temp_dir().join(format!("kiln-cuda-compile-{}", std::process::id()));
    let result = measure_starts(&cache);
    let _ = std::fs::remove_dir_all(cache);
    result?;
    measure_kernels()
}

fn resnet() -> kiln::Result<Compiled<Tensor, Tensor>> {
    let gpu = Device::cuda(0)?;
    let model = ResNet::resnet50(1000)?;
    model.eval();
    model.to(gpu)?;
    let image = Spec::new(DType::F32, [1, 3, 224, 224]).on(gpu);
    compile(image, |x| no_grad(|| model.call(&x)))
}

/// Compiles once and prints the time.
fn compile_once() -> Result<(), Failure> {
    let before = cuda::compilations();
    let start = Instant::now();
    resnet()?;
    let time = start.elapsed().as_secs_f64();
    let (units, read) = (cuda::compilations() - before, cuda::cache_hits());
    println!(
        "{:.3} s, {units} units compiled, {read} read from the cache",
        time
    );
    Ok(())
}

/// Measures a start with an empty cache, and one with the cache that it filled.
fn measure_starts(cache: &Path) -> Result<(), Failure> {
    for label in ["cold start", "warm start"] {
        let child = Command::new(std::env::current_exe()?)
            .arg("--once")
            .env("KILN_CACHE_DIR", cache)
            .output()?;
        let printed = String::from_utf8_lossy(&child.stdout);
        println!(
            "{label}, recording and rewriting included: {}",
            printed.trim()
        );
    }
    Ok(())
}

/// Measures the compilation of kernels to machine code.
fn measure_kernels() -> Result<(), Failure> {
    let compiled = resnet()?;
    let explain = compiled.explain();
    let mut kernels: Vec<&CudaKernel> = Vec::new();
    for k in &compiled.plan().kernels {
        if let Kernel::Cuda(k) = &**k
            && kernels.iter().all(|other| other.entry != k.entry)
        {
            kernels.push(k);
        }
    }
    println!(
        "{} launches and {} to prepare, of {} kernels",
        explain.kernels_run(),
        explain.kernels_prepared(),
        kernels.len()
    );
    let code = Code::Cubin(90);
    let start = Instant::now();
    cuda::compile_units(&kernels, code)?;
    println!(
        "as machine code, on all cores: {:.3} s",
        start.elapsed().as_secs_f64()
    );
    let mut times = Vec::new();
    for k in &kernels {
        let start = Instant::now();
        Nvrtc::get()?.compile(&format!("{PRELUDE}{}", k.source()), code)?;
        times.push((start.elapsed().as_secs_f64(), &k.name));
    }
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sum: f64 = times.iter().map(|a| a.0).sum();
    println!("one by one: {sum:.3} s; the slowest:");
    for (time, name) in times.iter().take(5) {
        println!("    {:>6.1} ms {name}", time * 1e3);
    }
    Ok(())
}
