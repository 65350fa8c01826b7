//! The growth of the time to record, compile, bind, run and drop programs with their size. For each size it prints the
//! processor time of the thread, which other programs disturb less than wall time, and the slope: the exponent of the
//! growth from the previous size. Linear growth is 1, quadratic 2.
//!
//! ```sh
//! cargo bench --bench growth            # all measurements
//! cargo bench --bench growth -- gpt     # those with this text in their name
//! ```

use kiln::nn::optim::{Adagrad, Adam, AdamW, Optimizer, RMSprop, SGD};
use kiln::nn::{Forward, LSTM, Linear, Module, ModuleList};
use kiln::{Compiled, DType, Result, Spec, Tensor, Var, compile, no_grad, realize_all};
use kiln_models::{Gpt, GptConfig, TransformerConfig};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A measurement at a size; returns the time of its subject.
type Measure<'a> = &'a dyn Fn(usize) -> Result<Duration>;

fn main() -> Result<()> {
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let table = |name: &str, unit: &str, sizes: &[usize], measure: Measure| -> Result<()> {
        if !filters.is_empty() && !filters.iter().any(|w| name.contains(w.as_str())) {
            return Ok(());
        }
        println!("{name}\n{unit:>9}  {:>10}  {:>5}", "ms", "slope");
        let mut previous: Option<(usize, Duration)> = None;
        for &n in sizes {
            let time = measure(n)?;
            let slope = previous.map_or(String::new(), |(m, t)| {
                let growth = time.as_secs_f64() / t.as_secs_f64();
                format!("{:.2}", growth.ln() / (n as f64 / m as f64).ln())
            });
            println!("{n:>9}  {:>10.2}  {slope:>5}", time.as_secs_f64() * 1e3);
            previous = Some((n, time));
        }
        Ok(())
    };
    let layers = [2, 4, 8, 16, 32, 64];
    for name in ["SGD", "momentum", "Adam", "AdamW", "RMSprop", "Adagrad"] {
        table(&format!("compile gpt {name}"), "layers", &layers, &|n| {
            gpt_compiled(n, name)
        })?;
    }
    let parameters = [20, 40, 80, 160, 320];
    table("compile mlp AdamW", "params", &parameters, &mlp)?;
    table(
        "compile assigned vars",
        "vars",
        &[500, 1000, 2000, 4000],
        &assigned_compiled,
    )?;
    table(
        "lazily assigned vars, first",
        "vars",
        &[500, 1000, 2000, 4000],
        &|n| assigned(n, 0),
    )?;
    table(
        "lazily assigned vars, again",
        "vars",
        &[500, 1000, 2000, 4000],
        &|n| assigned(n, 2),
    )?;
    let steps = [1000, 4000, 16_000, 100_000];
    table("sum of many, backward", "steps", &steps, &sum_of_many)?;
    let parts = [1000, 2000, 4000, 8000, 16_000];
    table("unbind and stack", "parts", &parts, &unbind_and_stack)?;
    table(
        "unbind and stack, gradient",
        "parts",
        &parts,
        &unbind_and_stack_gradient,
    )?;
    table("cat of many", "parts", &parts, &cat_of_many)?;
    table("split into many", "parts", &parts, &split_into_many)?;
    table("a value that many read", "readers", &parts, &read_by_many)?;
    table(
        "distinct kernels",
        "kernels",
        &[1000, 2000, 4000, 8000],
        &distinct,
    )?;
    table("lazy gpt step, first", "layers", &layers, &|n| {
        gpt_step(n, Step::First)
    })?;
    table("lazy gpt step, again", "layers", &layers, &|n| {
        gpt_step(n, Step::Lazy)
    })?;
    table("compiled gpt step", "layers", &layers, &|n| {
        gpt_step(n, Step::Compiled)
    })?;
    let operations = [300, 1000, 3000, 10_000];
    table("chain recorded", "ops", &operations, &|n| {
        let [x, y] = chain_operands()?;
        median(|| Ok(chain(&x, &y, n)))
    })?;
    table("lazy chain", "ops", &operations, &|n| {
        let [x, y] = chain_operands()?;
        median(|| chain(&x, &y, n).realize().map(drop))
    })?;
    for (which, times) in [(Step::First, "first"), (Step::Lazy, "again")] {
        for (training, name) in [(false, "forward"), (true, "step")] {
            let name = format!("lazy lstm {name}, {times}");
            table(&name, "length", &[16, 64, 256], &|n| {
                lstm(n, training, which)
            })?;
        }
    }
    match filters.is_empty() || filters.iter().any(|w| "gpt pairs".contains(w.as_str())) {
        true => gpt_pairs(&[4, 12, 16]),
        false => Ok(()),
    }
}

/// Returns the processor time of this thread, or wall time if that is unknown.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let on_processor = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok()
    };
    match on_processor() {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => START.get_or_init(Instant::now).elapsed(),
    }
}

fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let start = now();
    let value = f()?;
    Ok((value, now() - start))
}

const WIDTH: usize = 32;
const LENGTH: usize = 16;
const VOCABULARY: usize = 64;

/// Returns a small GPT.
fn gpt(layers: usize) -> Result<Gpt> {
    Gpt::new(GptConfig {
        vocabulary: VOCABULARY,
        context: LENGTH,
        layers,
        block: TransformerConfig {
            width: WIDTH,
            heads: 4,
            hidden: 4 * WIDTH,
            dropout: 0.0,
            norm_first: true,
        },
    })
}

fn loss(gpt: &Gpt, tokens: &Tensor) -> Tensor {
    let scores = gpt.call(tokens).flatten((0, 1));
    scores.cross_entropy(tokens.flatten((0, 1)))
}

fn optimizer<'a>(parameters: impl IntoIterator<Item = &'a Var>, name: &str) -> Result<Optimizer> {
    match name {
        "SGD" => Optimizer::new(parameters, SGD::new().lr(0.1)),
        "momentum" => Optimizer::new(parameters, SGD::new().lr(0.1).momentum(0.9)),
        "Adam" => Optimizer::new(parameters, Adam::new()),
        "RMSprop" => Optimizer::new(parameters, RMSprop::new()),
        "Adagrad" => Optimizer::new(parameters, Adagrad::new()),
        _ => Optimizer::new(parameters, AdamW::new()),
    }
}

/// Returns an optimiser of all parameters of a model.
fn optimizer_of(model: &impl Module, name: &str) -> Result<Optimizer> {
    let parameters: Vec<Var> = model
        .named_parameters()
        .into_iter()
        .map(|(_, p)| p)
        .collect();
    optimizer(&parameters, name)
}

fn update(optimizer: &mut Optimizer, loss: &Tensor) -> Result<()> {
    optimizer.zero_grad();
    loss.backward()?;
    optimizer.step()
}

fn tokens() -> Result<Tensor> {
    let tokens = Tensor::randint(0, VOCABULARY as i64, [2, LENGTH]);
    tokens.realize()?;
    Ok(tokens)
}

fn compiled_step(gpt: &Gpt, optimizer: &mut Optimizer) -> Result<Compiled<Tensor, Tensor>> {
    compile(tokens()?, |x| {
        let loss = loss(gpt, &x);
        update(optimizer, &loss)?;
        Ok(loss)
    })
}

fn gpt_compiled(layers: usize, name: &str) -> Result<Duration> {
    let gpt = gpt(layers)?;
    let mut optimizer = optimizer_of(&gpt, name)?;
    realize_all()?;
    let (step, time) = timed(|| compiled_step(&gpt, &mut optimizer))?;
    step.run(tokens()?)?;
    Ok(time)
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    First,
    Lazy,
    Compiled,
}

/// Measures the first step of a GPT, or the median of several.
fn gpt_step(layers: usize, which: Step) -> Result<Duration> {
    let gpt = gpt(layers)?;
    let mut optimizer = optimizer_of(&gpt, "AdamW")?;
    let tokens = tokens()?;
    realize_all()?;
    if which == Step::Compiled {
        let step = compiled_step(&gpt, &mut optimizer)?;
        return median(|| step.run(&tokens));
    }
    measure_lazy(which, || {
        let loss = loss(&gpt, &tokens);
        update(&mut optimizer, &loss)?;
        loss.item::<f32>()
    })
}

/// Measures the first run, or the median of several later runs.
fn measure_lazy<T>(which: Step, mut run: impl FnMut() -> Result<T>) -> Result<Duration> {
    let (_, first) = timed(&mut run)?;
    match which {
        Step::First => Ok(first),
        _ => median(run),
    }
}

/// Measures an LSTM of 128 units over 16 sequences of 128 features.
fn lstm(length: usize, training: bool, which: Step) -> Result<Duration> {
    let lstm = LSTM::new(128, 128)?;
    let mut optimizer = optimizer_of(&lstm, "SGD")?;
    let x = Tensor::randn([length, 16, 128], DType::F32);
    x.realize()?;
    realize_all()?;
    measure_lazy(which, || {
        if !training {
            return no_grad(|| lstm.call(&x).0.sum(())).item::<f32>();
        }
        let loss = lstm.call(&x).0.square().mean(());
        update(&mut optimizer, &loss)?;
        loss.item::<f32>()
    })
}

fn chain_operands() -> Result<[Tensor; 2]> {
    let operands = [0.5, 0.25].map(|x| Tensor::full([64], x, DType::F32));
    realize_all()?;
    Ok(operands)
}

/// Returns a chain of tiny operations.
fn chain(x: &Tensor, y: &Tensor, operations: usize) -> Tensor {
    (0..operations / 3).fold(x.clone(), |t, _| ((&t + y) * y).abs())
}

/// Prints the minimum wall times of alternating lazy and compiled steps, and their ratio.
fn gpt_pairs(layers: &[usize]) -> Result<()> {
    println!("alternating lazy and compiled gpt steps, ms of wall time");
    println!(
        "{:>9}  {:>10}  {:>10}  {:>5}",
        "layers", "lazy", "compiled", "ratio"
    );
    for &n in layers {
        let (lazy, compiled) = (gpt(n)?, gpt(n)?);
        let (mut lazy_optimizer, mut compiled_optimizer) = (
            optimizer_of(&lazy, "AdamW")?,
            optimizer_of(&compiled, "AdamW")?,
        );
        let tokens = tokens()?;
        realize_all()?;
        let step = compiled_step(&compiled, &mut compiled_optimizer)?;
        let mut min_times = [Duration::MAX; 2];
        for round in 0..100 {
            let start = Instant::now();
            let loss = loss(&lazy, &tokens);
            update(&mut lazy_optimizer, &loss)?;
            loss.item::<f32>()?;
            drop(loss);
            let middle = Instant::now();
            step.run(&tokens)?.item::<f32>()?;
            if round > 2 {
                let round_times = [middle - start, middle.elapsed()];
                min_times = std::array::from_fn(|i| min_times[i].min(round_times[i]));
            }
        }
        let [lazy, compiled] = min_times.map(|t| t.as_secs_f64() * 1e3);
        let ratio = lazy / compiled;
        println!("{n:>9}  {lazy:>10.2}  {compiled:>10.2}  {ratio:>5.2}");
    }
    Ok(())
}

fn median<T>(mut f: impl FnMut() -> Result<T>) -> Result<Duration> {
    f()?;
    let times = (0..15).map(|_| Ok(timed(&mut f)?.1));
    let mut times = times.collect::<Result<Vec<Duration>>>()?;
    times.sort();
    Ok(times[times.len() / 2])
}

/// Measures the compilation of an MLP; half of the parameters are weights, half biases.
fn mlp(parameters: usize) -> Result<Duration> {
    let layers = (0..parameters / 2).map(|_| Linear::new(16, 16));
    let layers: ModuleList<Linear> = ModuleList(layers.collect::<Result<_>>()?);
    let mut optimizer = optimizer_of(&layers, "AdamW")?;
    realize_all()?;
    let step = || {
        compile(Spec::new(DType::F32, [8, 16]), |x| {
            let y = layers.iter().fold(x, |x, layer| layer.call(&x).relu());
            let loss = y.square().mean(());
            update(&mut optimizer, &loss)?;
            Ok(loss)
        })
    };
    Ok(timed(step)?.1)
}

fn cells(count: usize) -> Result<Vec<Var>> {
    (0..count)
        .map(|i| Var::new(Tensor::full([3], i as f64, DType::F32)))
        .collect()
}

fn assigned_compiled(count: usize) -> Result<Duration> {
    let cells = cells(count)?;
    realize_all()?;
    let step = || {
        compile((), |()| {
            for (i, cell) in cells.iter().enumerate() {
                cell.assign(&(cell.get() * 0.5 + i as f64))?;
            }
            Ok(())
        })
    };
    let (step, time) = timed(step)?;
    step.run(())?;
    Ok(time)
}

/// Measures the assignment of every cell, after some runs.
fn assigned(count: usize, before: usize) -> Result<Duration> {
    let cells = cells(count)?;
    realize_all()?;
    let step = || {
        let total = Tensor::scalar(1.0f32);
        for cell in &cells {
            cell.assign(&(cell.get() * 0.5 + &total))?;
        }
        realize_all()
    };
    for _ in 0..before {
        step()?;
    }
    Ok(timed(step)?.1)
}

/// Measures many steps `total = total + f(w)`, with gradient and drop.
fn sum_of_many(steps: usize) -> Result<Duration> {
    let w = Var::parameter(Tensor::from([0.5f32, 1.5]))?;
    let run = || {
        let mut total = Tensor::scalar(0.0f32);
        for i in 0..steps {
            total += (w.get() * (i as f64 / steps as f64)).tanh().sum(());
        }
        total.backward()?;
        let gradient = w.grad().map(|g| g.to_vec::<f32>());
        gradient.transpose()?;
        total.item::<f32>()
    };
    Ok(timed(run)?.1)
}

fn unbind_and_stack(parts: usize) -> Result<Duration> {
    let x = Tensor::rand([parts, 4], DType::F32);
    x.realize()?;
    let run =
        || no_grad(|| kiln::stack(&x.unbind(0).iter().collect::<Vec<_>>(), 0).to_vec::<f32>());
    Ok(timed(run)?.1)
}

fn unbind_and_stack_gradient(parts: usize) -> Result<Duration> {
    let x = Var::parameter(Tensor::rand([parts, 4], DType::F32))?;
    realize_all()?;
    let run = || {
        let y = kiln::stack(&x.unbind(0).iter().collect::<Vec<_>>(), 0);
        y.square().sum(()).backward()?;
        x.grad().map(|g| g.to_vec::<f32>()).transpose()
    };
    Ok(timed(run)?.1)
}

/// Measures the concatenation of many values.
fn cat_of_many(parts: usize) -> Result<Duration> {
    let values = (0..parts).map(|i| Tensor::from_slice(&[i as f32; 4], [4]));
    let values: Vec<Tensor> = values.collect();
    let run = || kiln::cat(&values.iter().collect::<Vec<_>>(), 0).to_vec::<f32>();
    Ok(timed(run)?.1)
}

/// Measures operations on the many parts of one value.
fn split_into_many(parts: usize) -> Result<Duration> {
    let x = Tensor::rand([parts, 4], DType::F32);
    x.realize()?;
    let run = || {
        let parts: Vec<Tensor> = x.unbind(0).iter().map(|x| x * 2.0).collect();
        realize_all()?;
        Ok(parts)
    };
    Ok(timed(run)?.1)
}

/// Measures the gradient of a parameter with many uses.
fn read_by_many(readers: usize) -> Result<Duration> {
    let w = Var::parameter(Tensor::from([0.5f32, 1.5]))?;
    let run = || {
        let read = w.get();
        let products: Vec<Tensor> = (0..readers).map(|i| &read * (i as f64)).collect();
        let products: Vec<&Tensor> = products.iter().collect();
        kiln::stack(&products, 0).tanh().sum(()).backward()?;
        w.grad().map(|g| g.to_vec::<f32>()).transpose()
    };
    Ok(timed(run)?.1)
}

/// Measures the compilation of a program whose kernels all differ.
fn distinct(kernels: usize) -> Result<Duration> {
    let x: Tensor = Tensor::rand([64], DType::F32);
    x.realize()?;
    let step = || {
        compile(&x, |x| -> Vec<Tensor> {
            let size = |i: usize| (i % 60 + 1) as i64;
            let part = |i: usize| x.narrow(0, 0, size(i)) * (i as f64 + 0.5);
            (0..kernels).map(|i| part(i).sum(())).collect()
        })
    };
    Ok(timed(step)?.1)
}
