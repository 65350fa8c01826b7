//! Tensors on a GPU: the emulated one, or that of the driver which `KILN_CUDA_DRIVER` names.

use crate::{assert_close, matrix, vector};
use kiln::nn::optim::{Adam, Optimizer};
use kiln::nn::{Forward, Linear, Module, ReLU, Sequential};
use kiln::{DType, Device, ErrorKind, Spec, Tensor, Var, compile};
use kiln_runtime::cuda;

/// The device, or a line that says what is skipped.
pub fn device() -> Option<Device> {
    cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = cuda::Nvrtc::get() {
        let message = e.to_string();
        eprintln!("skipped: {}", message.lines().next().unwrap_or_default());
        return None;
    }
    Some(Device::cuda(0).unwrap())
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().unwrap()
}

#[test]
fn expressions_are_computed_where_their_operands_are() {
    let Some(gpu) = device() else { return };
    let x = matrix(5, 7);
    let of = |x: &Tensor| ((x * 2.0 + 1.0).sigmoid() * x.exp()).sum([1], true) - x;
    let there = of(&x.to(gpu));
    assert_eq!((there.device(), of(&x).device()), (gpu, Device::Cpu));
    assert_close(&floats(&there), &floats(&of(&x)));
    assert_close(&floats(&there.to(Device::Cpu)), &floats(&of(&x)));
    assert!(format!("{}", there.i(0)).ends_with("device='cuda:0')"));
    // Numbers and what depends on no data join any device.
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
        (uniform, Tensor::randint(-5, 1 << 40, [777]))
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
    y.sum((), false).backward().unwrap();
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
    assert!(text.contains("different devices, cuda:0 and cpu"), "{text}");
    assert!(
        text.contains("tests/kiln/cuda.rs") && text.contains(" on cuda:0 from"),
        "{text}"
    );
    let v = Var::new(&matrix(2, 2).to(gpu)).unwrap();
    let e = v.assign(&matrix(2, 2)).unwrap_err();
    assert!(
        e.message()
            .contains("on cuda:0 can't hold f32[2, 2] on cpu"),
        "{e}"
    );
    v.assign(&Tensor::zeros([2, 2], DType::F32)).unwrap();
    assert_eq!((v.get().device(), floats(&v.get())), (gpu, vec![0.0; 4]));
    let e = Device::cuda(99).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    assert!(e.message().contains("there is no cuda:99"), "{e}");
}

#[test]
fn a_bad_index_names_the_users_line_and_cells_keep_their_values() {
    let Some(gpu) = device() else { return };
    let table = Var::new(&matrix(4, 3).to(gpu)).unwrap();
    let before = floats(&table.get());
    for _ in 0..3 {
        let index = Tensor::from_slice(&[1i64, 9], [2]).to(gpu);
        let (rows, line) = (table.get().index_select(0, &index), line!());
        table.assign(&(table.get() + rows.sum((), false))).unwrap();
        let e = rows.to_vec::<f32>().unwrap_err();
        assert_eq!((e.kind(), e.loc().line), (ErrorKind::Data, line));
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
        let net = Sequential::new()
            .add(Linear::new(5, 8).unwrap())
            .add(ReLU::new())
            .add(Linear::new(8, 3).unwrap());
        net.to(device).unwrap();
        let rule = Adam {
            lr: 0.05,
            ..Adam::default()
        };
        let mut optimizer = Optimizer::new(&net.parameters(), rule).unwrap();
        let x = matrix(6, 5).to(device);
        let labels = Tensor::from_slice(&[0i64, 1, 2, 0, 1, 2], [6]).to(device);
        let mut losses = Vec::new();
        for _ in 0..5 {
            optimizer.zero_grad();
            let loss =
                net.forward(&x)
                    .cross_entropy(&labels, None, -100, kiln::Reduction::Mean, 0.0);
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
    // What was trained there is loaded here, and back.
    let other = Sequential::new()
        .add(Linear::new(5, 8).unwrap())
        .add(ReLU::new())
        .add(Linear::new(8, 3).unwrap());
    other.load_state_dict(&state, true).unwrap();
    net.load_state_dict(&other.state_dict(), true).unwrap();
    let x = matrix(2, 5);
    assert_close(
        &floats(&net.forward(&x.to(gpu))),
        &floats(&other.forward(&x)),
    );
}

#[test]
fn compiled_functions_run_where_their_arguments_are() {
    let Some(gpu) = device() else { return };
    let scale = Var::new(&vector(&[2.0, 3.0]).to(gpu)).unwrap();
    let count = Var::new(&vector(&[0.0]).to(gpu)).unwrap();
    let offset = Tensor::scalar(0.5f32);
    let spec = Spec::new(DType::F32, ["n".into(), 2.into()]).on(gpu);
    let f = compile(&[spec], |x| {
        count.assign(&(count.get() + 1.0)).unwrap();
        &x[0] * scale.get() + &offset
    })
    .unwrap();
    for n in [2, 5, 2, 2, 2] {
        let x = matrix(n, 2);
        let y = f.run(&[&x.to(gpu)]).unwrap().remove(0);
        assert_eq!(y.device(), gpu);
        assert_close(&floats(&y), &floats(&(x * vector(&[2.0, 3.0]) + 0.5)));
    }
    assert_eq!(floats(&count.get()), [5.0]);
    let e = f.run(&[&matrix(3, 2)]).unwrap_err();
    assert!(
        e.message()
            .contains("argument 0 must be f32[n >= 2, 2] on cuda:0, not"),
        "{e}"
    );
    assert!(e.message().contains("on cpu"), "{e}");
}

#[test]
fn the_device_tells_what_it_is() {
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
fn attention_is_one_kernel_unless_it_is_trained() {
    let Some(gpu) = device() else { return };
    kiln::manual_seed(3);
    let x = [37, 41, 41].map(|rows| Tensor::randn([2, 3, rows, 16], DType::F32));
    let attend = |x: &[Tensor]| {
        x[0].scaled_dot_product_attention(&x[1], &x[2], None, 0.0, true, None, false)
    };
    let there = x.each_ref().map(|t| t.to(gpu));
    assert_close(&floats(&attend(&there)), &floats(&attend(&x)));
    let specs = there.each_ref().map(|t| Spec::like(t).unwrap());
    let compiled = compile(&specs, |x| attend(x)).unwrap();
    assert_eq!(compiled.explain().kernels_run(), 1);

    let gradients = |x: &[Tensor; 3]| {
        let leaves = x.each_ref().map(|t| t.detach().requires_grad_(true));
        attend(&leaves).square().sum((), false).backward().unwrap();
        leaves.map(|t| floats(&t.grad().unwrap()))
    };
    for (a, b) in gradients(&there).iter().zip(gradients(&x)) {
        assert_close(a, &b);
    }
}
