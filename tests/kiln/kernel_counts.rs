//! The numbers of kernels of networks and training steps, their memory, and their results.

use crate::cuda;
use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{Forward, LayerNorm, Linear, Module, Sequential, sequential};
use kiln::{
    CompileOptions, DType, Device, Layout, Program, Spec, Tensor, Var, compile_with, no_grad,
    with_seed,
};
use kiln_models::TransformerConfig;
use kiln_models::workloads::{self, Setup, WORKLOADS, Workload};
use std::collections::BTreeMap;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The maximum number of kernels that each program runs. Launches that start together count as one, like the updates of
/// many parameters in a `foreach` kernel of PyTorch.
const MOST: [(&str, usize); 18] = [
    ("resnet50", 56),
    ("resnet50-8", 56),
    ("resnet50-int8", 57),
    ("resnet50-8-int8", 57),
    ("mobilenet-int8", 83),
    ("encoder-int8", 18),
    ("resnet50-int7", 57),
    ("resnet50-8-int7", 57),
    ("encoder-int7", 18),
    ("mobilenet", 67),
    ("unet", 31),
    ("encoder", 5),
    ("decoder", 8),
    ("decoder-cached", 9),
    ("lstm", 3),
    ("resnet18-step", 85),
    ("encoder-step", 19),
    ("lstm-step", 7),
];

/// The maximum number of kernels of training steps inside `autocast`.
const MAX_IN_HALVES: [(&str, DType, usize); 3] = [
    ("resnet18-step", DType::BF16, 85),
    ("encoder-step", DType::BF16, 24),
    ("encoder-step", DType::F16, 29),
];

/// All programs in f32, and training steps in f16 and bf16.
fn everything() -> impl Iterator<Item = (&'static str, DType)> {
    let wide = WORKLOADS.iter().map(|w| (w.0, DType::F32));
    wide.chain(MAX_IN_HALVES.map(|(name, dtype, _)| (name, dtype)))
}

fn made(name: &str, dtype: DType, options: &CompileOptions) -> kiln::Result<Workload> {
    let wide: Setup = options.into();
    workloads::make(name, Setup { dtype, ..wide })
}

/// The first words of the kernels' names, with the number of kernels of each.
fn kinds(program: &Program) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let explain = program.explain();
    for k in explain
        .kernels
        .iter()
        .filter(|k| !k.prepared && !k.concurrent)
    {
        let kind = k.name.split(['+', '_', ' ']).next().unwrap_or_default();
        *counts.entry(kind).or_default() += 1;
    }
    format!("{counts:?}")
}

#[test]
fn programs_have_few_kernels() -> Outcome {
    assert_eq!(MOST.len(), WORKLOADS.len());
    for ((name, most), (found, _, make)) in MOST.iter().zip(WORKLOADS) {
        assert_eq!(name, found);
        let program = make((&CompileOptions::default()).into())?.program;
        let explain = program.explain();
        let (run, prepared) = (explain.kernels_run(), explain.kernels_prepared());
        if explain.layout.convolutions > 0 {
            let last = CompileOptions {
                layout: Layout::ChannelsLast,
                ..CompileOptions::default()
            };
            let last = make((&last).into())?.program;
            println!("{name}: {}; {}", explain.layout, last.explain().layout);
            // Convolutions that transpose their images materialise no copy of them.
            let turned = last
                .explain()
                .conversions
                .iter()
                .filter(|c| c.copied)
                .count();
            let last = last.explain().kernels_run();
            assert!(
                (run..=run + turned).contains(&last),
                "{name}: {last} and {run}"
            );
        }
        println!(
            "{name}: {run} kernels and {prepared} prepared, {}; {} launches, of which {} start together with another",
            kinds(&program),
            explain.launches_run(),
            explain.concurrent(),
        );
        let joined = program.plan().run.iter().filter(|s| s.concurrent);
        assert_eq!(explain.concurrent(), joined.count(), "{name}");
        assert_eq!(explain.launches_run(), program.plan().run.len(), "{name}");
        assert!(run <= *most, "{name} has {run} kernels:\n{explain}");
    }
    Ok(())
}

/// In mixed precision, updates write narrow copies of the weights, and steps read these copies. The batch is rounded
/// by the kernels that read it, and everything else where it is computed or read. In f16, the joined gradients of
/// queries, keys and values are a concatenation that the check for infinities reads from memory.
#[test]
fn casts_are_parts_of_other_kernels() -> Outcome {
    for (name, dtype, most) in MAX_IN_HALVES {
        let program = made(name, dtype, &CompileOptions::default())?.program;
        let explain = program.explain();
        let casts: Vec<_> = explain.kernels.iter().filter(|k| k.casts).collect();
        println!("{name} in {dtype}: {} kernels", explain.kernels_run());
        assert!(
            explain.kernels_run() <= most,
            "{name} in {dtype}:\n{explain}"
        );
        assert_eq!(explain.casts_alone(), 0, "{name} in {dtype}: {casts:?}");
    }
    Ok(())
}

/// The values that a step keeps from forward to backward are as narrow as the computation.
#[test]
fn steps_in_halves_keep_halves() -> Outcome {
    let kept = |dtype: DType| -> kiln::Result<usize> {
        Ok(made("resnet18-step", dtype, &CompileOptions::default())?.kept())
    };
    let (wide, half) = (kept(DType::F32)?, kept(DType::BF16)?);
    println!("{wide} bytes in f32, {half} in bf16");
    assert!(half * 10 <= wide * 6, "{half} of {wide}");
    Ok(())
}

/// Networks in f16 and bf16 keep nothing in f32: sums of products are rounded in their kernels, also if a kernel adds
/// two.
#[test]
fn networks_of_halves_keep_halves() -> Outcome {
    for name in ["resnet50", "mobilenet", "unet"] {
        let peak = |dtype| -> kiln::Result<usize> {
            let program = made(name, dtype, &CompileOptions::default())?.program;
            Ok(program.explain().memory.unwrap_or_default().peak)
        };
        let (wide, half) = (peak(DType::F32)?, peak(DType::BF16)?);
        println!("{name}: {wide} bytes in f32, {half} in bf16");
        assert!(half * 100 <= wide * 55, "{name}: {half} of {wide}");
    }
    Ok(())
}

/// Scales and norms are not folded into weights of f16 and bf16, since that would change the rounding. They are
/// epilogues of the previous kernels, so that these networks run no more kernels than in f32, where they are folded.
#[test]
fn networks_of_halves_have_no_more_kernels() -> Outcome {
    for name in [
        "resnet50",
        "mobilenet",
        "unet",
        "encoder",
        "decoder",
        "decoder-cached",
        "lstm",
    ] {
        let count = |dtype| -> kiln::Result<usize> {
            let options = CompileOptions::default();
            Ok(made(name, dtype, &options)?.program.explain().kernels_run())
        };
        let wide = count(DType::F32)?;
        for dtype in [DType::F16, DType::BF16] {
            let half = count(dtype)?;
            println!("{name}: {wide} kernels in f32, {half} in {dtype}");
            assert!(
                half <= wide,
                "{name}: {wide} kernels in f32, {half} in {dtype}"
            );
        }
    }
    Ok(())
}

/// The bytes of temporaries are within 2% of the lower bound of any layout, and no more than without fusion, for the
/// optimised and the recorded program.
#[test]
fn memory_is_planned_tightly() -> Outcome {
    let unfused = CompileOptions {
        fuse: false,
        ..CompileOptions::default()
    };
    let recorded = CompileOptions {
        optimize: false,
        ..unfused.clone()
    };
    for (name, dtype) in everything() {
        let memory = |options: &CompileOptions| -> kiln::Result<_> {
            let made = made(name, dtype, options)?;
            Ok(made.program.explain().memory.unwrap_or_default())
        };
        let (fused, unfused) = (memory(&CompileOptions::default())?, memory(&unfused)?);
        let recorded = memory(&recorded)?;
        println!("{name}: {fused:?}, without fusion {unfused:?}, as recorded {recorded:?}");
        assert!(fused.lower_bound > 0);
        for m in [fused, unfused] {
            assert!(m.peak * 100 <= m.lower_bound * 102, "{name}: {m:?}");
        }
        assert!(fused.peak <= unfused.peak, "{name}: {fused:?} {unfused:?}");
        assert!(
            fused.peak <= recorded.peak,
            "{name}: {fused:?} {recorded:?}"
        );
    }
    Ok(())
}

/// The results of two runs of a program.
fn results(name: &str, dtype: DType, options: &CompileOptions) -> kiln::Result<Vec<Vec<f32>>> {
    let w = with_seed(7, || made(name, dtype, options))?;
    assert!(!w.model.parameters().is_empty());
    let inputs: Vec<&Tensor> = w.inputs.iter().collect();
    let mut results = Vec::new();
    for _ in 0..2 {
        for t in w.program.run(&inputs)? {
            results.push(t.to_vec()?);
        }
    }
    Ok(results)
}

#[test]
fn optimised_programs_compute_the_same() -> Outcome {
    let plain = CompileOptions {
        optimize: false,
        layout: Layout::ChannelsFirst,
        ..CompileOptions::default()
    };
    let last = CompileOptions {
        layout: Layout::ChannelsLast,
        ..CompileOptions::default()
    };
    for (name, dtype) in everything() {
        let old = results(name, dtype, &plain)?;
        let mut new = results(name, dtype, &CompileOptions::default())?;
        let layout = made(name, dtype, &last)?.program.explain().layout.clone();
        if layout.convolutions > 0 {
            new.extend(results(name, dtype, &last)?);
        }
        // A value that is rounded to f16, bf16 or a byte may become its neighbour.
        let is_rounded = dtype != DType::F32 || name.contains("-int");
        let tolerance = if is_rounded { 2e-2 } else { 2e-4 };
        for (old, new) in old.iter().cycle().zip(&new) {
            let size = old.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
            for (a, b) in old.iter().zip(new) {
                let within = (a - b).abs() <= tolerance * size;
                assert!(within, "{name} in {dtype}: {a} became {b} (largest {size})");
            }
        }
    }
    Ok(())
}

/// Two results of one value, which products read, would be one kernel that holds both. As two kernels, the first
/// result is freed before the second exists, however small the kernels are.
#[test]
fn nothing_is_fused_where_all_that_is_needs_far_more_memory() -> Outcome {
    let weights = with_seed(3, || [0, 1].map(|_| Tensor::randn([1024, 4], DType::F32)));
    let [first, second] = [Var::new(&weights[0])?, Var::new(&weights[1])?];
    let make = |fuse: bool| {
        let options = CompileOptions {
            fuse,
            ..CompileOptions::default()
        };
        compile_with(Spec::new(DType::F32, [512, 1024]), &options, |x| {
            no_grad(|| x.exp().matmul(first.get()) + x.tanh().matmul(second.get()))
        })
    };
    let (fused, unfused) = (make(true)?, make(false)?);
    let limited = fused.explain().limited.clone().unwrap_or_default();
    assert!(
        limited.starts_with("no fused kernels"),
        "{limited}\n{}",
        fused.explain()
    );
    let peak = |p: &Program| p.explain().memory.map(|m| m.peak);
    assert_eq!(peak(&fused), peak(&unfused));
    let x = with_seed(4, || Tensor::randn([512, 1024], DType::F32));
    let apart = x.exp().matmul(&weights[0]) + x.tanh().matmul(&weights[1]);
    let together = fused.run(&x)?.to_vec::<f32>()?;
    for (a, b) in together.iter().zip(apart.to_vec::<f32>()?) {
        assert!((a - b).abs() <= 1e-3 * b.abs().max(1.0), "{a} {b}");
    }
    Ok(())
}

/// On a GPU the small updates of a step are one launch, in which each computes the same as on the CPU.
#[test]
fn small_updates_are_one_kernel_on_a_gpu() -> Outcome {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let train = |device: Device| -> kiln::Result<(usize, Vec<Vec<f32>>)> {
        let model = with_seed(7, || -> kiln::Result<Sequential> {
            Ok(sequential![
                Linear::new(13, 17),
                LayerNorm::new([17]),
                Linear::new(17, 17),
                LayerNorm::new([17]),
                Linear::new(17, 5)
            ]
            .unwrap())
        })?;
        model.to(device)?;
        let mut optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
        let spec = Spec::new(DType::F32, [7, 13]).on(device);
        let program = compile_with(spec, &CompileOptions::default(), |x| {
            optimizer.zero_grad();
            let loss = model.call(&x).square().mean(());
            loss.backward()?;
            optimizer.step()?;
            kiln::Result::Ok(loss)
        })?;
        let x = with_seed(8, || Tensor::randn([7, 13], DType::F32)).to(device);
        let mut losses = Vec::new();
        for _ in 0..3 {
            losses.push(program.run(&x)?.to_vec()?);
        }
        let explain = program.explain();
        let merged = explain
            .kernels
            .iter()
            .filter(|k| k.name.contains("_beside_"));
        let values = model.parameters();
        losses.extend(
            values
                .iter()
                .map(|p| p.get().to_vec())
                .collect::<kiln::Result<Vec<_>>>()?,
        );
        Ok((merged.count(), losses))
    };
    let ((there, on_gpu), (here, on_cpu)) = (train(gpu)?, train(Device::Cpu)?);
    assert!(there > 0 && here == 0, "{there} {here}");
    for (a, b) in on_gpu.iter().zip(&on_cpu) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 1e-4 * b.abs().max(0.1), "{a} {b}");
        }
    }
    Ok(())
}

/// A training step of an encoder block on a GPU.
#[test]
fn a_gpu_runs_few_kernels_too() -> Outcome {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let block = TransformerConfig {
        dropout: 0.0,
        ..TransformerConfig::default()
    };
    let model = block.encoder_block()?;
    model.to(gpu)?;
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
    let spec = || Spec::new(DType::F32, [4, 256, 768]).on(gpu);
    let program = compile_with([spec(), spec()], &CompileOptions::default(), |[x, y]| {
        optimizer.zero_grad();
        let loss = model.call(&x).mse_loss(&y);
        loss.backward()?;
        optimizer.step()?;
        kiln::Result::Ok(loss)
    })?;
    let explain = program.explain();
    let kernels = explain.kernels_run();
    println!("{kernels} kernels: {}", kinds(&program));
    assert!(kernels <= 26, "{kernels} kernels:\n{explain}");
    Ok(())
}

/// With channels last, networks run as few kernels on a GPU as with channels first. Launches that compute
/// parts of sums don't count: the tiles of each layout decide where there are any.
#[test]
fn layouts_add_no_kernels_on_a_gpu() -> Outcome {
    let Some(device) = cuda::device() else {
        return Ok(());
    };
    for (name, _, make) in &WORKLOADS[..3] {
        let kernels = |layout: Layout| -> kiln::Result<(usize, String)> {
            let options = CompileOptions {
                layout,
                ..CompileOptions::default()
            };
            let options = &options;
            let program = make(Setup {
                options,
                device,
                dtype: DType::F32,
            })?
            .program;
            let explain = program.explain();
            let text = format!("{}; {}", explain.layout, kinds(&program));
            let is_whole = |k: &&kiln::KernelInfo| !k.name.contains("_parts");
            let run = explain
                .kernels
                .iter()
                .filter(|k| !k.prepared && !k.concurrent);
            Ok((run.filter(is_whole).count(), text))
        };
        let (first, last) = (
            kernels(Layout::ChannelsFirst)?,
            kernels(Layout::ChannelsLast)?,
        );
        println!("{name}: {first:?}\n{last:?}");
        assert!(last.0 <= first.0, "{name}: {first:?}\n{last:?}");
    }
    Ok(())
}
