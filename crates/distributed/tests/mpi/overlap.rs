//! A training step with a slow network.

use kiln_base::collective::{Call, Communicator, Request, find, register};
use kiln_distributed::{DataParallelOptions, DistributedDataParallel, barrier, rank};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Forward, Linear, Module, sequential};
use kiln_tensor::{DType, Result, Spec, Tensor, compile, profiler};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of layers, each with a bucket of its own.
const LAYERS: usize = 4;
const LATENCY: Duration = Duration::from_millis(200);

/// The group behind a network that delivers every result late.
struct Slow {
    group: Arc<dyn Communicator>,
    /// True if operations end before anything else runs.
    blocks: bool,
    log: Log,
}

type Log = Arc<Mutex<Vec<(&'static str, Instant)>>>;

fn note(log: &Log, what: &'static str) {
    log.lock().expect("no panic").push((what, Instant::now()));
}

impl Communicator for Slow {
    fn rank(&self) -> usize {
        self.group.rank()
    }

    fn ranks(&self) -> usize {
        self.group.ranks()
    }

    fn start(&self, call: Call<'_>) -> std::result::Result<Box<dyn Request>, String> {
        note(&self.log, "start");
        let request = self.group.start(call)?;
        if self.blocks {
            sleep(LATENCY);
        }
        Ok(Box::new(Delayed {
            request,
            from: Instant::now(),
            latency: if self.blocks { Duration::ZERO } else { LATENCY },
            log: self.log.clone(),
        }))
    }
}

struct Delayed {
    request: Box<dyn Request>,
    from: Instant,
    latency: Duration,
    log: Log,
}

impl Request for Delayed {
    fn wait(self: Box<Self>, output: &mut [u8]) -> std::result::Result<(), String> {
        note(&self.log, "wait");
        self.request.wait(output)?;
        sleep(self.latency.saturating_sub(self.from.elapsed()));
        Ok(())
    }
}

pub fn all() -> Result<()> {
    let layer = || Linear::new(1024, 1024);
    let net = sequential![layer(), layer(), layer(), layer()]?;
    let options = DataParallelOptions::new().bucket_cap_mb(4.1);
    let ddp = DistributedDataParallel::with(net, options)?;
    let mut opt = Optimizer::new(ddp.parameters(), SGD::new().lr(0.01))?;
    let step = compile(Spec::new(DType::F32, (256, 1024)), |x| {
        let loss = ddp.call(x).square().mean(());
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        Result::Ok(loss)
    })?;
    let x = Tensor::full([256, 1024], 1.0 + rank()? as f64, DType::F32);
    let group = find("world").expect("a world");
    let mut times = Vec::new();
    for blocks in [true, false] {
        let log = Log::default();
        let slow = Slow {
            group: group.clone(),
            blocks,
            log: log.clone(),
        };
        step.run(&x)?.realize()?;
        register("world", Arc::new(slow));
        let timed = |_| {
            let start = Instant::now();
            step.run(&x)?.realize()?;
            Ok(start.elapsed())
        };
        let least = (0..3).map(timed).collect::<Result<Vec<_>>>()?;
        times.push(least.into_iter().min().unwrap_or_default());
        let noted = std::mem::take(&mut *log.lock().expect("no panic"));
        if !blocks {
            // All are under way before the first result is used.
            let begun = noted.iter().position(|(what, _)| *what == "wait");
            assert_eq!(begun, Some(LAYERS), "{noted:?}");
            first_bucket_before_last_gradient(&log, || step.run(&x)?.realize().map(drop))?;
        }
        register("world", group.clone());
        assert_eq!(noted.len(), 3 * 2 * LAYERS);
        barrier()?;
    }
    println!("{:?} with blocking, {:?} without", times[0], times[1]);
    // Of four latencies, only about the last one shows.
    assert!(times[1] + LATENCY * 3 / 2 < times[0], "{times:?}");
    Ok(())
}

/// Checks that a step begins the reduction of its first bucket before its last product, which is the gradient of a
/// weight.
fn first_bucket_before_last_gradient(log: &Log, step: impl FnOnce() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    let (ran, profile) = profiler::profile(step);
    ran?;
    let (_, first) = log.lock().expect("no panic")[0];
    let products = profile
        .events()
        .iter()
        .filter(|e| e.name.contains("matmul"));
    let last = products.map(|e| begun + e.start).max();
    let last = last.expect("products");
    assert!(first < last, "{:?} behind it", first - last);
    Ok(())
}
