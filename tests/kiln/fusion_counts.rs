//! Small pieces of networks become one kernel, on the CPU and on a GPU, and give the right results.

use crate::cuda;
use kiln::{
    Affine, Attention, Bisection, Conv, CrossEntropy, DType, Device, Explain, RunningStats, Tensor,
    Var, cat, compile, grad, with_seed,
};
use kiln_codegen::Body;

type Program = fn(&[Tensor]) -> Vec<Tensor>;

/// A piece of a network that becomes one kernel, and the shapes of its inputs.
type Piece = (&'static str, &'static [&'static [usize]], Program);

const PIECES: &[Piece] = &[
    ("softmax", &[&[64, 33]], |x| vec![x[0].softmax(1)]),
    ("argmax after softmax", &[&[64, 33]], |x| {
        vec![x[0].softmax(1).argmax(1)]
    }),
    ("layer norm", &[&[64, 48], &[48]], |x| {
        vec![x[0].layer_norm_with([48], Affine::new().weight(&x[1]))]
    }),
    ("RMS norm", &[&[64, 48], &[48]], |x| {
        vec![x[0].rms_norm_with([48], Affine::new().weight(&x[1]).eps(1e-5))]
    }),
    ("group norm", &[&[8, 32, 7, 7], &[32]], |x| {
        vec![x[0].group_norm_with(4, Affine::new().weight(&x[1]))]
    }),
    (
        "batch norm of a batch and ReLU",
        &[&[8, 32, 7, 7], &[32]],
        |x| {
            vec![
                x[0].batch_norm_with(RunningStats::new().weight(&x[1]).bias(&x[1]).training(true))
                    .relu(),
            ]
        },
    ),
    ("cross entropy with its softmax", &[&[64, 33]], |x| {
        let log = x[0].log_softmax(1);
        vec![-(&log * x[0].softmax(1)).sum([1])]
    }),
    ("a long chain", &[&[64, 48]], |x| {
        // A kernel holds 128 operations; some functions count as several.
        let step = |y: Tensor, i: i32| (&y * 0.9 - i as f64 * 0.01).relu() + &x[0];
        vec![(0..30).fold(x[0].clone(), step)]
    }),
    (
        "a product with scale, bias, residual, activation and cast",
        &[&[64, 48], &[48, 32], &[64, 32], &[32]],
        |x| {
            let y = x[0].matmul(&x[1]) * 0.125 + &x[3];
            vec![(y + &x[2]).gelu().to_dtype(DType::F16)]
        },
    ),
    (
        "a product with residual and layer norm",
        &[&[64, 48], &[48, 32], &[64, 32], &[32]],
        |x| {
            let y = x[0].matmul(&x[1]) + &x[2];
            vec![y.layer_norm_with([32], Affine::new().weight(&x[3]))]
        },
    ),
    (
        "a product with softmax and argmax",
        &[&[64, 48], &[48, 33]],
        |x| {
            let y = x[0].matmul(&x[1]).softmax(1);
            vec![y.argmax(1), y]
        },
    ),
    (
        "a product of what is scaled, activated and cast",
        &[&[64, 48], &[48, 32]],
        |x| {
            let half = x[1].to_dtype(DType::F16).to_dtype(DType::F32);
            vec![(&x[0] * 0.5 - 0.1).relu().matmul(&half)]
        },
    ),
    ("a product of halves", &[&[64, 48], &[48, 32]], |x| {
        let [a, b] = [0, 1].map(|i| x[i].to_dtype(DType::F16));
        vec![a.matmul(&b)]
    }),
    (
        "a strided convolution of normalised halves",
        &[&[2, 3, 33, 31], &[3, 1, 1], &[12, 3, 7, 7]],
        |x| {
            let image = x[0].to_dtype(DType::F16).to_dtype(DType::F32) * 0.25 - &x[1];
            vec![
                image
                    .conv2d_with(&x[2], Conv::new().stride(2).padding(3))
                    .relu(),
            ]
        },
    ),
    (
        "a pointwise convolution of scaled channels",
        &[&[2, 24, 7, 5], &[2, 24, 1, 1], &[17, 24, 1, 1], &[17]],
        |x| vec![(&x[0] * x[1].sigmoid()).conv2d_with(&x[2], Conv::new().bias(&x[3]))],
    ),
    ("sums along either axis", &[&[64, 48]], |x| {
        let y = x[0].exp();
        vec![y.sum([0]), y.sum([1])]
    }),
    (
        "the gradients of a layer norm",
        &[&[48, 64], &[64], &[64], &[48, 64]],
        |x| {
            let [x, scale, shift, y] = x else {
                return vec![];
            };
            let x = [x, scale, shift].map(|x| x.clone().requires_grad_(true));
            let norm = x[0].layer_norm_with([64], Affine::new().weight(&x[1]).bias(&x[2]));
            grad((norm * y).sum([0, 1]), &x).unwrap().to_vec()
        },
    ),
    ("a column sum behind a chain", &[&[64, 48]], |x| {
        vec![(x[0].exp() * 0.5 + 1.0).sum([0])]
    }),
];

/// Products of concatenations, which are prologues on a GPU and launches of their own on the CPU.
const CONCATENATIONS: &[Piece] = &[
    (
        "a product of what is put side by side",
        &[&[64, 48], &[64, 20], &[68, 32]],
        |x| vec![cat(&[&x[0], &x[1]], 1).matmul(&x[2])],
    ),
    (
        "a pointwise convolution of normalised, activated channels side by side",
        &[&[2, 24, 7, 5], &[2, 9, 7, 5], &[33, 1, 1], &[17, 33, 1, 1]],
        |x| {
            let y = (cat(&[&x[0], &x[1]], 1) * &x[2] + 0.5).relu();
            vec![y.conv2d(&x[3])]
        },
    ),
];

fn check(device: Device, pieces: &[Piece], kernels: usize) -> kiln::Result<()> {
    let mut other = Vec::new();
    for (name, shapes, piece) in pieces {
        let inputs: Vec<Tensor> = with_seed(3, || {
            let random = |s: &&[usize]| Tensor::randn(*s, DType::F32).to(device);
            shapes.iter().map(random).collect()
        });
        let program = compile(&inputs, |x| piece(&x))?;
        let verified = program.verify(&inputs)?;
        assert!(verified.is_right(), "{name}: {verified}");
        let explain = program.explain();
        println!("{name}: {} kernels", explain.kernels_run());
        if explain.kernels_run() != kernels {
            other.push(format!("{name}:\n{explain}"));
        }
    }
    assert!(other.is_empty(), "{}", other.join("\n"));
    Ok(())
}

#[test]
fn pieces_are_few_kernels() -> kiln::Result<()> {
    check(Device::Cpu, PIECES, 1)?;
    check(Device::Cpu, CONCATENATIONS, 2)
}

#[test]
fn pieces_are_few_kernels_on_a_gpu() -> kiln::Result<()> {
    match cuda::device() {
        Some(gpu) => {
            check(gpu, PIECES, 1)?;
            check(gpu, CONCATENATIONS, 1)
        }
        None => Ok(()),
    }
}

/// A cross entropy and the gradient of its logits.
fn cross_entropy(x: &Tensor, label: &Tensor, smoothing: f64) -> kiln::Result<[Tensor; 2]> {
    let x = x.clone().requires_grad_(true);
    let loss = x.cross_entropy_with(label, CrossEntropy::new().label_smoothing(smoothing));
    let gradient = grad(&loss, &x)?;
    Ok([loss, gradient])
}

/// Kernels, the bytes that they touch, and the peak of temporaries.
fn costs(explain: &Explain) -> (usize, i64, usize) {
    let kernels = explain.kernels.iter();
    let bytes = kernels.map(|k| k.cost.bytes.as_const().expect("sizes are known"));
    let memory = explain.memory.expect("sizes are known");
    (explain.kernels_run(), bytes.sum(), memory.peak)
}

/// The costs of a program without the pass that lets gathers read the operands of what they gather from.
fn costs_without_gathers(explain: &Explain, device: Device) -> (usize, i64, usize) {
    let all = kiln_optimize::passes().iter().copied();
    let passes: Vec<_> = all.filter(|p| p.name != "gathers").collect();
    let options = kiln_compiler::Options {
        gpu: (device != Device::Cpu).then_some(0),
        ..Default::default()
    };
    let recorded = &explain
        .stages
        .as_ref()
        .expect("it was just compiled")
        .recorded;
    let other = kiln_compiler::compile_with(recorded, &[], &options, &passes);
    costs(&other.expect("it compiles").explain)
}

fn check_cross_entropy(device: Device) -> kiln::Result<()> {
    let (n, c) = (64, 1001);
    let logits = with_seed(3, || Tensor::randn([n, c], DType::F32).to(device));
    let label = with_seed(4, || Tensor::randint(0, c as i64, [n]).to(device));
    for (smoothing, results, kernels) in [(0.0, 1, 2), (0.1, 1, 2), (0.0, 2, 3), (0.1, 2, 3)] {
        let program = compile((&logits, &label), |(x, y)| {
            let both = cross_entropy(&x, &y, smoothing)?;
            kiln::Result::Ok(both.into_iter().take(results).collect::<Vec<_>>())
        })?;
        let verified = program.verify((&logits, &label))?;
        assert!(verified.is_right(), "{verified}");
        let explain = program.explain();
        let (now, before) = (costs(explain), costs_without_gathers(explain, device));
        println!("smoothing {smoothing}, {results} results: {now:?}, else {before:?}");
        assert_eq!(now.0, kernels, "{explain}");
        // Smoothing and gradient both need the whole log-softmax, which is written once for both. The gather then
        // reads two numbers per row besides the logit.
        let shared = smoothing > 0.0 && results == 2;
        let most = if shared {
            before.1 + 32 * n as i64
        } else {
            before.1
        };
        assert!(now.0 <= before.0 && now.1 <= most, "{now:?} {before:?}");
        assert!(shared || now.2 < 4 * n * 8, "{now:?}\n{explain}");
        assert!(shared || before.2 >= 4 * n * c, "{before:?}");

        let wrong = Tensor::full([n], c as i64, DType::I64).to(device);
        let error = program
            .run((&logits, &wrong))
            .and_then(|y| y[0].to_vec::<f32>());
        let text = error.expect_err("the label is out of range").to_string();
        assert!(text.contains("index 1001 is outside 0..1001"), "{text}");
        assert!(text.contains("cross_entropy"), "{text}");
        assert!(text.contains("tests/kiln/fusion_counts.rs"), "{text}");
    }
    Ok(())
}

#[test]
fn a_cross_entropy_stores_no_log_softmax() -> kiln::Result<()> {
    check_cross_entropy(Device::Cpu)
}

#[test]
fn a_cross_entropy_stores_no_log_softmax_on_a_gpu() -> kiln::Result<()> {
    match cuda::device() {
        Some(gpu) => check_cross_entropy(gpu),
        None => Ok(()),
    }
}

/// Weights and biases of query, key and value, each with its own number of heads of width 8.
fn projections(dtype: DType, heads: [usize; 3], device: Device) -> kiln::Result<Vec<[Var; 2]>> {
    let var = |shape: &[usize]| {
        let value = with_seed(7, || Tensor::randn(shape, DType::F32) * 0.2);
        Var::parameter(value.to_dtype(dtype).to(device))
    };
    let both = |heads: usize| Ok([var(&[8 * heads, 32])?, var(&[8 * heads])?]);
    heads.into_iter().map(both).collect()
}

fn check_projections(device: Device) -> kiln::Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (heads, biases) in [
            ([4, 4, 4], [true; 3]),
            ([4, 4, 4], [false; 3]),
            ([4, 4, 4], [true, false, true]),
            ([4, 1, 1], [true; 3]),
            ([4, 2, 2], [false; 3]),
        ] {
            let what = format!("{dtype} {heads:?} {biases:?} {device}");
            // In f16 and bf16, outputs with a bias are cast and those without are not.
            if dtype != DType::F32 && biases.contains(&true) != biases.iter().all(|b| *b) {
                continue;
            }
            let vars = projections(dtype, heads, device)?;
            let x = Tensor::randn([2, 10, 32], DType::F32)
                .to_dtype(dtype)
                .to(device);
            let f = compile(&x, |x| {
                let part = |i: usize| {
                    let bias = biases[i].then(|| vars[i][1].get());
                    let y = x.linear_with(vars[i][0].get(), &bias);
                    let y = y.reshape([2, 10, heads[i] as i64, 8]).transpose(1, 2);
                    match heads[i] {
                        1 => y.expand([2, 4, 10, 8]),
                        _ => y,
                    }
                };
                let grouped = heads[1] == 2;
                part(0).scaled_dot_product_attention_with(
                    part(1),
                    part(2),
                    Attention::new().enable_gqa(grouped),
                )
            })?;
            let explain = f.explain();
            assert_eq!(explain.count("shared_operand"), 1, "{what}\n{explain}");
            // Attention in f16 and bf16 is three kernels on the CPU: scores, softmax and the rest, with casts.
            let most = match (dtype, device) {
                (DType::F32, _) | (_, Device::Cuda(_)) => 2,
                _ => 3,
            };
            assert!(explain.kernels_run() <= most, "{what}\n{explain}");
            let stages = explain.stages.as_ref().expect("stages");
            let options = kiln_codegen::Options {
                machine: stages.program.machine,
                ..Default::default()
            };
            let program =
                kiln_codegen::lower(&stages.optimized, &options).expect("it was lowered before");
            for task in program.tasks {
                if let (Body::MatMul(m), false) = (&task.work.body, device == Device::Cpu) {
                    assert_eq!(m.dtype(), dtype, "{what}");
                }
            }
            let found = f.verify(&x)?;
            assert!(found.is_right(), "{what}\n{found}");
            assert_eq!(f.bisect(&x)?, Bisection::Right, "{what}");
        }
    }
    Ok(())
}

#[test]
fn projections_are_one_product() -> kiln::Result<()> {
    check_projections(Device::Cpu)
}

#[test]
fn projections_are_one_product_on_a_gpu() -> kiln::Result<()> {
    match cuda::device() {
        Some(gpu) => check_projections(gpu),
        None => Ok(()),
    }
}

/// Rotary embeddings split the products, so attention can't be fused with them.
fn check_rotary(device: Device) -> kiln::Result<()> {
    let vars = projections(DType::F32, [4, 1, 1], device)?;
    let x = Tensor::randn([2, 10, 32], DType::F32).to(device);
    let angles = Tensor::rand([10, 4], DType::F32).to(device);
    let f = compile([&x, &angles], |[x, z]| {
        let part = |i: usize, heads: i64| {
            let y = x.linear_with(vars[i][0].get(), vars[i][1].get());
            y.reshape([2, 10, heads, 8]).transpose(1, 2)
        };
        let rotated = |y: Tensor| {
            let (halves, [cos, sin]) = (y.chunk(2, -1), [z.cos(), z.sin()]);
            let [a, b] = [&halves[0], &halves[1]];
            cat(&[&(a * &cos - b * &sin), &(b * &cos + a * &sin)], -1)
        };
        let (q, k) = (rotated(part(0, 4)), rotated(part(1, 1)));
        q.scaled_dot_product_attention_with(
            &k,
            part(2, 1),
            Attention::new().is_causal(true).enable_gqa(true),
        )
    })?;
    let explain = f.explain();
    assert_eq!(explain.count("shared_operand"), 1, "{explain}");
    let products = explain.kernels.iter().filter(|k| k.name.contains("matmul"));
    assert_eq!(products.count(), 1, "{explain}");
    let found = f.verify([&x, &angles])?;
    assert!(found.is_right(), "{found}");
    assert_eq!(f.bisect([&x, &angles])?, Bisection::Right);
    Ok(())
}

#[test]
fn rotary_embeddings_read_one_product() -> kiln::Result<()> {
    check_rotary(Device::Cpu)
}

#[test]
fn rotary_embeddings_read_one_product_on_a_gpu() -> kiln::Result<()> {
    match cuda::device() {
        Some(gpu) => check_rotary(gpu),
        None => Ok(()),
    }
}

/// A norm or a factor after a view of a product is folded into its weight.
#[test]
fn views_stand_in_the_way_of_no_folding() -> kiln::Result<()> {
    let parameter = |shape: &[usize]| Var::parameter(Tensor::randn(shape, DType::F32));
    let (conv, linear) = (parameter(&[6, 3, 3, 3])?, parameter(&[6, 5])?);
    let vectors = [parameter(&[6])?, parameter(&[6])?, parameter(&[6])?];
    let variance = Var::new(&(Tensor::rand([6], DType::F32) + 0.5))?;
    let [image, rows] = [&[2, 3, 7, 5][..], &[2, 7, 5]].map(|s| Tensor::randn(s, DType::F32));
    let norm = |y: Tensor| {
        let [weight, bias] = [&vectors[0], &vectors[1]].map(Var::get);
        y.batch_norm_with(
            RunningStats::new()
                .running_mean(&vectors[2])
                .running_var(&variance)
                .weight(&weight)
                .bias(&bias),
        )
    };
    let bias = || vectors[1].get();
    let convolved = |x: &Tensor| x.conv2d_with(conv.get(), Conv::new().bias(bias()).padding(1));
    type Case<'a> = (&'static str, &'a Tensor, &'a dyn Fn(&Tensor) -> Tensor);
    let cases: [Case<'_>; 5] = [
        ("conv_batch_norm", &image, &|x| {
            norm(convolved(x).flatten((2, 3)))
        }),
        ("scaled_product", &image, &|x| {
            convolved(x).permute([0, 2, 3, 1]) * 0.3
        }),
        ("scaled_product", &image, &|x| {
            -(convolved(x).permute([0, 2, 3, 1]).reshape([70, 6]) - vectors[0].get())
        }),
        ("linear_batch_norm", &rows, &|x| {
            norm(x.linear_with(linear.get(), bias()).transpose(1, 2))
        }),
        ("linear_batch_norm", &rows, &|x| {
            norm(x.linear(linear.get()).reshape([14, 6]))
        }),
    ];
    for (rule, x, program) in cases {
        let f = compile(x, |x| program(&x))?;
        let explain = f.explain();
        assert_eq!(explain.count(rule), 1, "{explain}");
        assert!(f.verify(x)?.is_right(), "{explain}");
        assert_eq!(f.bisect(x)?, Bisection::Right, "{explain}");
    }
    Ok(())
}
