//! A comparison of the algorithms of convolutions and products, on the layers of ResNet-50, MobileNetV3 and a
//! transformer: `cargo bench -p kiln-runtime --bench algorithms [-- <part of a name>]`.
//!
//! Each round times all algorithms in turn, and the shortest time of each counts, so that other load on the machine
//! distorts the ratios little. `KILN_PEER_PYTHON` names a Python with PyTorch to take part in the rounds,
//! `KILN_ROUNDS` their number.

#[path = "../tests/runtime/build.rs"]
#[allow(dead_code)]
mod build;

use build::*;
use kiln_base::{DType, Dim};
use kiln_plan::{Conv, ConvRole, Images, Kernel, MatMul, Matrix, Role};
use kiln_runtime::pool::Pool;
use kiln_runtime::{Buffer, Executable};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The minimum number of seconds of a burst of calls.
const BURST: f64 = 0.01;

/// A timed kernel, and the same in PyTorch: a function `f` without arguments.
struct Case {
    name: String,
    kernel: Kernel,
    lens: [i64; 3],
    operations: f64,
    torch: String,
}

/// (name, channels, filters, groups, extent, filter extent, stride)
type Layer = (&'static str, i64, i64, i64, i64, i64, i64);

#[rustfmt::skip]
const LAYERS: [Layer; 37] = [
    ("resnet stem", 3, 64, 1, 224, 7, 2),
    ("resnet 1.reduce.first", 64, 64, 1, 56, 1, 1),
    ("resnet 1.spatial", 64, 64, 1, 56, 3, 1),
    ("resnet 1.expand", 64, 256, 1, 56, 1, 1),
    ("resnet 1.reduce", 256, 64, 1, 56, 1, 1),
    ("resnet 2.reduce.first", 256, 128, 1, 56, 1, 1),
    ("resnet 2.spatial.first", 128, 128, 1, 56, 3, 2),
    ("resnet 2.expand", 128, 512, 1, 28, 1, 1),
    ("resnet 2.shortcut", 256, 512, 1, 56, 1, 2),
    ("resnet 2.reduce", 512, 128, 1, 28, 1, 1),
    ("resnet 2.spatial", 128, 128, 1, 28, 3, 1),
    ("resnet 3.reduce.first", 512, 256, 1, 28, 1, 1),
    ("resnet 3.spatial.first", 256, 256, 1, 28, 3, 2),
    ("resnet 3.expand", 256, 1024, 1, 14, 1, 1),
    ("resnet 3.shortcut", 512, 1024, 1, 28, 1, 2),
    ("resnet 3.reduce", 1024, 256, 1, 14, 1, 1),
    ("resnet 3.spatial", 256, 256, 1, 14, 3, 1),
    ("resnet 4.reduce.first", 1024, 512, 1, 14, 1, 1),
    ("resnet 4.spatial.first", 512, 512, 1, 14, 3, 2),
    ("resnet 4.expand", 512, 2048, 1, 7, 1, 1),
    ("resnet 4.shortcut", 1024, 2048, 1, 14, 1, 2),
    ("resnet 4.reduce", 2048, 512, 1, 7, 1, 1),
    ("resnet 4.spatial", 512, 512, 1, 7, 3, 1),
    ("mobilenet stem", 3, 16, 1, 224, 3, 2),
    ("mobilenet 1", 16, 16, 16, 112, 3, 1),
    ("mobilenet 2", 64, 64, 64, 112, 3, 2),
    ("mobilenet 3", 72, 72, 72, 56, 3, 1),
    ("mobilenet 4", 72, 72, 72, 56, 5, 2),
    ("mobilenet 5", 120, 120, 120, 28, 5, 1),
    ("mobilenet 7", 240, 240, 240, 28, 3, 2),
    ("mobilenet 8", 200, 200, 200, 14, 3, 1),
    ("mobilenet 11", 480, 480, 480, 14, 3, 1),
    ("mobilenet 13", 672, 672, 672, 14, 5, 2),
    ("mobilenet 14", 960, 960, 960, 7, 5, 1),
    ("mobilenet expand", 40, 240, 1, 28, 1, 1),
    ("mobilenet project", 672, 112, 1, 14, 1, 1),
    ("resnext 2.spatial", 256, 256, 32, 28, 3, 1),
];

fn convolution(batch: i64, (name, cin, cout, groups, extent, kernel, stride): Layer) -> Case {
    let pair = |n: i64| vec![Dim::Const(n); 2];
    let padding = kernel / 2;
    let output = (extent + 2 * padding - kernel) / stride + 1;
    let conv = Conv {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        role: ConvRole::Result,
        batch: batch.into(),
        groups: groups.into(),
        in_channels: (cin / groups).into(),
        out_channels: (cout / groups).into(),
        input: pair(extent),
        output: pair(output),
        kernel: pair(kernel),
        stride: pair(stride),
        padding: pair(padding),
        dilation: pair(1),
        operands: [0, 1],
        out: 2,
        prologue: None,
        epilogue: None,
        algorithm: Default::default(),
        images: Images::default(),
    };
    let (w, y) = (
        cout * cin / groups * kernel * kernel,
        batch * cout * output * output,
    );
    Case {
        name: format!("{name} x{batch}"),
        kernel: Kernel::Conv(conv),
        lens: [batch * cin * extent * extent, w, y],
        operations: 2.0 * (y * cin / groups * kernel * kernel) as f64,
        torch: format!(
            "x = torch.randn({batch}, {cin}, {extent}, {extent}); w = torch.randn({cout}, {}, {kernel}, {kernel}); \
             f = lambda: torch.conv2d(x, w, None, {stride}, {padding}, 1, {groups})",
            cin / groups
        ),
    }
}

/// A linear layer: B is a transposed weight.
fn linear(m: i64, k: i64, n: i64) -> Case {
    let mut case = product(1, m, k, n);
    case.name = format!("linear {m}·{k}·{n}");
    if let Kernel::MatMul(p) = &mut case.kernel {
        (p.rhs.row, p.rhs.col) = (Dim::ONE, k.into());
    }
    case.torch = format!(
        "x = torch.randn({m}, {k}); w = torch.randn({n}, {k}); f = lambda: torch.nn.functional.linear(x, w)"
    );
    case
}

fn product(batch: i64, m: i64, k: i64, n: i64) -> Case {
    let matrix = |arg, size: i64, row: i64| Matrix {
        arg,
        offset: Dim::ZERO,
        batch_strides: vec![size.into()],
        row: row.into(),
        col: Dim::ONE,
    };
    let product = MatMul {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        batch: vec![batch.into()],
        m: m.into(),
        k: k.into(),
        n: n.into(),
        lhs: matrix(0, m * k, k),
        rhs: matrix(1, k * n, n),
        out: 2,
        prologues: [None, None],
        epilogue: None,
        algorithm: Default::default(),
    };
    Case {
        name: format!("product {m}·{k}·{n} x{batch}"),
        kernel: Kernel::MatMul(product),
        lens: [batch * m * k, batch * k * n, batch * m * n],
        operations: 2.0 * (batch * m * k * n) as f64,
        torch: format!(
            "x = torch.randn({batch}, {m}, {k}); w = torch.randn({batch}, {k}, {n}); f = lambda: x @ w"
        ),
    }
}

const TORCH: &str = "
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
torch.set_grad_enabled(False)
for line in sys.stdin:
    if line.startswith('x = '):
        exec(line)
    else:
        n, begin = 0, time.perf_counter()
        while n == 0 or time.perf_counter() - begin < float(sys.argv[2]):
            start = time.perf_counter(); f(); least = time.perf_counter() - start
            best = least if n == 0 else min(best, least)
            n += 1
        print(best, flush=True)
";

/// PyTorch in a process of its own.
struct Torch(Child, ChildStdin, BufReader<ChildStdout>);

impl Torch {
    fn start() -> Option<Torch> {
        let python = std::env::var("KILN_PEER_PYTHON").ok()?;
        let threads = Pool::global().threads().to_string();
        let mut child = Command::new(python)
            .args(["-c", TORCH, &threads, &BURST.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("KILN_PEER_PYTHON starts");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Torch(child, input, BufReader::new(output)))
    }

    fn prepare(&mut self, case: &Case) {
        writeln!(self.1, "{}", case.torch).unwrap();
    }

    fn burst(&mut self) -> f64 {
        writeln!(self.1, "run").unwrap();
        let mut line = String::new();
        self.2.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn burst(exe: &Executable, inputs: &[Buffer]) -> f64 {
    let begin = Instant::now();
    let mut least = f64::MAX;
    while begin.elapsed().as_secs_f64() < BURST {
        let start = Instant::now();
        drop(exe.run_shared(inputs).unwrap());
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}

fn measure(case: &mut Case, torch: &mut Option<Torch>, rounds: usize) {
    let mut r = Random(7);
    let mut floats = |n: i64| {
        let x: Vec<f32> = (0..n).map(|_| r.float() as f32).collect();
        Buffer::from_slice(&x, &[n]).unwrap()
    };
    let inputs = [floats(case.lens[0]), floats(case.lens[1])];
    let mut ways = vec![("default".to_string(), case.kernel.clone())];
    let all = case.kernel.algorithms(&[]).into_iter();
    ways.extend(all.map(|a| (a.to_string(), case.kernel.clone().by(a))));
    if let Kernel::Conv(c) = &ways[0].1 {
        let mut last = c.clone();
        last.images = Images::ChannelsLast;
        ways.push(("channels last".to_string(), Kernel::Conv(last)));
    }
    let args = [0, 1, 2].map(|i| (DType::F32, case.lens[i], i == 2));
    let executables = ways.iter().map(|(_, kernel)| {
        let mut plan = plan_of(kernel.clone(), &args);
        plan.inputs[1].role = Role::Parameter;
        Executable::new(plan).unwrap()
    });
    let executables: Vec<Executable> = executables.collect();
    let mut least = vec![f64::MAX; ways.len() + 1];
    if let Some(torch) = torch {
        torch.prepare(case);
    }
    for _ in 0..rounds {
        for (exe, least) in executables.iter().zip(&mut least) {
            *least = least.min(burst(exe, &inputs));
        }
        if let (Some(torch), Some(least)) = (torch.as_mut(), least.last_mut()) {
            *least = least.min(torch.burst());
        }
    }
    let peer = least.pop().filter(|_| torch.is_some());
    let rate = |t: f64| case.operations / t / 1e9;
    print!("{:28}", case.name);
    for ((way, _), t) in ways.iter().zip(&least) {
        print!("  {way} {:.3} ms {:.0}", t * 1e3, rate(*t));
    }
    let best = (1..least.len()).min_by(|a, b| least[*a].total_cmp(&least[*b]));
    let best = best.map_or(0, |b| b);
    print!("  | best {}", ways[best].0);
    if let Some(peer) = peer {
        let ratio = least[best] / peer;
        print!(
            "  | torch {:.3} ms {:.0}, ours takes {ratio:.2} of it",
            peer * 1e3,
            rate(peer)
        );
    }
    println!();
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let wanted = args.next().unwrap_or_default();
    let rounds = std::env::var("KILN_ROUNDS")
        .ok()
        .and_then(|r| r.parse().ok());
    let convolutions = [1, 8]
        .into_iter()
        .flat_map(|n| LAYERS.map(|l| convolution(n, l)));
    #[rustfmt::skip]
    let products = [
        (1, 128, 768, 768), (1, 512, 768, 768), (1, 512, 768, 3072), (1, 512, 3072, 768), (1, 1024, 1024, 1024),
        (12, 128, 64, 128), (12, 128, 128, 64), (96, 32, 32, 32), (1, 64, 64, 64), (1, 8, 1024, 1024),
        (1, 1, 768, 768), (1, 1, 4096, 4096), (1, 4096, 4096, 1), (12, 1, 64, 512), (12, 1, 512, 64),
    ].map(|(b, m, k, n)| product(b, m, k, n));
    let linear = [
        (1, 768, 768),
        (2, 768, 768),
        (4, 128, 1024),
        (4, 256, 1024),
        (4, 384, 1024),
        (8, 1024, 1024),
        (16, 768, 768),
        (128, 768, 768),
        (128, 768, 3072),
        (128, 3072, 768),
        (1024, 768, 768),
        (1, 1024, 1000),
    ]
    .map(|(m, k, n)| linear(m, k, n));
    println!(
        "{} threads; GFLOP/s behind each time",
        Pool::global().threads()
    );
    let threads = std::env::var("KILN_BENCH_THREADS");
    if let Some(threads) = threads.ok().and_then(|t| t.parse().ok()) {
        Pool::global().set_threads(threads);
    }
    let mut torch = Torch::start();
    for mut case in convolutions
        .chain(products)
        .chain(linear)
        .filter(|c| c.name.contains(&wanted))
    {
        measure(&mut case, &mut torch, rounds.unwrap_or(10));
    }
}
