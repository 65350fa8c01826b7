//! Figures of the CPU engine: `cargo bench -p kiln-runtime`.

#[path = "../tests/runtime/build.rs"]
#[allow(dead_code)]
mod build;

use build::*;
use kiln_base::prim::{Binary, Reduction, ScanKind, ScatterKind, Unary};
use kiln_base::{Compute, DType, Dim};
use kiln_plan::tile::*;
use kiln_plan::{ArgSort, Conv, ConvRole, Images, Kernel, Scan, Scatter, Strided};
use kiln_runtime::{Buffer, Executable};
use std::time::Instant;

/// The shortest and the median time in seconds of a call.
fn time(mut f: impl FnMut()) -> (f64, f64) {
    f();
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.5 || times.len() < 5 {
        let start = Instant::now();
        f();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

fn floats(n: i64) -> Buffer {
    let mut r = Random(7);
    let x: Vec<f32> = (0..n).map(|_| r.float() as f32).collect();
    Buffer::from_slice(&x, &[n]).unwrap()
}

fn report(name: &str, exe: &Executable, inputs: &[Buffer], per: f64, unit: &str) {
    let (least, median) = time(|| drop(exe.run_shared(inputs).unwrap()));
    println!(
        "{name:44} min {:9.4} ms, median {:9.4} ms, {:8.2} {unit}",
        least * 1e3,
        median * 1e3,
        per / least / 1e9
    );
}

/// A function in the first-level cache: 64 dependent applications a tile.
fn throughput() {
    const TIMES: i64 = 64;
    let n = 512 * 8;
    for level in levels() {
        for op in [
            Unary::Exp,
            Unary::Log,
            Unary::Erf,
            Unary::Tanh,
            Unary::Sin,
            Unary::Neg,
        ] {
            let mut p = Program::lanes(&[n]);
            let x = p.input(DType::F32);
            let mut last = x;
            for _ in 0..TIMES {
                last = p.unary(op, x);
            }
            p.output(DType::F32, last);
            let plan = plan_of(
                Kernel::Tile(p.0),
                &[(DType::F32, n, false), (DType::F32, n, true)],
            );
            let exe = executable(&plan, level).unwrap();
            let (least, _) = time(|| drop(exe.run_shared(&[floats_once(n)]).unwrap()));
            let rate = (n * TIMES) as f64 / least / 1e9;
            println!("{:9} {:5} {rate:6.2} G elements/s", level.name(), op.name());
        }
        let mut p = Program::lanes(&[n]);
        let (x, y) = (p.input(DType::F32), p.input(DType::F32));
        let x = p.binary(Binary::Add, x, y);
        let mut last = x;
        for i in 0..TIMES {
            last = p.binary([Binary::Add, Binary::Mul][i as usize % 2], x, y);
        }
        p.output(DType::F32, last);
        let args = [
            (DType::F32, n, false),
            (DType::F32, n, false),
            (DType::F32, n, true),
        ];
        let exe = executable(&plan_of(Kernel::Tile(p.0), &args), level).unwrap();
        let (least, _) = time(|| drop(exe.run_shared(&[floats_once(n), floats_once(n)]).unwrap()));
        println!(
            "{:9} add/mul {:6.2} G elements/s",
            level.name(),
            (n * TIMES) as f64 / least / 1e9
        );
    }
}

fn floats_once(n: i64) -> Buffer {
    thread_local!(static X: std::cell::OnceCell<Buffer> = const { std::cell::OnceCell::new() });
    X.with(|x| x.get_or_init(|| floats(n)).clone())
}

/// gelu(x · a + b) · c, and a copy of the same number of bytes.
fn chain() {
    let n = 16 << 20;
    let mut p = Program::lanes(&[n]);
    let (x, a, b, c) = (
        p.input(DType::F32),
        p.input(DType::F32),
        p.input(DType::F32),
        p.input(DType::F32),
    );
    let t = p.binary(Binary::Mul, x, a);
    let t = p.binary(Binary::Add, t, b);
    let root = p.constant(Compute::F32, std::f64::consts::FRAC_1_SQRT_2);
    let half = p.constant(Compute::F32, 0.5);
    let e = p.binary(Binary::Mul, t, root);
    let e = p.unary(Unary::Erf, e);
    let h = p.binary(Binary::Mul, t, half);
    let y = p.binary(Binary::Mul, h, e);
    let y = p.binary(Binary::Add, y, h);
    let y = p.binary(Binary::Mul, y, c);
    p.output(DType::F32, y);
    let mut args = vec![(DType::F32, n, false); 4];
    args.push((DType::F32, n, true));
    let exe = Executable::new(plan_of(Kernel::Tile(p.0), &args)).unwrap();
    let inputs: Vec<Buffer> = (0..4).map(|_| floats(n)).collect();
    report(
        "gelu(x*a+b)*c over 16M",
        &exe,
        &inputs,
        n as f64 * 20.0,
        "GB/s",
    );

    // The same bytes moved and nothing else: one array in, one out, 2.5 times as long.
    let n = n * 5 / 2;
    let mut p = Program::lanes(&[n]);
    let x = p.input(DType::F32);
    p.output(DType::F32, x);
    let exe = Executable::new(plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, n, false), (DType::F32, n, true)],
    ))
    .unwrap();
    report(
        "copy of the same bytes",
        &exe,
        &[floats(n)],
        n as f64 * 8.0,
        "GB/s",
    );
}

fn tiny() {
    for steps in [1, 100] {
        let n = 64;
        let mut p = Program::lanes(&[n]);
        let (x, y) = (p.input(DType::F32), p.input(DType::F32));
        let mut last = x;
        for i in 0..steps {
            last = p.binary([Binary::Add, Binary::Mul, Binary::Max][i % 3], last, y);
        }
        p.output(DType::F32, last);
        let args = [
            (DType::F32, n, false),
            (DType::F32, n, false),
            (DType::F32, n, true),
        ];
        let exe = Executable::new(plan_of(Kernel::Tile(p.0), &args)).unwrap();
        let inputs = [floats(n), floats(n)];
        let (least, _) = time(|| {
            for _ in 0..1000 {
                exe.run_shared(&inputs).unwrap();
            }
        });
        println!(
            "{steps} instructions on 64 floats: {:.0} ns a run",
            least * 1e6
        );
    }
}

fn softmax(rows: i64, cols: i64, schedule: Schedule) {
    let mut p = Program::new(schedule, &[rows], &[cols]);
    p.0.slots.push(Compute::F32);
    p.stage(true);
    let arg = p.arg(DType::F32, false);
    let access = p.access(arg, 0, &[cols, 1]);
    let x = p.load(access);
    let max = p.reduce(Reduction::Max, x);
    p.stage(true);
    let x = p.load(access);
    let d = p.binary(Binary::Sub, x, max);
    let e = p.unary(Unary::Exp, d);
    p.push(Inst::Keep { slot: 0, src: e });
    let sum = p.reduce(Reduction::Sum, e);
    p.stage(false);
    let r = p.unary(Unary::Recip, sum);
    p.stage(true);
    let e = p.reg(Compute::F32);
    p.push(Inst::Kept { dst: e, slot: 0 });
    let y = p.binary(Binary::Mul, e, r);
    p.output(DType::F32, y);
    let n = rows * cols;
    let plan = plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, n, false), (DType::F32, n, true)],
    );
    let exe = Executable::new(plan).unwrap();
    report(
        &format!("softmax {rows}x{cols} {schedule:?}"),
        &exe,
        &[floats(n)],
        n as f64 * 8.0,
        "GB/s",
    );
}

fn products() {
    for (m, k, n) in [
        (64i64, 64i64, 64i64),
        (256, 256, 256),
        (1024, 1024, 1024),
        (1024, 768, 3072),
        (1, 4096, 4096),
    ] {
        let args = [
            (DType::F32, m * k, false),
            (DType::F32, k * n, false),
            (DType::F32, m * n, true),
        ];
        let exe = Executable::new(plan_of(Kernel::MatMul(product(m, k, n)), &args)).unwrap();
        let flops = 2.0 * (m * k * n) as f64;
        report(
            &format!("matmul {m}x{k}x{n}"),
            &exe,
            &[floats(m * k), floats(k * n)],
            flops,
            "GFLOP/s",
        );
    }
    let dims = |d: [i64; 2]| d.map(Dim::Const).to_vec();
    for (b, g, ci, co, s, k) in [
        (1i64, 1i64, 64i64, 64i64, 56i64, 3i64),
        (1, 1, 256, 512, 14, 3),
        (1, 1, 256, 64, 56, 1),
        (1, 128, 1, 1, 56, 3),
        (1, 1, 512, 512, 7, 3),
    ] {
        let conv = Conv {
            dtypes: [DType::F32; 2],
            reduce_range: false,
            role: ConvRole::Result,
            batch: b.into(),
            groups: g.into(),
            in_channels: ci.into(),
            out_channels: co.into(),
            input: dims([s, s]),
            output: dims([s, s]),
            kernel: dims([k, k]),
            stride: dims([1, 1]),
            padding: dims([k / 2, k / 2]),
            dilation: dims([1, 1]),
            operands: [0, 1],
            out: 2,
            prologue: None,
            epilogue: None,
            algorithm: Default::default(),
            images: Images::default(),
        };
        let (nx, nw, ny) = (b * g * ci * s * s, g * ci * k * k * co, b * g * co * s * s);
        let args = [
            (DType::F32, nx, false),
            (DType::F32, nw, false),
            (DType::F32, ny, true),
        ];
        let exe = Executable::new(plan_of(Kernel::Conv(conv), &args)).unwrap();
        let flops = 2.0 * (ny * ci * k * k) as f64;
        report(
            &format!("conv {g}x{ci}->{co} {s}x{s} k{k}"),
            &exe,
            &[floats(nx), floats(nw)],
            flops,
            "GFLOP/s",
        );
    }
}

/// Scans, sorts and scatters of f32.
fn ordered() {
    const M: i64 = 1 << 20;
    for (name, outer, len, inner) in [
        ("cumsum [4096, 4096] along 1", 4096i64, 4096i64, 1i64),
        ("cumsum [4096, 4096] along 0", 1, 4096, 4096),
        ("cumsum [16M]", 1, 16 * M, 1),
    ] {
        let scan = Scan {
            dtype: DType::F32,
            kind: ScanKind::Sum,
            reverse: false,
            outer: outer.into(),
            len: len.into(),
            inner: inner.into(),
            x: 0,
            out: 1,
        };
        let n = outer * len * inner;
        let plan = plan_of(
            Kernel::Scan(scan),
            &[(DType::F32, n, false), (DType::F32, n, true)],
        );
        let exe = Executable::new(plan).unwrap();
        report(name, &exe, &[floats(n)], 8.0 * n as f64, "GB/s");
    }
    for (name, lanes, len, kept) in [
        ("arg_sort [16M]", 1, 16 * M, 16 * M),
        ("arg_sort [4096, 4096]", 4096, 4096, 4096),
        ("arg_sort [65536, 256]", 65536, 256, 256),
        ("topk 10 of [4096, 4096]", 4096, 4096, 10),
        ("topk 10 of [16M]", 1, 16 * M, 10),
    ] {
        let sort = ArgSort {
            dtype: DType::F32,
            descending: true,
            lanes: lanes.into(),
            len: len.into(),
            kept: kept.into(),
            x: 0,
            out: 1,
        };
        let n = lanes * len;
        let args = [(DType::F32, n, false), (DType::I64, lanes * kept, true)];
        let exe = Executable::new(plan_of(Kernel::ArgSort(sort), &args)).unwrap();
        report(name, &exe, &[floats(n)], n as f64, "G elements/s");
    }
    // Rows of x, rows of the source, columns.
    for (name, bound, rows, columns) in [
        ("scatter_add [16M] into [1M]", M, 16 * M, 1),
        ("scatter_add [16M] into [16M]", 16 * M, 16 * M, 1),
        (
            "index_add [16384, 768] into [32768, 768]",
            32768,
            16384,
            768,
        ),
    ] {
        let scatter = Scatter {
            dtype: DType::F32,
            kind: ScatterKind::Sum,
            axis: 0,
            shape: [bound, columns].map(Dim::Const).to_vec(),
            index_shape: [rows, columns].map(Dim::Const).to_vec(),
            x: 0,
            index: Strided {
                arg: 1,
                offset: Dim::ZERO,
                strides: [1, 0].map(Dim::Const).to_vec(),
            },
            src: Strided {
                arg: 2,
                offset: Dim::ZERO,
                strides: [columns, 1].map(Dim::Const).to_vec(),
            },
            out: 3,
        };
        let args = [
            (DType::F32, bound * columns, false),
            (DType::I64, rows, false),
            (DType::F32, rows * columns, false),
            (DType::F32, bound * columns, true),
        ];
        let exe = Executable::new(plan_of(Kernel::Scatter(scatter), &args)).unwrap();
        let mut r = Random(5);
        let index: Vec<i64> = (0..rows).map(|_| r.below(bound as u64) as i64).collect();
        let inputs = [
            floats(bound * columns),
            Buffer::from_slice(&index, &[rows]).unwrap(),
            floats(rows * columns),
        ];
        let elements = (rows * columns) as f64;
        report(name, &exe, &inputs, elements, "G elements/s");
    }
}

fn main() {
    if std::env::args().any(|a| a == "ordered") {
        return ordered();
    }
    if std::env::args().any(|a| a == "chain") {
        for _ in 0..5 {
            chain();
            softmax(4096, 4096, Schedule::Rows);
        }
        return;
    }
    tiny();
    throughput();
    chain();
    softmax(4096, 4096, Schedule::Rows);
    softmax(8192, 64, Schedule::Rows);
    softmax(8192, 64, Schedule::Lanes);
    products();
    ordered();
}
