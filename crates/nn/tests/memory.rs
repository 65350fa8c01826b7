//! Who holds memory, and when: the books of the allocator, the timelines, the leak finder. The books are the process's,
//! so these tests take turns.

use kiln_nn::optim::{AdamW, Optimizer};
use kiln_nn::{Forward, GRU, Linear, Module, ReLU, Recurrent, Sequential, sequential};
use kiln_tensor::memory::{self, Category, Timeline};
use kiln_tensor::{DType, Device, Result, Spec, Tensor, compile, no_grad};
use std::sync::{Mutex, MutexGuard};

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

const BATCH: usize = 256;

fn model() -> Result<Sequential> {
    sequential![
        Linear::new(384, 512),
        ReLU::new(),
        Linear::new(512, 512),
        ReLU::new(),
        Linear::new(512, 10)
    ]
}

fn parameter_bytes(model: &Sequential) -> usize {
    let counts = model.parameters();
    let counts = counts.iter().map(|p| p.nbytes().unwrap());
    counts.map(|n| n.next_multiple_of(memory::ALIGN)).sum()
}

fn of(list: [(Category, usize, usize); 7], category: Category) -> [usize; 2] {
    let (_, now, peak) = list[category as usize];
    [now, peak]
}

/// The categories of a timeline's peak add up to it.
fn adds_up(timeline: &Timeline) {
    let sum: usize = timeline.at_peak().iter().map(|(_, n)| n).sum();
    assert_eq!(sum, timeline.peak().1, "{timeline}");
}

fn near(a: usize, b: usize) -> bool {
    a.abs_diff(b) * 50 <= a.max(b)
}

/// Runs a compiled function and compares what was planned for it, what was recorded and what the allocator counted.
/// `before` is from before anything of it was made.
fn agrees(
    before: [(Category, usize, usize); 7],
    planned: Option<Timeline>,
    run: impl Fn() -> Result<Tensor>,
) -> Result<()> {
    let planned = planned.expect("the sizes are known");
    adds_up(&planned);
    drop(run()?);
    Device::Cpu.reset_peak();
    let (result, recorded) = memory::record(Device::Cpu, &run);
    let counted = Device::Cpu.memory().peak;
    adds_up(&recorded);
    assert_eq!(recorded.peak().1, counted, "{recorded}");
    let books = Device::Cpu.memory_holders().by_category();
    assert_eq!(books.iter().map(|(.., n)| n).sum::<usize>(), counted);
    // Scratch memory of threads belongs to no run.
    let of_runs = Category::ALL.map(|c| match c {
        Category::Workspaces => 0,
        c => of(books, c)[1] as isize - of(before, c)[0] as isize,
    });
    let (peak, run) = (planned.peak().1, of_runs.iter().sum::<isize>() as usize);
    println!("{peak} bytes planned, {run} counted");
    assert!(
        near(peak, run),
        "{run} counted\n{planned}\n{}",
        Device::Cpu.memory_summary()
    );
    for (category, bytes) in planned.at_peak() {
        if [Category::Parameters, Category::Moments].contains(&category) {
            let counted = of(books, category)[1] - of(before, category)[0];
            assert_eq!(counted, bytes, "{category:?}");
        }
    }
    for timeline in [&planned, &recorded] {
        let page = timeline.to_html();
        assert!(page.contains(&format!("The peak is {} bytes", timeline.peak().1)));
        assert!(
            page.contains("tests/memory.rs:"),
            "the page names the lines"
        );
    }
    assert!(result?.sum(()).item::<f32>()?.is_finite());
    Ok(())
}

/// A batch that is computed.
fn batch() -> Result<(Tensor, Tensor)> {
    let (x, y) = (
        Tensor::rand([BATCH, 384], DType::F32),
        Tensor::randint(0, 10, [BATCH]),
    );
    x.realize()?;
    y.realize()?;
    Ok((x, y))
}

fn specs() -> (Spec, Spec) {
    (
        Spec::new(DType::F32, (BATCH, 384)),
        Spec::new(DType::I64, BATCH),
    )
}

#[test]
fn the_planned_peak_of_a_training_step_is_what_the_allocator_counts() -> Result<()> {
    let _turn = turn();
    let before = Device::Cpu.memory_holders().by_category();
    let model = model()?;
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
    let step = compile(specs(), |(x, y)| {
        optimizer.zero_grad();
        let loss = model.call(x).cross_entropy(y);
        loss.backward()?;
        optimizer.step()?;
        Result::Ok(loss)
    })?;
    let batch = batch()?;
    agrees(before, step.memory_timeline(), || step.run(batch.clone()))
}

#[test]
fn the_planned_peak_of_an_inference_is_what_the_allocator_counts() -> Result<()> {
    let _turn = turn();
    let before = Device::Cpu.memory_holders().by_category();
    let model = model()?;
    model.eval();
    let forward = compile(specs().0, |x| no_grad(|| model.call(x)))?;
    let (x, _) = batch()?;
    agrees(before, forward.memory_timeline(), || forward.run(&x))
}

#[test]
fn the_planned_peak_of_a_recurrent_network_is_what_the_allocator_counts() -> Result<()> {
    let _turn = turn();
    let before = Device::Cpu.memory_holders().by_category();
    let network = GRU::with(64, 128, Recurrent::new().num_layers(2).batch_first(true))?;
    let spec = Spec::new(DType::F32, (32, 20, 64));
    let mut optimizer = Optimizer::new(network.parameters(), AdamW::new())?;
    let step = compile(spec, |x| {
        optimizer.zero_grad();
        let (y, _) = network.call(x);
        let loss = y.square().mean(());
        loss.backward()?;
        optimizer.step()?;
        Result::Ok(loss)
    })?;
    let x = Tensor::rand([32, 20, 64], DType::F32);
    x.realize()?;
    agrees(before, step.memory_timeline(), || step.run(&x))
}

#[test]
fn two_threads_need_at_most_what_is_planned_for_both() -> Result<()> {
    let _turn = turn();
    let forward = || -> Result<_> {
        let model = model()?;
        let forward = compile(specs().0, |x| no_grad(|| model.call(x)))?;
        let (x, _) = batch()?;
        forward.run(&x)?;
        Ok((model, forward, x))
    };
    let before = Device::Cpu.memory_holders().by_category();
    let (a, b) = (forward()?, forward()?);
    let planned = [&a.1, &b.1].map(|f| f.memory_timeline().expect("the sizes are known"));
    Device::Cpu.reset_peak();
    let ((), recorded) = memory::record(Device::Cpu, || {
        std::thread::scope(|s| {
            for (_, forward, x) in [&a, &b] {
                s.spawn(move || (0..20).for_each(|_| drop(forward.run(x).expect("a result"))));
            }
        });
    });
    let counted = Device::Cpu.memory().peak;
    adds_up(&recorded);
    assert_eq!(recorded.peak().1, counted, "{recorded}");
    let books = Device::Cpu.memory_holders().by_category();
    assert_eq!(books.iter().map(|(.., n)| n).sum::<usize>(), counted);
    let of_runs: usize = Category::ALL
        .iter()
        .filter(|c| **c != Category::Workspaces)
        .map(|c| of(books, *c)[1].saturating_sub(of(before, *c)[0]))
        .sum();
    let [one, two] = planned.map(|p| p.peak().1);
    let both = one + two;
    println!("{one} and {two} bytes planned, {of_runs} counted");
    assert!(
        of_runs * 100 <= both * 102 && of_runs > one,
        "{of_runs} of {both}"
    );
    Ok(())
}

#[test]
fn a_recording_ends_with_a_panic() {
    let _turn = turn();
    let run = || memory::record(Device::Cpu, || panic!("wanted"));
    assert!(std::panic::catch_unwind(run).is_err());
    Tensor::ones([100], DType::F32).realize().unwrap();
    assert!(memory::keep_history(false).is_empty());
}

#[test]
fn each_category_has_its_bytes_and_lines() -> Result<()> {
    let _turn = turn();
    let before = Device::Cpu.memory_holders().by_category();
    let grown = |category| {
        let now = Device::Cpu.memory_holders().by_category();
        of(now, category)[0] - of(before, category)[0]
    };
    let model = model()?;
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
    let x = Tensor::rand([BATCH, 384], DType::F32);
    let y = Tensor::randint(0, 10, [BATCH]);
    x.realize()?;
    y.realize()?;
    let parameters = parameter_bytes(&model);
    for p in model.parameters() {
        p.get().realize()?;
    }
    let hidden = x.matmul(Tensor::ones([384, 512], DType::F32)).relu();
    hidden.realize()?;
    assert_eq!(
        grown(Category::Activations),
        BATCH * (384 + 512) * 4 + BATCH * 8
    );
    assert_eq!(grown(Category::Parameters), parameters);
    let loss = model.call(&x).cross_entropy(&y);
    loss.backward()?;
    for p in model.parameters() {
        p.grad().expect("it has a gradient").realize()?;
    }
    assert_eq!(grown(Category::Gradients), parameters);
    optimizer.step()?;
    assert_eq!(grown(Category::Moments), 2 * parameters);
    assert_eq!(grown(Category::Parameters), parameters);
    optimizer.zero_grad();
    assert_eq!(grown(Category::Gradients), 0);
    let holders = Device::Cpu.memory_holders().current;
    let here = |category| {
        let all = holders.iter().filter(|(h, _)| h.category() == category);
        all.map(|(h, _)| h.to_string())
            .any(|h| h.contains("tests/memory.rs:"))
    };
    assert!(here(Category::Parameters) && here(Category::Activations));
    let stats = Device::Cpu.memory();
    let total: usize = holders.iter().map(|(_, n)| n).sum();
    assert_eq!(total, stats.allocated);
    let summary = Device::Cpu.memory_summary();
    assert!(summary.contains("parameters") && summary.contains(&stats.allocated.to_string()));
    Ok(())
}

#[test]
fn a_graph_that_stays_alive_is_found_with_its_line() -> Result<()> {
    let _turn = turn();
    let model = model()?;
    let x = Tensor::rand([BATCH, 384], DType::F32);
    let y = Tensor::randint(0, 10, [BATCH]);
    let mut losses = Vec::new();
    let mut step = |keep: fn(Tensor) -> Tensor| {
        let (done, leaks) = memory::find_leaks(|| -> Result<()> {
            let loss = model.call(&x).cross_entropy(&y);
            loss.realize()?;
            losses.push(keep(loss));
            Ok(())
        });
        done.map(|()| leaks)
    };
    assert_eq!(step(|loss| loss.detach())?, []);
    let leaks = step(|loss| loss)?;
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    let leak = &leaks[0];
    assert!(leak.operations >= 5 && leak.tensors == 1, "{leak:?}");
    let text = leak.to_string();
    assert!(
        text.starts_with("a tensor holds the result of cross_entropy at "),
        "{text}"
    );
    assert!(text.contains("tests/memory.rs:"), "{text}");
    // The batch and two hidden layers at least, and no weights.
    let kept = BATCH * (384 + 512 + 512) * 4;
    assert!(
        (kept..2 * kept).contains(&leak.bytes),
        "{leak:?}, at least {kept}"
    );
    Ok(())
}
