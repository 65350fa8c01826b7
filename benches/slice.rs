//! Figures of the CPU engine and of the compiler, each beside what bounds it.
//!
//! `cargo bench` prints them; nothing is asserted.

use kiln::nn::{Forward, Module};
use kiln::{DType, Result, Spec, Tensor, compile, no_grad};
use kiln_models::ResNet;
use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<()> {
    println!("{:<52} {:>12}", "what", "median");
    fused_chain()?;
    softmax()?;
    tiny_ops()?;
    record_hash_bind()?;
    compile_resnet()?;
    Ok(())
}

/// The median time of `f` in seconds, after two warm-up calls.
fn median(mut f: impl FnMut()) -> f64 {
    f();
    f();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 11 || start.elapsed().as_secs_f64() < 0.5 && times.len() < 10_000 {
        let t = Instant::now();
        f();
        times.push(t.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn row(what: &str, seconds: f64) {
    let (value, unit) = match seconds {
        s if s < 1e-4 => (s * 1e6, "us"),
        s => (s * 1e3, "ms"),
    };
    println!("{what:<52} {value:>9.2} {unit}");
}

/// gelu(x * a + b) * c over 16M f32: 20 bytes an element.
fn fused_chain() -> Result<()> {
    let n = 16 << 20;
    let inputs = [1, 2, 3, 4].map(|i| Tensor::full([n], i as f64 / 3.0, DType::F32));
    for t in &inputs {
        t.realize()?;
    }
    let f = compile(&inputs, |[x, a, b, c]| (x * a + b).gelu() * c)?;
    let bytes = n * 20;
    let copy = copy_time(bytes);
    let time = median(|| drop(black_box(f.run(&inputs).unwrap())));
    row("gelu(x*a+b)*c, 4 x 16M f32", time);
    row("  non-temporal copy of as many bytes", copy);
    println!("  ratio {:.2}", time / copy);
    Ok(())
}

/// The time to move `bytes` bytes (half read, half written past the cache) on all cores.
fn copy_time(bytes: usize) -> f64 {
    let half = bytes / 2 / 4;
    let source = vec![1f32; half];
    let mut target = vec![0f32; half];
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    median(|| {
        let chunk = half.div_ceil(threads);
        std::thread::scope(|s| {
            for (a, b) in source.chunks(chunk).zip(target.chunks_mut(chunk)) {
                s.spawn(move || stream(a, b));
            }
        });
        black_box(&target);
    })
}

#[cfg(target_arch = "x86_64")]
fn stream(from: &[f32], to: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_sfence, _mm_stream_ps};
    // SAFETY: `body` is aligned to 16 bytes, both slices have at least `body.len() * 4` floats from
    // where they are read and written, and SSE is part of x86-64.
    unsafe {
        let (head, body, tail) = to.align_to_mut::<[f32; 4]>();
        let skip = if (body.as_ptr() as usize).is_multiple_of(16) {
            head.len()
        } else {
            return;
        };
        for (i, b) in body.iter_mut().enumerate() {
            _mm_stream_ps(
                b.as_mut_ptr(),
                _mm_loadu_ps(from.as_ptr().add(skip + i * 4)),
            );
        }
        head.copy_from_slice(&from[..skip]);
        tail.copy_from_slice(&from[from.len() - tail.len()..]);
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(from: &[f32], to: &mut [f32]) {
    to.copy_from_slice(from);
}

fn softmax() -> Result<()> {
    let x = Tensor::randn([4096, 4096], DType::F32);
    x.realize()?;
    let f = compile(&x, |x| x.softmax(1))?;
    row(
        "softmax, 4096 x 4096 f32",
        median(|| drop(black_box(f.run(&x).unwrap()))),
    );
    Ok(())
}

/// A chain of 100 operations on 64 floats.
fn tiny_ops() -> Result<()> {
    let x = Tensor::full([64], 0.5, DType::F32);
    x.realize()?;
    let f = compile(&x, |x| {
        let mut y = x.clone();
        for i in 0..50 {
            y = (y * 1.01 + 0.001 * i as f64).clone();
        }
        y
    })?;
    println!("  {} kernels", f.explain().kernels_run());
    row(
        "100 tiny ops on 64 floats",
        median(|| drop(black_box(f.run(&x).unwrap()))),
    );
    Ok(())
}

/// Recording, looking up and binding a program of 1,000 operations, without running its kernels.
fn record_hash_bind() -> Result<()> {
    let x = Tensor::full([64], 0.5, DType::F32);
    let y = Tensor::full([64], 0.25, DType::F32);
    x.realize()?;
    y.realize()?;
    let program = |x: &Tensor, y: &Tensor| {
        let mut t = x.clone();
        for _ in 0..333 {
            t = ((&t + y) * y).abs();
        }
        t
    };
    let lazy = median(|| drop(black_box(program(&x, &y).realize().map(|_| ()))));
    let record = median(|| drop(black_box(program(&x, &y))));
    let f = compile([&x, &y], |[x, y]| program(&x, &y))?;
    let run = median(|| drop(black_box(f.run([&x, &y]).unwrap())));
    row(
        "record + hash + bind, 1,000 ops (kernels excluded)",
        lazy - run,
    );
    row("  recording alone", record);
    row("  the kernels", run);
    Ok(())
}

/// Compiling the layers of ResNet-50 for inference at 224 x 224.
fn compile_resnet() -> Result<()> {
    let resnet = ResNet::resnet50(1000)?;
    resnet.eval();
    let image = Spec::new(DType::F32, [1, 3, 224, 224]);
    let mut times = Vec::new();
    let mut described = String::new();
    for _ in 0..5 {
        let start = Instant::now();
        let f = compile(&image, |x| no_grad(|| resnet.call(&x)))?;
        times.push(start.elapsed().as_secs_f64());
        described = format!(
            "  {} convolutions folded, {} kernels in every run, {} prepared",
            f.explain().folded(),
            f.explain().kernels_run(),
            f.explain().kernels_prepared()
        );
    }
    times.sort_by(f64::total_cmp);
    row("compiling ResNet-50", times[2]);
    println!("{described}");
    Ok(())
}
