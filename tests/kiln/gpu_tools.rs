//! The tools that show and check a program, on a GPU: bisecting, the page, the profiler.

use crate::{cuda, matrix};
use kiln::profiler::profile;
use kiln::{Bisection, Compiled, DType, RunningStats, Tensor, Var, compile};

/// One kernel: a product with a factor and a softmax as its epilogue.
fn program(gpu: kiln::Device) -> kiln::Result<(Compiled<Tensor, Tensor>, Tensor)> {
    let x = matrix(6, 5).to(gpu);
    let weight = Var::new((Tensor::ones([5, 3], DType::F32) * 1e20).to(gpu))?;
    let scale = Var::new(crate::vector(&[1e20, 1.0, 2.0]).to(gpu))?;
    for operand in [&x, &weight.get(), &scale.get()] {
        operand.realize()?;
    }
    let f = compile(&x, |x| {
        let y = (&x + &x).matmul(weight.get()) * scale.get();
        y.softmax(1)
    })?;
    Ok((f, x))
}

/// A product that folds the following norm, whose scale overflows with small values.
fn normed(gpu: kiln::Device) -> kiln::Result<(Compiled<Tensor, Tensor>, Tensor)> {
    let x = matrix(6, 5).to(gpu);
    let weight = Var::new((Tensor::ones([5, 3], DType::F32) * 1e20).to(gpu))?;
    let vector = |values: &[f32]| Var::new(crate::vector(values).to(gpu));
    let scale = vector(&[1e20, 1.0, 2.0])?;
    let [mean, shift] = [vector(&[0.0; 3])?, vector(&[0.0; 3])?];
    let variance = vector(&[1.0; 3])?;
    let f = compile(&x, |x| {
        let y = (&x + &x).matmul(weight.get());
        let (scale, shift) = (scale.get(), shift.get());
        let statistics = RunningStats::new()
            .running_mean(&mean)
            .running_var(&variance);
        y.batch_norm_with(statistics.weight(&scale).bias(&shift))
            .softmax(1)
    })?;
    Ok((f, x))
}

#[test]
fn bisect_names_the_rewrite_there() -> kiln::Result<()> {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let (f, x) = normed(gpu)?;
    let Bisection::Rewrite { fired, .. } = f.bisect(&x * 1e-38)? else {
        panic!("{}", f.bisect(&x * 1e-38)?);
    };
    assert_eq!(fired.rule, "linear_batch_norm", "{fired}");
    Ok(())
}

#[test]
fn pages_show_every_kernel_there() -> kiln::Result<()> {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let (f, _) = normed(gpu)?;
    let page = f.explain().to_html();
    assert!(f.explain().kernels.len() > 1, "{}", f.explain());
    for k in &f.explain().kernels {
        let name = k
            .name
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        assert!(page.contains(&name), "{}", k.name);
    }
    let fired = &f.explain().counts;
    assert!(!fired.is_empty() && fired.iter().all(|(rule, _)| page.contains(rule)));
    assert!(
        page.contains("tests/kiln/gpu_tools.rs:"),
        "the user's lines"
    );
    Ok(())
}

#[test]
fn the_profiler_times_kernels_there() -> kiln::Result<()> {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let (f, x) = program(gpu)?;
    let (values, found) = profile(|| f.run(&x).and_then(|y| y.to_vec::<f32>()));
    assert_eq!(values?.len(), 18);
    let run = f.explain().kernels.iter().filter(|k| !k.concurrent).count();
    assert_eq!(found.events().len(), run, "{}", found.key_averages());
    let product = found
        .events()
        .iter()
        .find(|e| e.ops.iter().any(|o| o.starts_with("matmul")));
    assert!(product.is_some_and(|e| e.flops >= 2.0 * 6.0 * 5.0 * 3.0 && e.bytes > 0.0));
    assert!(found.total_time() <= found.wall_time());
    Ok(())
}
