//! Tensors on a GPU: the emulated one, or that of the driver in `KILN_CUDA_DRIVER`.

use crate::{assert_close, matrix, vector};
use kiln::nn::optim::{Adam, Optimizer};
use kiln::nn::{AdaptiveLogSoftmaxWithLoss, Forward, Linear, Module, ReLU, sequential};
use kiln::{
    Affine, Attention, Conv, CudaGrid, CustomOp, DType, Device, ErrorKind, RunningStats, Spec,
    Tensor, Var, compile, cond, keep, scan,
};
use kiln_runtime::{Executable, cuda};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The device, or `None` after printing that the test is skipped.
pub fn device() -> Option<Device> {
    cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = cuda::Nvrtc::get() {
        let message = e.to_string();
        eprintln!("skipped: {}", message.lines().next().unwrap_or_default());
        return None;
    }
    Some(Device::cuda(0).unwrap())
}

/// The device of suites that pass on any device: a GPU with `KILN_TEST_DEVICE=cuda`.
pub fn test_device() -> Device {
    let wanted = std::env::var("KILN_TEST_DEVICE").is_ok_and(|d| d == "cuda");
    let found = if wanted { device() } else { None };
    found.unwrap_or_default()
}

/// Runs the tests of this binary whose names contain `tests`, with `KILN_TEST_DEVICE=cuda` and this `KILN_CUDA_PTX`.
fn runs_on_a_gpu(tests: &str, keeps_ptx: &str) {
    if device().is_none() {
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.arg(tests).env("KILN_TEST_DEVICE", "cuda");
    let output = command.env("KILN_CUDA_PTX", keeps_ptx).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !text.contains(" 0 passed"),
        "{text}"
    );
}

#[test]
fn loops_and_branches_run_there() {
    runs_on_a_gpu("control_flow::", "0");
    runs_on_a_gpu("while_loops::", "0");
}

#[test]
fn windows_need_not_divide_there() {
    runs_on_a_gpu("any_size", "0");
}

#[test]
fn plans_take_offsets_and_sizes_there() {
    // As machine code.
    runs_on_a_gpu("plan_cache_fuzz", "1");
}

#[test]
fn losses_of_sequences_and_softmaxes_in_clusters_are_the_same_there() {
    let Some(gpu) = device() else { return };
    let run = |device: Device| {
        let softmax = kiln::with_seed(5, || AdaptiveLogSoftmaxWithLoss::new(5, 9, [3, 6]));
        let softmax = softmax.unwrap();
        softmax.to(device).unwrap();
        let x = Var::parameter((matrix(7 * 3, 5) * 0.2).reshape([7, 3, 5]).to(device)).unwrap();
        let [y, steps, labels] = [
            Tensor::from([[1i64, 2, 2], [3, 1, 4], [4, 4, 0]]).flatten((0, 1)),
            Tensor::from([7i64, 4, 6]),
            Tensor::from([3i64, 2, 1]),
        ]
        .map(|t| t.to(device));
        let unaligned = x
            .get()
            .log_softmax(2)
            .ctc_loss(y.reshape([3, 3]), &steps, &labels);
        let (_, frequent) = softmax.call((x.get().select(0, 0), y.narrow(0, 2, 3)));
        let samples = Tensor::from([[[0.1f32, 0.8]]]).to(device);
        let windows = kiln::FractionalPool::new(2)
            .output_size(2)
            .random_samples(&samples);
        let pooled = x
            .get()
            .transpose(0, 1)
            .narrow(0, 1, 1)
            .fractional_max_pool2d(windows);
        let loss = unaligned + frequent + pooled.square().sum(());
        loss.backward().unwrap();
        [floats(&loss), floats(&x.grad().unwrap())]
    };
    for (there, here) in run(gpu).iter().zip(run(Device::Cpu)) {
        assert_close(there, &here);
    }
}

#[test]
fn recurrent_layers_are_loops_there() {
    let Some(gpu) = device() else { return };
    let run = |device: Device| {
        kiln::manual_seed(11);
        let options = kiln::nn::Recurrent::new().bidirectional(true);
        let lstm = kiln::nn::LSTM::with(3, 5, options).unwrap();
        let gru = kiln::nn::GRU::new(10, 4).unwrap();
        lstm.to(device).unwrap();
        gru.to(device).unwrap();
        let x = (matrix(6 * 2, 3) * 0.2).reshape([6, 2, 3]).to(device);
        let (y, (h, c)) = lstm.call(&x);
        let (y, last) = gru.call(&y);
        let loss = y.square().sum(()) + last.sum(()) + (h * c).sum(());
        if device == gpu {
            let kernels = kiln::explain(&loss).unwrap().to_string();
            assert!(kernels.contains("\n  loop\n"), "{kernels}");
        }
        loss.backward().unwrap();
        let parameters = [lstm.parameters(), gru.parameters()].concat();
        let mut all = vec![floats(&loss)];
        all.extend(parameters.iter().map(|p| floats(&p.grad().unwrap())));
        all
    };
    for (there, here) in run(gpu).iter().zip(run(Device::Cpu)) {
        let scale = here.iter().fold(0f32, |m, x| m.max(x.abs()));
        assert_eq!(there.len(), here.len());
        for (a, b) in there.iter().zip(here) {
            assert!((a - b).abs() <= 1e-5 * scale, "{a} {b} of {scale}");
        }
    }
}

#[test]
fn custom_operators_run_there() {
    let Some(gpu) = device() else { return };
    let source = "template <class T>
        __device__ void scaled(const T* x, const T* factor, T* y, long long n) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < n) y[i] = x[i] * factor[0];
        }";
    let made = |name, source: Option<&str>| {
        let op = CustomOp::new(
            name,
            |inputs| Ok(inputs[0].clone()),
            |inputs, output| {
                let factor = inputs[1].as_slice::<f64>()?[0];
                let scaled = inputs[0].as_slice::<f64>()?.iter().map(|x| x * factor);
                output.write(&scaled.collect::<Vec<f64>>())
            },
        );
        let points = |_: &[&[usize]], out: &[usize]| CudaGrid::points(out.iter().product());
        match source {
            Some(source) => op.unwrap().cuda(source, "scaled", points).unwrap(),
            None => op.unwrap(),
        }
    };
    let op = made("test::scaled", Some(source));
    for (rows, columns) in [(1, 1), (13, 37), (0, 5)] {
        for dtype in [DType::F64, DType::F32, DType::I32] {
            let x = matrix(rows, columns).to_dtype(dtype).to(gpu);
            let factor = Tensor::scalar(3i64).to_dtype(dtype);
            let y = op.call([&(&x + 1), &factor]) - &x;
            let want = (&x + 1) * 3 - &x;
            let of = |t: &Tensor| t.to_dtype(DType::F64).to_vec::<f64>().unwrap();
            assert_eq!(of(&y), of(&want));
        }
    }
    // For any size, in a loop, and in only the branch that is taken.
    let f = compile(Spec::new(DType::F64, "n").on(gpu), |x| {
        let two = Tensor::scalar(2.0f64);
        let (last, ()) = scan(x.clone(), Tensor::ones([3], DType::F64), |s, _| {
            (op.call([&s, &two]), ())
        });
        cond(
            x.sum(()).gt(0.0),
            || op.call([&last, &two]),
            || last.clone(),
        )
    });
    let f = f.unwrap();
    for x in [vec![1.0, 2.0], vec![-1.0, -2.0, 0.5]] {
        let sign = if x.iter().sum::<f64>() > 0.0 {
            16.0
        } else {
            8.0
        };
        let want: Vec<f64> = x.iter().map(|x| x * sign).collect();
        let x = Tensor::from_slice(&x, [x.len()]).to(gpu);
        assert_eq!(f.run(&x).unwrap().to_vec::<f64>().unwrap(), want);
    }
    // Without a kernel for the device, or with a wrong one, at the line of the call.
    let x = matrix(2, 3).to_dtype(DType::F64).to(gpu);
    let wrong = source.replace("factor[0]", "facto[0]");
    let cases = [
        (made("test::host_only", None), "has no CUDA kernel"),
        (
            made("test::wrong", Some(&wrong)),
            "identifier \"facto\" is undefined",
        ),
    ];
    for (op, text) in &cases {
        let (y, line) = (op.call([&x, &Tensor::scalar(1.0f64)]), line!());
        let e = y.to_vec::<f64>().unwrap_err();
        assert!(e.to_string().contains(text), "{e}");
        assert_eq!(e.loc().line(), line, "{e}");
    }
    assert!(
        made("test::twice", Some(source))
            .cuda(source, "scaled", |_, _| CudaGrid::points(0))
            .is_err()
    );
}

#[test]
fn a_step_after_a_failed_one_gives_its_error_and_training_goes_on() {
    let _alone = errors();
    let Some(gpu) = device() else { return };
    let train = |labels: &[[i64; 4]]| {
        kiln::manual_seed(5);
        let net = Linear::new(3, 2).unwrap();
        net.to(gpu).unwrap();
        let rule = Adam::new().lr(0.1);
        let mut optimizer = Optimizer::new(net.parameters(), rule).unwrap();
        let x = matrix(4, 3).to(gpu);
        let mut errors = Vec::new();
        for labels in labels {
            optimizer.zero_grad();
            let y = Tensor::from_slice(labels, [4]).to(gpu);
            let logits = net.call(&x);
            let loss = logits.cross_entropy(&y);
            loss.backward().unwrap();
            errors.push(optimizer.step().err());
        }
        let parameters: Vec<Vec<f32>> = net.parameters().iter().map(|p| floats(&p.get())).collect();
        (errors, parameters)
    };
    let (good, bad) = ([0, 1, 1, 0], [0, 1, 7, 0]);
    // The step after the bad one is lost with it; the others run as if neither had been there.
    let (errors, found) = train(&[good, good, bad, good, good, good]);
    let kinds: Vec<Option<ErrorKind>> = errors
        .iter()
        .map(|e| e.as_ref().map(|e| e.kind()))
        .collect();
    assert_eq!(kinds, [None, None, None, Some(ErrorKind::Data), None, None]);
    let text = errors[3].as_ref().unwrap().to_string();
    assert!(
        text.contains("index 7 is outside 0..2") && text.contains("cross_entropy"),
        "{text}"
    );
    let (errors, wanted) = train(&[good, good, good, good]);
    assert!(errors.iter().all(Option::is_none));
    assert_eq!(found, wanted);
}

#[test]
fn an_error_is_told_by_what_depends_on_it_and_by_synchronize() {
    let _alone = errors();
    let Some(gpu) = device() else { return };
    let table = matrix(4, 3).to(gpu);
    let index = Tensor::from_slice(&[1i64, 9], [2]).to(gpu);
    let cell = Var::new(matrix(1, 3).to(gpu)).unwrap();
    let before = floats(&cell.get());
    let held = cell.get();
    for snapshot in [false, true] {
        let kept = snapshot.then(|| cell.get());
        let (rows, line) = (table.index_select(0, &index), line!());
        let sum = &rows.sum(keep([0])) + cell.get();
        cell.assign(&sum).unwrap();
        // The work is submitted to the device, and nobody has checked for its error yet.
        sum.realize().unwrap();
        // Work that does not depend on it goes on, in the same run too.
        assert_close(&floats(&(&table * 2.0)), &floats(&(matrix(4, 3) * 2.0)));
        let next = cell.get() * 2.0;
        let errors = [
            next.realize().map(drop).unwrap_err(),
            sum.to_vec::<f32>().unwrap_err(),
            Var::new(&sum).map(drop).unwrap_err(),
            sum.to(Device::Cpu).to_vec::<f32>().unwrap_err(),
        ];
        for e in errors {
            assert_eq!((e.kind(), e.loc().line()), (ErrorKind::Data, line), "{e}");
            assert!(e.message().contains("index 9 is outside 0..4"), "{e}");
        }
        assert_eq!(floats(&cell.get()), before);
        assert!(kept.is_none_or(|k| floats(&k) == before));
        gpu.synchronize().unwrap();
    }
    assert_eq!(floats(&held), before);
    let (rows, line) = (table.index_select(0, &index), line!());
    rows.realize().unwrap();
    let e = gpu.synchronize().unwrap_err();
    assert_eq!((e.kind(), e.loc().line()), (ErrorKind::Data, line), "{e}");
    gpu.synchronize().unwrap();
}

/// A lock for tests that cause or read errors of a device: a synchronisation reports the errors of all.
fn errors() -> MutexGuard<'static, ()> {
    static ERRORS: Mutex<()> = Mutex::new(());
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().unwrap()
}

#[test]
fn expressions_are_computed_where_their_operands_are() {
    let Some(gpu) = device() else { return };
    let x = matrix(5, 7);
    let of = |x: &Tensor| ((x * 2.0 + 1.0).sigmoid() * x.exp()).sum(keep([1])) - x;
    let there = of(&x.to(gpu));
    assert_eq!((there.device(), of(&x).device()), (gpu, Device::Cpu));
    assert_close(&floats(&there), &floats(&of(&x)));
    assert_close(&floats(&there.to(Device::Cpu)), &floats(&of(&x)));
    assert!(format!("{}", there.i(0)).ends_with("device='cuda:0')"));
    // Scalars and tensors that depend on no data combine with tensors of any device.
    let y = x.to(gpu) * Tensor::scalar(2.0f32) + Tensor::ones([7], DType::F32);
    assert_eq!(y.device(), gpu);
    assert_close(&floats(&y), &floats(&(x * 2.0 + 1.0)));
}

#[test]
fn random_numbers_are_the_cpus() {
    let Some(gpu) = device() else { return };
    let draw = || {
        kiln::manual_seed(7);
        let uniform = Tensor::rand([3, 1001], DType::F32);
        (uniform, Tensor::randint(-5, 1i64 << 40, [777]))
    };
    let ((a, b), (c, d)) = (draw(), draw());
    let (c, d) = (c.to(gpu), d.to(gpu));
    assert_eq!((c.device(), d.device()), (gpu, gpu));
    assert_eq!(floats(&a), floats(&c));
    assert_eq!(b.to_vec::<i64>().unwrap(), d.to_vec::<i64>().unwrap());
}

#[test]
fn gradients_flow_between_devices() {
    let Some(gpu) = device() else { return };
    let x = matrix(3, 4).requires_grad_(true);
    let y = (x.to(gpu).square() * 0.5).to(Device::Cpu) * &x;
    y.sum(()).backward().unwrap();
    let grad = x.grad().unwrap();
    assert_eq!(grad.device(), Device::Cpu);
    assert_close(&floats(&grad), &floats(&(x.detach().square() * 1.5)));
}

#[test]
fn operands_on_different_devices_are_an_error_that_names_both() {
    let Some(gpu) = device() else { return };
    let e = (matrix(2, 2).to(gpu) + matrix(2, 2)).realize().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Op);
    let text = e.to_string();
    let wanted = "devices, operand 0 (f32[2, 2]) on cuda:0 and operand 1 (f32[2, 2]) on cpu; move";
    assert!(text.contains(wanted), "{text}");
    assert!(
        text.contains("tests/kiln/cuda.rs") && text.contains(" on cuda:0 from"),
        "{text}"
    );
    let v = Var::new(matrix(2, 2).to(gpu)).unwrap();
    let e = v.assign(matrix(2, 2)).unwrap_err();
    assert!(
        e.message()
            .contains("on cuda:0 can't hold f32[2, 2] on cpu"),
        "{e}"
    );
    v.assign(Tensor::zeros([2, 2], DType::F32)).unwrap();
    assert_eq!((v.get().device(), floats(&v.get())), (gpu, vec![0.0; 4]));
    let e = Device::cuda(99).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    assert!(e.message().contains("there is no cuda:99"), "{e}");
}

#[test]
fn arguments_on_different_devices_have_pytorchs_names() {
    let Some(gpu) = device() else { return };
    let here = |shape: &[i64]| Tensor::ones(shape, DType::F32).to(Device::Cpu);
    let there = |shape: &[i64]| here(shape).to(gpu);
    let weight = Var::parameter(here(&[3, 3])).unwrap();
    weight.set_name("fc.weight");
    let stats = |on: &Tensor| Var::new(on).unwrap();
    let image = there(&[2, 3, 5, 5]);
    let norm = RunningStats::new()
        .running_mean(stats(&here(&[3])))
        .running_var(stats(&here(&[3])));
    let classes = Tensor::from([0i64, 2]).to(Device::Cpu);
    for (y, a, b) in [
        (
            there(&[2, 3]).linear(&weight),
            "input",
            "weight `fc.weight`",
        ),
        (
            there(&[2, 3]).linear_with(there(&[3, 3]), here(&[3])),
            "input",
            "bias",
        ),
        (image.conv2d(here(&[4, 3, 3, 3])), "input", "weight"),
        (
            image.conv2d_with(there(&[4, 3, 3, 3]), Conv::new().bias(here(&[4]))),
            "input",
            "bias",
        ),
        (
            image.conv_transpose2d(here(&[3, 4, 3, 3])),
            "input",
            "weight",
        ),
        (
            image.batch_norm_with(RunningStats::new().weight(here(&[3]))),
            "input",
            "weight",
        ),
        (image.batch_norm_with(norm), "input", "running mean"),
        (
            image.group_norm_with(3, Affine::new().bias(here(&[3]))),
            "input",
            "bias",
        ),
        (
            there(&[2, 3]).layer_norm_with([3], Affine::new().weight(here(&[3]))),
            "input",
            "weight",
        ),
        (there(&[4, 3]).embedding(&classes), "weight", "indices"),
        (
            there(&[2, 3]).matmul(here(&[3, 2])),
            "left operand",
            "right operand",
        ),
        (there(&[2, 3]).cross_entropy(&classes), "input", "target"),
        (
            there(&[1, 4, 3]).scaled_dot_product_attention(here(&[1, 4, 3]), here(&[1, 4, 3])),
            "query",
            "key",
        ),
    ] {
        let text = y.error().expect(b).to_string();
        let wanted =
            format!("the {a} is on cuda:0 but the {b} is on cpu; move one with to(device)");
        assert!(text.contains(&wanted), "{text}");
    }
}

#[test]
fn a_bad_index_names_the_users_line_and_cells_keep_their_values() {
    let _alone = errors();
    let Some(gpu) = device() else { return };
    let table = Var::new(matrix(4, 3).to(gpu)).unwrap();
    let before = floats(&table.get());
    for _ in 0..3 {
        let index = Tensor::from_slice(&[1i64, 9], [2]).to(gpu);
        let (rows, line) = (table.get().index_select(0, &index), line!());
        table.assign(&(table.get() + rows.sum(()))).unwrap();
        let e = rows.to_vec::<f32>().unwrap_err();
        assert_eq!((e.kind(), e.loc().line()), (ErrorKind::Data, line));
        assert!(e.message().contains("index 9 is outside 0..4"), "{e}");
        assert_eq!(floats(&table.get()), before);
    }
    // Other programs go on.
    assert_close(&floats(&(table.get() * 1.0)), &before);
}

#[test]
fn cells_move_and_train_as_on_the_cpu() {
    let Some(gpu) = device() else { return };
    let train = |device: Device| {
        kiln::manual_seed(3);
        let net = sequential![Linear::new(5, 8), ReLU::new(), Linear::new(8, 3)].unwrap();
        net.to(device).unwrap();
        let rule = Adam::new().lr(0.05);
        let mut optimizer = Optimizer::new(net.parameters(), rule).unwrap();
        let x = matrix(6, 5).to(device);
        let labels = Tensor::from_slice(&[0i64, 1, 2, 0, 1, 2], [6]).to(device);
        let mut losses = Vec::new();
        for _ in 0..5 {
            optimizer.zero_grad();
            let loss = net.call(&x).cross_entropy(&labels);
            loss.backward().unwrap();
            optimizer.step().unwrap();
            losses.push(loss.item::<f32>().unwrap());
        }
        assert!(net.parameters().iter().all(|p| p.device() == device));
        (losses, net.state_dict(), net)
    };
    let (there, state, net) = train(gpu);
    let (here, _, _) = train(Device::Cpu);
    for (a, b) in there.iter().zip(&here) {
        assert!((a - b).abs() < 1e-5 * b.abs(), "{there:?} {here:?}");
    }
    // A state trained on the GPU is loaded here, and back.
    let other = sequential![Linear::new(5, 8), ReLU::new(), Linear::new(8, 3)].unwrap();
    other.load_state_dict(&state, true).unwrap();
    net.load_state_dict(&other.state_dict(), true).unwrap();
    let x = matrix(2, 5);
    assert_close(&floats(&net.call(x.to(gpu))), &floats(&other.call(&x)));
}

#[test]
fn compiled_functions_run_where_their_arguments_are() {
    let Some(gpu) = device() else { return };
    let scale = Var::new(vector(&[2.0, 3.0]).to(gpu)).unwrap();
    let count = Var::new(vector(&[0.0]).to(gpu)).unwrap();
    let offset = Tensor::scalar(0.5f32);
    let spec = Spec::new(DType::F32, ("n", 2)).on(gpu);
    let f = compile(spec, |x| {
        count.assign(&(count.get() + 1.0)).unwrap();
        &x * scale.get() + &offset
    })
    .unwrap();
    for n in [2, 5, 2, 2, 2] {
        let x = matrix(n, 2);
        let y = f.run(x.to(gpu)).unwrap();
        assert_eq!(y.device(), gpu);
        assert_close(&floats(&y), &floats(&(x * vector(&[2.0, 3.0]) + 0.5)));
    }
    assert_eq!(floats(&count.get()), [5.0]);
    let e = f.run(matrix(3, 2)).unwrap_err();
    assert!(
        e.message()
            .contains("the argument must be f32[n, 2] on cuda:0, not"),
        "{e}"
    );
    assert!(e.message().contains("on cpu"), "{e}");
}

#[test]
fn the_device_tells_what_it_is() {
    let _alone = errors();
    let Some(gpu) = device() else { return };
    assert!(Device::cuda_count() >= 1 && Device::best() == gpu);
    assert!(!gpu.name().is_empty() && gpu.capability().is_some());
    let x = Tensor::zeros([1000], DType::F32).to(gpu);
    x.realize().unwrap();
    let memory = gpu.memory();
    assert!(memory.allocated >= 4000 && memory.peak >= memory.allocated);
    gpu.synchronize().unwrap();
    gpu.empty_cache().unwrap();
    assert_eq!(floats(&x), vec![0.0; 1000]);
}

#[test]
fn attention_and_its_gradients_store_no_scores() {
    let Some(gpu) = device() else { return };
    kiln::manual_seed(3);
    let x = [37, 41, 41].map(|rows| Tensor::randn([2, 3, rows, 16], DType::F32));
    let attend = |x: &[Tensor]| {
        x[0].scaled_dot_product_attention_with(&x[1], &x[2], Attention::new().is_causal(true))
    };
    let there = x.each_ref().map(|t| t.to(gpu));
    assert_close(&floats(&attend(&there)), &floats(&attend(&x)));
    let compiled = compile(&there, |x| attend(&x)).unwrap();
    assert_eq!(compiled.explain().kernels_run(), 1);

    let gradients = |x: &[Tensor; 3]| {
        let leaves = x.each_ref().map(|t| t.detach().requires_grad_(true));
        attend(&leaves).square().sum(()).backward().unwrap();
        leaves.map(|t| floats(&t.grad().unwrap()))
    };
    for (a, b) in gradients(&there).iter().zip(gradients(&x)) {
        assert_close(a, &b);
    }
    let trained = compile(&there, |x| {
        let leaves = x.map(|t| t.requires_grad_(true));
        attend(&leaves).sum(()).backward().unwrap();
        leaves.map(|t| t.grad().unwrap())
    });
    let text = trained.unwrap().explain().to_string();
    assert!(
        text.contains("attention_grad") && !text.contains("softmax"),
        "{text}"
    );
}

/// The footprint of a kernel follows from the description of its work. A plan whose buffers are too short for it is
/// refused, whatever the source of its kernels.
#[test]
fn a_plan_with_a_buffer_that_is_too_short_is_refused() {
    let Some(gpu) = device() else { return };
    let device = gpu.gpu().unwrap();
    let spec = |shape: &[usize]| Spec::new(DType::F32, shape.to_vec()).on(gpu);
    let specs = [spec(&[2, 3, 9, 9]), spec(&[5, 3, 3, 3]), spec(&[125, 33])];
    let made = compile(&specs, |[x, w, m]| {
        let y = x.conv2d_with(&w, Conv::new().stride(2).padding(1)).relu();
        let y = y.reshape([2, -1]).softmax(1).matmul(&m);
        y.sort(1).0.cumsum(0)
    })
    .unwrap();
    let plan = made.plan();
    assert!(plan.kernels.len() > 3, "{}", plan.kernels.len());
    let touched = plan.prepare.iter().chain(&plan.run).flat_map(|s| &s.args);
    for buffer in touched.map(|b| b.0 as usize) {
        let mut short = plan.clone();
        let len = short.buffers[buffer].len.as_const().unwrap();
        short.buffers[buffer].len = (len - 1).into();
        let refused = Executable::on_gpu(short, &device).map(|_| ());
        let text = refused.expect_err("it is too short").to_string();
        assert!(text.contains("damaged"), "buffer {buffer}: {text}");
    }
}

#[test]
fn loaders_bring_batches_there() -> kiln::Result<()> {
    use kiln::data::{DataLoader, TensorDataset, ToDevice};
    let Some(gpu) = device() else { return Ok(()) };
    let (x, y) = (
        Tensor::arange(0, 21, 1).reshape([7, 3]),
        Tensor::arange(0, 7, 1),
    );
    for workers in [0, 2] {
        let data = TensorDataset::new((x.to_dtype(DType::F32), y.clone()))?;
        let loader = DataLoader::new(data)
            .batch_size(3)
            .workers(workers)
            .device(gpu);
        let mut rows = Vec::new();
        for batch in &loader.build()? {
            let (x, y) = batch?;
            assert_eq!((x.device(), y.device()), (gpu, gpu));
            let sum = (x.sum([1]) + y.to_dtype(DType::F32)).to(Device::Cpu);
            rows.extend(sum.to_vec::<f32>()?);
        }
        assert_eq!(rows, [3.0, 13.0, 23.0, 33.0, 43.0, 53.0, 63.0]);
    }
    let (there, names) = (vec![Some(x.clone())], ["a"]).to(gpu);
    assert_eq!((there[0].as_ref().unwrap().device(), names), (gpu, ["a"]));
    Ok(())
}
