//! A comparison of the algorithms of products and convolutions: random geometry, any number of threads, error bounds,
//! and algorithms that a plan must not name.

use super::build::*;
use super::products::{scaled, turned};
use kiln_base::{DType, Dim};
use kiln_plan::{Algorithm, Conv, ConvRole, Images, Kernel, Plan, Role};
use kiln_runtime::pool::Pool;
use kiln_runtime::{Buffer, Error, Executable, Features, Traced, Tracer};

fn dims(d: &[i64]) -> Vec<Dim> {
    d.iter().map(|d| Dim::Const(*d)).collect()
}

fn floats(b: &Buffer) -> Vec<f64> {
    super::oracle::read(b).into_iter().map(|v| v.f()).collect()
}

fn c(d: &Dim) -> i64 {
    d.as_const().unwrap()
}

fn numel(d: &[Dim]) -> i64 {
    d.iter().map(c).product()
}

/// A result of two axes, with `padding` in front and `behind` zeros at the end; as many outputs as fit.
struct Shape {
    batch: i64,
    groups: i64,
    cin: i64,
    cout: i64,
    input: [i64; 2],
    kernel: [i64; 2],
    stride: [i64; 2],
    padding: [i64; 2],
    behind: [i64; 2],
    dilation: [i64; 2],
}

fn conv(dtype: DType, s: &Shape) -> Conv {
    let output = [0, 1].map(|i| {
        let room = s.input[i] + s.padding[i] + s.behind[i] - s.dilation[i] * (s.kernel[i] - 1) - 1;
        (room.div_euclid(s.stride[i]) + 1).max(0)
    });
    Conv {
        dtypes: [dtype; 2],
        reduce_range: false,
        role: ConvRole::Result,
        batch: s.batch.into(),
        groups: s.groups.into(),
        in_channels: s.cin.into(),
        out_channels: s.cout.into(),
        input: dims(&s.input),
        output: dims(&output),
        kernel: dims(&s.kernel),
        stride: dims(&s.stride),
        padding: dims(&s.padding),
        dilation: dims(&s.dilation),
        operands: [0, 1],
        out: 2,
        prologue: None,
        epilogue: None,
        algorithm: Default::default(),
        images: Images::default(),
    }
}

/// Elements of x, w and y.
pub fn lens(c_: &Conv) -> [i64; 3] {
    let channels = [&c_.in_channels, &c_.out_channels].map(|d| c(d) * c(&c_.groups));
    [
        c(&c_.batch) * channels[0] * numel(&c_.input),
        channels[1] * c(&c_.in_channels) * numel(&c_.kernel),
        c(&c_.batch) * channels[1] * numel(&c_.output),
    ]
}

fn plan(conv: &Conv) -> Plan {
    let [mut from, w, mut to] = lens(conv);
    if conv.role == ConvRole::Input {
        (from, to) = (to, from);
    }
    let args = [
        (conv.dtype(), from, false),
        (conv.dtype(), w, false),
        (conv.sums(), to, true),
    ];
    plan_of(Kernel::Conv(conv.clone()), &args)
}

pub fn random(dtype: DType, n: i64, r: &mut Random) -> Buffer {
    buffer(
        dtype,
        &(0..n).map(|_| r.float() as f32 as f64).collect::<Vec<_>>(),
    )
}

/// The convolution in f64, and the number of products that an element sums.
fn reference(p: &Conv, x: &[f64], w: &[f64]) -> (Vec<f64>, f64) {
    let pair = |d: &[Dim]| [c(&d[0]), c(&d[1])];
    let (input, output, kernel) = (pair(&p.input), pair(&p.output), pair(&p.kernel));
    let (cin, cout, groups) = (c(&p.in_channels), c(&p.out_channels), c(&p.groups));
    let (stride, padding, dilation) = (pair(&p.stride), pair(&p.padding), pair(&p.dilation));
    let mut y = Vec::new();
    for i in 0..c(&p.batch) * groups * cout {
        let group = i / cout;
        for at in 0..output[0] * output[1] {
            let at = [at / output[1], at % output[1]];
            let mut sum = 0.0;
            for row in 0..cin * kernel[0] {
                let channel = group * cin + row / kernel[0];
                let from = at[0] * stride[0] + row % kernel[0] * dilation[0] - padding[0];
                if !(0..input[0]).contains(&from) {
                    continue;
                }
                let x = &x[((channel * input[0] + from) * input[1]) as usize..];
                let filter = i % (groups * cout);
                let w = &w[((filter * cin * kernel[0] + row) * kernel[1]) as usize..];
                for tap in 0..kernel[1] {
                    let from = at[1] * stride[1] + tap * dilation[1] - padding[1];
                    if (0..input[1]).contains(&from) {
                        sum += x[from as usize] * w[tap as usize];
                    }
                }
            }
            y.push(sum);
        }
    }
    (y, (cin * kernel[0] * kernel[1]) as f64)
}

/// The bound of `Algorithm::error_growth`, for values up to 2; and a tighter bound that errors hardly reach, since
/// they are not all of one sign.
fn bounds(dtype: DType, algorithm: Algorithm, terms: f64) -> (f64, f64) {
    let u = match dtype {
        DType::F64 => f64::EPSILON / 2.0,
        _ => f32::EPSILON as f64 / 2.0,
    };
    let most = if algorithm.only_sums() {
        terms
    } else {
        terms + 28.0
    };
    let per_term = algorithm.error_growth() * u * 4.0;
    (per_term * most * terms, per_term * 16.0 * most.sqrt())
}

/// The largest errors of an algorithm over all levels, in terms of the bounds.
fn errors(p: &Conv, inputs: &[Buffer], want: &[f64], terms: f64) -> (f64, f64) {
    let schedule = p.schedule(&[]).expect("it names one");
    let (strict, usual) = bounds(p.dtype(), schedule.algorithm, terms);
    let mut worst: f64 = 0.0;
    for result in run(&plan(p), inputs) {
        let got = floats(&result.unwrap()[0]);
        assert_eq!(got.len(), want.len());
        let errors = got.iter().zip(want).map(|(g, w)| (g - w).abs());
        worst = errors.fold(worst, f64::max);
    }
    (worst / strict.max(1e-300), worst / usual.max(1e-300))
}

/// Asserts that an algorithm stays within the bounds.
fn holds(p: &Conv, inputs: &[Buffer], want: &[f64], terms: f64) {
    let (strict, usual) = errors(p, inputs, want, terms);
    assert!(strict <= 1.0 && usual <= 1.0, "{strict} {usual} {p:?}");
}

fn check(dtype: DType, shape: &Shape, r: &mut Random) {
    let mut p = conv(dtype, shape);
    let [x, w, _] = lens(&p);
    let inputs = [random(dtype, x, r), random(dtype, w, r)];
    let (want, terms) = reference(&p, &floats(&inputs[0]), &floats(&inputs[1]));
    for algorithm in p.algorithms(&[]) {
        p.algorithm = algorithm.into();
        holds(&p, &inputs, &want, terms);
    }
    let (mut p, inputs, want) = channels_last(&conv(dtype, shape), &inputs, &want);
    for algorithm in p.algorithms(&[]) {
        p.algorithm = algorithm.into();
        holds(&p, &inputs, &want, terms);
    }
    check_made(dtype, shape, r);
}

/// Checks a convolution of images that a prologue computes.
fn check_made(dtype: DType, shape: &Shape, r: &mut Random) {
    let mut p = made_conv(dtype, shape);
    let [x, w, _] = lens(&p);
    let inputs = [random(dtype, x, r), random(dtype, w, r)];
    let made: Vec<f64> = floats(&inputs[0]).iter().map(|x| 0.5 * x + 0.25).collect();
    let made = floats(&buffer(dtype, &made));
    let (want, terms) = reference(&p, &made, &floats(&inputs[1]));
    for algorithm in p.algorithms(&[]) {
        p.algorithm = algorithm.into();
        holds(&p, &inputs, &want, terms);
    }
    let (p, inputs, want) = channels_last(&p, &inputs, &want);
    holds(&p, &inputs, &want, terms);
}

fn made_conv(dtype: DType, shape: &Shape) -> Conv {
    let mut p = conv(dtype, shape);
    let [x, w, y] = lens(&p);
    let args = [(dtype, x, false), (dtype, w, false), (p.sums(), y, false)];
    p.prologue = Some(scaled(dtype, 0, &args, [0.5, 0.25]));
    p.operands[0] = u16::MAX;
    p
}

/// A small convolution of images that a prologue computes.
pub fn made_convolution() -> Plan {
    plan(&made_conv(DType::F32, &LARGER[0]))
}

/// Convolutions of every shape, by every algorithm and with channels last.
pub fn convolutions() -> Vec<Plan> {
    let each = LARGER.iter().flat_map(|shape| {
        let p = conv(DType::F32, shape);
        let last = Conv {
            images: Images::ChannelsLast,
            ..p.clone()
        };
        let mut all = vec![p.clone()];
        for p in [p, last] {
            let by = |algorithm: Algorithm| Conv {
                algorithm: algorithm.into(),
                ..p.clone()
            };
            all.extend(p.algorithms(&[]).into_iter().map(by));
        }
        all
    });
    each.map(|p| plan(&p)).collect()
}

/// The same convolution and its data with channels last.
fn channels_last(p: &Conv, inputs: &[Buffer], want: &[f64]) -> (Conv, [Buffer; 2], Vec<f64>) {
    let [cin, cout] = [&p.in_channels, &p.out_channels].map(|d| c(d) * c(&p.groups));
    let x = turned(&floats(&inputs[0]), c(&p.batch), cin);
    let last = Conv {
        images: Images::ChannelsLast,
        algorithm: Algorithm::Direct.into(),
        ..p.clone()
    };
    let inputs = [buffer(p.dtype(), &x), inputs[1].clone()];
    (last, inputs, turned(want, c(&p.batch), cout))
}

#[test]
fn two_weights_in_each_others_place_are_noticed() {
    let mut r = Random(11);
    for shape in &LARGER {
        let mut p = conv(DType::F32, shape);
        let [x, w, _] = lens(&p);
        let (x, w) = (random(DType::F32, x, &mut r), random(DType::F32, w, &mut r));
        let (want, terms) = reference(&p, &floats(&x), &floats(&w));
        let mut swapped = floats(&w);
        swapped.swap(1, 2);
        let inputs = [x, buffer(DType::F32, &swapped)];
        for algorithm in p.algorithms(&[]) {
            p.algorithm = algorithm.into();
            assert!(errors(&p, &inputs, &want, terms).1 > 1.0, "{algorithm}");
        }
        let (mut p, inputs, want) = channels_last(&p, &inputs, &want);
        for algorithm in p.algorithms(&[]) {
            p.algorithm = algorithm.into();
            assert!(errors(&p, &inputs, &want, terms).1 > 1.0, "{p:?}");
        }
    }
}

#[test]
fn an_infinite_weight_over_padding_is_not_a_number() {
    let shape = Shape {
        batch: 2,
        groups: 19,
        cin: 1,
        cout: 1,
        input: [4, 21],
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        behind: [1, 1],
        dilation: [1, 1],
    };
    let p = conv(DType::F32, &shape);
    let [x, w, _] = lens(&p);
    for tap in [0, 4, 5, 8] {
        let mut weights = vec![1.0; w as usize];
        // Of one channel only.
        weights[9 * 7 + tap] = f64::INFINITY;
        let inputs = [
            buffer(DType::F32, &vec![1.0; x as usize]),
            buffer(DType::F32, &weights),
        ];
        let first = Conv {
            algorithm: Algorithm::Direct.into(),
            ..p.clone()
        };
        let expected = |i: usize| {
            let (channel, row, column) = (i / (4 * 21) % 19, i / 21 % 4, i % 21);
            let inside = |at: usize, tap: usize, n: usize| (1..=n).contains(&(at + tap));
            let there = inside(row, tap / 3, 4) && inside(column, tap % 3, 21);
            (channel == 7).then_some(if there { f64::INFINITY } else { f64::NAN })
        };
        let count = (2 * 19 * 4 * 21) as usize;
        let want: Vec<f64> = (0..count).map(|i| expected(i).unwrap_or(0.0)).collect();
        let (last, turned, want_last) = channels_last(&p, &inputs, &want);
        for (p, inputs, want) in [(first, inputs, want), (last, turned, want_last)] {
            for result in run(&plan(&p), &inputs) {
                for (got, want) in floats(&result.unwrap()[0]).iter().zip(&want) {
                    match *want {
                        0.0 => assert!(got.is_finite(), "{got}"),
                        want if want.is_nan() => {
                            assert!(got.is_nan(), "{got} for tap {tap} of {p:?}")
                        }
                        want => assert_eq!(*got, want, "tap {tap} of {p:?}"),
                    }
                }
            }
        }
    }
}

/// A tracer that ignores every step.
struct Blind;
impl Tracer for Blind {
    fn after(&mut self, _: &Traced) -> kiln_runtime::Result<()> {
        Ok(())
    }
}

#[test]
fn weights_that_are_parameters_are_packed_once() {
    let mut r = Random(23);
    for (shape, algorithm) in [
        (0, Algorithm::Winograd2),
        (0, Algorithm::Winograd4),
        (3, Algorithm::Fft),
    ] {
        let mut p = conv(DType::F32, &LARGER[shape]);
        p.algorithm = algorithm.into();
        if algorithm != Algorithm::Fft {
            p.images = Images::ChannelsLast;
        }
        let [x, w, _] = lens(&p);
        let x = random(DType::F32, x, &mut r);
        let weights = [0, 1].map(|_| random(DType::F32, w, &mut r));
        let plain = plan(&p);
        let mut packed = plain.clone();
        packed.inputs[1].role = Role::Parameter;
        for level in levels() {
            let plain = executable(&plain, level).unwrap();
            let packed = executable(&packed, level).unwrap();
            for i in [0, 0, 1, 0] {
                let inputs = [x.clone(), weights[i].clone()];
                let want = floats(&plain.run_shared(&inputs).unwrap()[0]);
                assert!(floats(&packed.run_shared(&inputs).unwrap()[0]) == want);
                let traced = packed.trace(&inputs, &mut Blind).unwrap();
                assert!(floats(&traced[0]) == want);
            }
            assert_eq!(packed.stats().prepares, 2);
            let tile = match algorithm {
                Algorithm::Winograd2 => 16,
                Algorithm::Winograd4 => 36,
                _ => 2 * p.fft_tile(&[]).unwrap().size(),
            };
            let taps = numel(&p.kernel);
            let prepared = packed.memory(&[]).unwrap().prepared as i64;
            assert!(prepared >= tile * 4 * w / taps, "{prepared}");
            assert_eq!(plain.memory(&[]).unwrap().prepared, 0);
        }
    }
}

#[test]
fn packed_weights_that_are_not_finite_give_what_they_give_unpacked() {
    let shapes = [(19, 1, 1), (4, 1, 2), (2, 3, 5)].into_iter();
    let shapes = shapes.flat_map(|channels| [1, 2].map(|stride| (channels, stride)));
    for ((groups, cin, cout), stride) in shapes {
        let shape = Shape {
            batch: 2,
            groups,
            cin,
            cout,
            input: [6, 21],
            kernel: [3, 3],
            stride: [stride; 2],
            padding: [1, 1],
            behind: [1, 1],
            dilation: [1, 1],
        };
        let roles = [ConvRole::Result, ConvRole::Input].into_iter();
        let kinds =
            roles.flat_map(|role| [Images::default(), Images::ChannelsLast].map(|i| (role, i)));
        for (role, images) in kinds {
            for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                let mut p = conv(dtype, &shape);
                (p.role, p.images) = (role, images);
                for algorithm in p.algorithms(&[]) {
                    p.algorithm = algorithm.into();
                    check_packed(&p);
                }
            }
        }
    }
}

/// Runs a convolution of ones twice with packed weights, one of which is not finite, and compares it with one that
/// packs them in each run.
fn check_packed(p: &Conv) {
    let plain = plan(p);
    let mut packed = plain.clone();
    packed.inputs[1].role = Role::Parameter;
    let [x, w, y] = lens(p);
    let ones = if p.role == ConvRole::Input { y } else { x };
    for wild in [f64::INFINITY, f64::NAN] {
        let mut weights = vec![0.5; w as usize];
        weights[w as usize / 2] = wild;
        let inputs = [vec![1.0; ones as usize], weights].map(|x| buffer(p.dtype(), &x));
        for level in levels() {
            let run = |e: &Executable| -> Vec<Option<f64>> {
                let found = floats(&e.run_shared(&inputs).unwrap()[0]).into_iter();
                found.map(|x| (!x.is_nan()).then_some(x)).collect()
            };
            let want = run(&executable(&plain, level).unwrap());
            let is_finite = |x: &Option<f64>| x.is_some_and(f64::is_finite);
            assert!(want.iter().any(is_finite) && !want.iter().all(is_finite));
            let packed = executable(&packed, level).unwrap();
            for _ in 0..2 {
                assert_eq!(run(&packed), want, "{level:?} {p:?}");
            }
        }
    }
}

#[test]
fn right_matrices_that_are_parameters_are_packed_once() {
    let mut r = Random(29);
    for (m, k, n, packs) in [
        (4, 70, 100, true),
        (130, 33, 96, true),
        (5, 40, 7, false),
        (1, 40, 90, true),
        (1, 40, 7, false),
        (4, 0, 50, false),
    ] {
        for (algorithm, transposed) in [
            (None, false),
            (None, true),
            (Some(Algorithm::Packed), false),
            (Some(Algorithm::Packed), true),
        ] {
            let mut p = product(m, k, n);
            p.algorithm = algorithm.map_or_else(Default::default, Into::into);
            if transposed {
                (p.rhs.row, p.rhs.col) = (Dim::ONE, k.into());
            }
            let lens = [(m * k, false), (k * n, false), (m * n, true)];
            let args = lens.map(|(len, written)| (DType::F32, len, written));
            let plain = plan_of(Kernel::MatMul(p.clone()), &args);
            let mut packed = plain.clone();
            packed.inputs[1].role = Role::Parameter;
            let x = random(DType::F32, m * k, &mut r);
            let weights = [0, 1].map(|_| random(DType::F32, k * n, &mut r));
            for level in levels() {
                let plain = executable(&plain, level).unwrap();
                let packed = executable(&packed, level).unwrap();
                for i in [0, 0, 1, 0] {
                    let inputs = [x.clone(), weights[i].clone()];
                    let want = floats(&plain.run_shared(&inputs).unwrap()[0]);
                    let got = floats(&packed.run_shared(&inputs).unwrap()[0]);
                    let traced = packed.trace(&inputs, &mut Blind).unwrap();
                    assert!(floats(&traced[0]) == got);
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4;
                    assert!(got.iter().zip(&want).all(close), "{p:?}");
                }
                let packs = packs || algorithm.is_some() && k > 0;
                let bytes = packed.memory(&[]).unwrap().prepared;
                assert_eq!(bytes > 0, packs, "{p:?}");
                assert_eq!(plain.memory(&[]).unwrap().prepared, 0);
            }
        }
    }
}

#[test]
fn convolutions_of_random_geometry_stay_within_their_error_bounds() {
    let mut r = Random(0x5eed);
    let seeds = std::env::var("KILN_FUZZ_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok());
    for seed in 0..seeds.unwrap_or(150) {
        let three = seed % 3 == 0;
        let size = |r: &mut Random, n: u64| r.below(n) as i64;
        let depthwise = seed % 4 == 1;
        let channels = |r: &mut Random| if depthwise { 1 } else { size(r, 20) };
        let pair = |f: &mut dyn FnMut() -> i64| [f(), f()];
        let steps = |r: &mut Random| match three {
            true => [1, 1],
            false => [1 + size(r, 3), 1 + size(r, 3)],
        };
        let shape = Shape {
            batch: [0, 1, 1, 2, 5, 9][r.below(6) as usize],
            groups: [1, 1, 2, 3, 17][r.below(5) as usize],
            cin: channels(&mut r),
            cout: channels(&mut r),
            input: pair(&mut || [0, 1, 2, 3, 5, 7, 13, 16, 31][r.below(9) as usize]),
            kernel: if three {
                [3, 3]
            } else {
                pair(&mut || 1 + size(&mut r, 5))
            },
            stride: steps(&mut r),
            padding: pair(&mut || [0, 1, 1, 2, 6, -1, -2][r.below(7) as usize]),
            behind: pair(&mut || [0, 1, 1, 2, 7, -1][r.below(6) as usize]),
            dilation: steps(&mut r),
        };
        let dtype = match seed % 5 {
            0 => DType::F64,
            1 => DType::BF16,
            2 => DType::F16,
            _ => DType::F32,
        };
        check(dtype, &shape, &mut r);
    }
}

#[test]
fn convolutions_of_many_taps_stay_within_their_error_bounds() {
    let mut r = Random(0xff7);
    let mut transformed = 0;
    for seed in 0..60 {
        let size = |r: &mut Random, from: i64, n: u64| from + r.below(n) as i64;
        let row = seed % 2 == 0;
        let kernel = match row {
            true => [1, size(&mut r, 60, 200)],
            false => [0, 1].map(|_| size(&mut r, 7, 30)),
        };
        let shape = Shape {
            batch: size(&mut r, 0, 4),
            groups: [1, 1, 3, 11][r.below(4) as usize],
            cin: size(&mut r, 0, 5),
            cout: size(&mut r, 0, 7),
            input: match row {
                true => [size(&mut r, 0, 4), size(&mut r, 0, 900)],
                false => [0, 1].map(|_| size(&mut r, 0, 60)),
            },
            kernel,
            stride: [1, 1],
            padding: kernel.map(|k| size(&mut r, 0, k as u64) - 2),
            behind: kernel.map(|k| size(&mut r, 0, k as u64) - 2),
            dilation: [1, 1],
        };
        let mut p = conv(DType::F32, &shape);
        if p.fft_tile(&[]).is_none() {
            continue;
        }
        transformed += 1;
        p.algorithm = Algorithm::Fft.into();
        let [x, w, _] = lens(&p);
        let inputs = [random(DType::F32, x, &mut r), random(DType::F32, w, &mut r)];
        let (want, terms) = reference(&p, &floats(&inputs[0]), &floats(&inputs[1]));
        holds(&p, &inputs, &want, terms);
    }
    assert!(transformed > 20, "{transformed}");
}

const LARGER: [Shape; 4] = [
    Shape {
        batch: 3,
        groups: 2,
        cin: 40,
        cout: 44,
        input: [37, 35],
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        behind: [1, 1],
        dilation: [1, 1],
    },
    Shape {
        batch: 2,
        groups: 70,
        cin: 1,
        cout: 1,
        input: [61, 60],
        kernel: [5, 5],
        stride: [2, 2],
        padding: [2, 2],
        behind: [2, 2],
        dilation: [1, 1],
    },
    Shape {
        batch: 1,
        groups: 1,
        cin: 130,
        cout: 100,
        input: [29, 31],
        kernel: [3, 3],
        stride: [2, 2],
        padding: [1, 1],
        behind: [1, 1],
        dilation: [1, 1],
    },
    Shape {
        batch: 2,
        groups: 3,
        cin: 3,
        cout: 5,
        input: [37, 70],
        kernel: [9, 17],
        stride: [1, 1],
        padding: [4, 8],
        behind: [4, 8],
        dilation: [1, 1],
    },
];

#[test]
fn no_algorithm_depends_on_the_number_of_threads() {
    let mut r = Random(77);
    let mut check = |name: String, plan: Plan| {
        let lens = plan.inputs.iter().map(|i| numel(&i.shape));
        let inputs: Vec<Buffer> = lens.map(|n| random(DType::F32, n, &mut r)).collect();
        let exe = executable(&plan, Features::current().unwrap()).unwrap();
        let results = [1, 2, 3, 7].map(|threads| {
            Pool::global().set_threads(threads);
            floats(&exe.run_shared(&inputs).unwrap()[0])
        });
        assert!(results.iter().all(|x| *x == results[0]), "{name}");
    };
    for shape in &LARGER {
        let mut p = conv(DType::F32, shape);
        for algorithm in p.algorithms(&[]) {
            p.algorithm = algorithm.into();
            check(format!("{p:?}"), plan(&p));
        }
        p.algorithm = Algorithm::Direct.into();
        for images in [Images::ChannelsLast, Images::ToChannelsLast] {
            p.images = images;
            check(format!("{p:?}"), plan(&p));
        }
        let roles = [(ConvRole::Input, [2, 1, 0]), (ConvRole::Weight, [0, 2, 1])];
        for (role, order) in roles {
            p.role = role;
            for images in [Images::ChannelsFirst, Images::ChannelsLast] {
                p.images = images;
                let lens = order.map(|i| lens(&p)[i]);
                let written = [(lens[0], false), (lens[1], false), (lens[2], true)];
                let args = written.map(|(len, written)| (p.dtype(), len, written));
                check(format!("{p:?}"), plan_of(Kernel::Conv(p.clone()), &args));
            }
        }
    }
    for (m, k, n) in [
        (300, 500, 400),
        (1, 3000, 2000),
        (3000, 2000, 1),
        (100, 90, 110),
        (4, 384, 1024),
        (70, 9001, 65),
    ] {
        let mut p = product(m, k, n);
        for algorithm in p.algorithms(&[]) {
            p.algorithm = algorithm.into();
            let lens = [(m * k, false), (k * n, false), (m * n, true)];
            let args = lens.map(|(len, written)| (DType::F32, len, written));
            check(format!("{p:?}"), plan_of(Kernel::MatMul(p.clone()), &args));
        }
    }
}

#[test]
fn a_plan_with_an_illegal_algorithm_is_damaged() {
    let refused = |plan: &Plan, inputs: &[Buffer], algorithm: Algorithm| {
        for result in run(plan, inputs) {
            let Err(Error::Plan(text)) = result else {
                panic!("{algorithm} ran");
            };
            assert!(text.contains(&algorithm.to_string()), "{text}");
        }
    };
    let mut r = Random(3);
    let all = Algorithm::ALL;
    // Stride 2 along both axes.
    let shape = Shape {
        stride: [2, 2],
        ..LARGER[0]
    };
    let mut p = conv(DType::F32, &shape);
    let [x, w, _] = lens(&p);
    let inputs = [random(DType::F32, x, &mut r), random(DType::F32, w, &mut r)];
    let legal = p.algorithms(&[]);
    assert_eq!(legal, [Algorithm::Direct]);
    for algorithm in all.into_iter().filter(|a| !legal.contains(a)) {
        p.algorithm = algorithm.into();
        refused(&plan(&p), &inputs, algorithm);
    }
    let mut p = product(200, 200, 200);
    let args = [false, false, true].map(|written| (DType::F32, 40_000, written));
    let inputs = [0, 1].map(|_| random(DType::F32, 40_000, &mut r));
    let legal = p.algorithms(&[]);
    assert_eq!(legal, [Algorithm::Panels, Algorithm::Packed]);
    for algorithm in all.into_iter().filter(|a| !legal.contains(a)) {
        p.algorithm = algorithm.into();
        refused(
            &plan_of(Kernel::MatMul(p.clone()), &args),
            &inputs,
            algorithm,
        );
    }
}

#[test]
fn what_the_algorithms_need_beside_their_arguments() {
    let mut p = conv(DType::F32, &LARGER[0]);
    let bytes = |p: &Conv, threads| {
        let bytes = kiln_runtime::workspace(&Kernel::Conv(p.clone()), &[], threads);
        bytes.unwrap().unwrap() as i64
    };
    // Each thread copies at least the lines of a filter; packed weights are shared.
    p.algorithm = Algorithm::Direct.into();
    let (one, four) = (bytes(&p, 1), bytes(&p, 4));
    let each = (four - one) / 3;
    assert!(
        each >= 4 * 40 * 3 * 37 && one - each >= 4 * 40 * 44 * 9,
        "{one} {four}"
    );
    // Threads share the transformed weights; each has at least the inputs and products of a tile.
    p.images = Images::ChannelsLast;
    for (algorithm, elements) in [(Algorithm::Winograd2, 16), (Algorithm::Winograd4, 36)] {
        p.algorithm = algorithm.into();
        let (one, four) = (bytes(&p, 1), bytes(&p, 4));
        let each = (four - one) / 3;
        assert!(each >= elements * 4 * (40 + 44), "{algorithm} {each}");
        assert!(one - each >= elements * 4 * 40 * 44, "{algorithm} {one}");
    }
    // Transforms of inputs, results and weights.
    let mut p = conv(DType::F32, &LARGER[3]);
    p.algorithm = Algorithm::Fft.into();
    let tile = p.fft_tile(&[]).unwrap();
    let pairs = (2 * tile.count[0] * tile.count[1] + 1) / 2;
    assert!(bytes(&p, 1) >= 8 * tile.size() * ((3 + 5) * pairs + 15));
    let product = |algorithm: Algorithm| Kernel::MatMul(product(1, 500, 300)).by(algorithm);
    let of = |algorithm| kiln_runtime::workspace(&product(algorithm), &[], 2).unwrap();
    assert_eq!(of(Algorithm::Vector), Some(2 * 500 * 4));
    assert_eq!(of(Algorithm::Panels), Some(0));
    // Whole panels of two vectors.
    let packed = of(Algorithm::Packed).unwrap();
    assert!(
        (500 * 300 * 4..=500 * 320 * 4).contains(&packed),
        "{packed}"
    );
    assert!(kiln_runtime::workspace(&product(Algorithm::Direct), &[], 2).is_err());
    // 8 parts of 1,125 terms each of 70 x 65 results, on any number of threads.
    let parts = Kernel::MatMul(self::product(70, 9001, 65)).by(Algorithm::Parts);
    let bytes = [1, 4].map(|threads| kiln_runtime::workspace(&parts, &[], threads).unwrap());
    assert_eq!(bytes, [Some(8 * 70 * 65 * 4); 2]);
}
