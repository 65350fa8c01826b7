//! The default device: what is made without one is on it, and nothing else moves.

use crate::{matrix, vector};
use kiln::data::{DataLoader, TensorDataset};
use kiln::nn::optim::*;
use kiln::nn::{BatchNorm1d, Embedding, Forward, LSTM, Linear, Module, ReLU, init, sequential};
use kiln::{
    DType, Device, ErrorKind, Result, Spec, Tensor, Var, compile, cuda, default_device, gradcheck,
    hessian, jacobian, normal, set_default_device, with_device, with_seed,
};

/// The emulated GPU, on which nothing is computed here but what a test says.
fn gpu() -> Device {
    kiln_runtime::cuda::set_driver(kiln_fake_cuda::library());
    Device::cuda(0).unwrap()
}

#[test]
fn what_is_made_is_on_it() {
    let gpu = gpu();
    let made = || {
        vec![
            Tensor::zeros([2, 3], DType::F32),
            Tensor::empty([0], DType::F32),
            Tensor::full([2], 7, DType::I64),
            Tensor::rand([2], DType::BF16),
            Tensor::randn([2], DType::F64),
            Tensor::randint(0, 5, [3]),
            Tensor::arange(0, 5, 1),
            Tensor::eye(3, DType::F32),
            Tensor::from([[1.0f32, 2.0]]),
            Tensor::from(vec![vec![1i64], vec![2]]),
            Tensor::scalar(1.5f32),
            Tensor::from_slice(&[1u8], [1]),
            Tensor::linspace(0.0, 1.0, 5, DType::F32),
            Tensor::randperm(5),
            normal(0.0, 1.0),
            Tensor::zeros([2], DType::F32).exp() + 1.0,
        ]
    };
    for t in with_device(gpu, made) {
        assert_eq!(
            (t.device(), t.is_cuda(), t.get_device()),
            (gpu, true, 0),
            "{t:?}"
        );
    }
    for t in made() {
        assert_eq!(
            (t.device(), t.is_cuda(), t.get_device()),
            (Device::Cpu, false, -1)
        );
    }
    with_device(gpu, || -> Result<()> {
        assert_eq!(default_device(), gpu);
        assert_eq!(Spec::new(DType::F32, 3).device, gpu);
        assert_eq!(
            Tensor::from_bytes(&[1, 2], DType::U8, [2]).device(),
            Device::Cpu
        );
        let model = sequential![Linear::new(3, 4), BatchNorm1d::new(4), ReLU::new()]?;
        let mut held: Vec<Var> = model.parameters();
        held.extend(model.named_buffers().into_iter().map(|(_, b)| b));
        assert!(held.len() == 7 && held.iter().all(|v| v.device() == gpu));
        let inner = with_device(Device::Cpu, || Linear::new(2, 2))?;
        assert_eq!(inner.weight.device(), Device::Cpu);
        // Whoever says a device gets it.
        assert_eq!(
            Tensor::zeros([2], DType::F32).to(Device::Cpu).device(),
            Device::Cpu
        );
        let x = Tensor::from([1.0f32, 2.0]);
        let e = (vector(&[1.0, 2.0]).to(Device::Cpu) + x)
            .check()
            .unwrap_err()
            .to_string();
        let wanted = "operand 0 (f32[2]) on cpu and operand 1 (f32[2]) on cuda:0";
        assert!(e.contains(wanted), "{e}");
        Ok(())
    })
    .unwrap();
    // A panic restores it, and other threads have none.
    let panicked = std::panic::catch_unwind(|| with_device(gpu, || panic!("on purpose")));
    assert!(panicked.is_err() && default_device() == Device::Cpu);
    let elsewhere = with_device(gpu, || std::thread::spawn(default_device).join());
    assert_eq!(elsewhere.unwrap(), Device::Cpu);
}

#[test]
fn what_has_a_device_is_worked_on_there() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    let x = matrix(6, 5);
    let y = Tensor::from([0i64, 1, 2, 0, 1, 2]);
    let work = || -> Result<Vec<f32>> {
        let loader = DataLoader::new(TensorDataset::new((x.clone(), y.clone()))?)
            .batch_size(3)
            .build()?;
        for batch in loader.iter() {
            let (a, b) = batch?;
            assert_eq!((a.device(), b.device()), (Device::Cpu, Device::Cpu));
        }
        let (model, lstm, words) = with_device(Device::Cpu, || -> Result<_> {
            let model = sequential![Linear::new(5, 7), ReLU::new(), Linear::new(7, 3)]?;
            Ok((model, LSTM::new(5, 4)?, Embedding::new(3, 5)?))
        })?;
        let w = &model.parameters()[0];
        for fill in [init::ones_, init::zeros_, init::eye_] {
            fill(w)?;
        }
        init::trunc_normal_(w, init::TruncNormal::new())?;
        init::orthogonal_(w, 1.0)?;
        init::sparse_(w, 0.3, 1.0)?;
        w.exponential_(2.0)?;
        w.uniform_(-1.0, 1.0)?;
        let (out, _) = lstm.call(words.call(&y).unsqueeze(0));
        let mut seen = out.to_vec::<f32>()?;
        for rule in 0..3 {
            let parameters = model.parameters();
            let mut opt = match rule {
                0 => Optimizer::new(parameters, Adafactor::new())?,
                1 => Optimizer::new(parameters, AdamW::new())?,
                _ => Optimizer::new(parameters, SGD::new().lr(0.1).momentum(0.9))?,
            };
            for _ in 0..2 {
                model.zero_grad();
                model.call(&x).cross_entropy(&y).backward()?;
                clip_grad_norm_(model.parameters(), 0.5)?;
                opt.step()?;
            }
        }
        for p in model.parameters() {
            seen.extend(p.to_vec::<f32>()?);
        }
        seen.extend(normal(&x, 1.0).to_vec::<f32>()?);
        let rows = jacobian(|x: Tensor| x.square(), &x.select(0, 0))?;
        seen.extend(rows.to_vec::<f32>()?);
        let bends = hessian(|x: Tensor| x.tanh().sum(()), x.select(0, 1))?;
        seen.extend(bends.to_vec::<f32>()?);
        gradcheck(
            |x: Tensor| x.tanh(),
            vector(&[0.5, -1.0]).to_dtype(DType::F64),
        )?;
        Ok(seen)
    };
    let x_of = |device| with_device(device, || with_seed(5, work)).unwrap();
    assert_eq!(x_of(gpu), x_of(Device::Cpu));
}

#[test]
fn a_model_made_on_it_trains_as_on_the_cpu() {
    let Some(gpu) = crate::cuda::device() else {
        return;
    };
    let train = || -> Result<Vec<f32>> {
        let model = sequential![
            Linear::new(5, 7),
            BatchNorm1d::new(7),
            ReLU::new(),
            Linear::new(7, 3)
        ]?;
        let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(0.1))?;
        let x = kiln::randn([6, 5]);
        let y = Tensor::from([0i64, 1, 2, 0, 1, 2]);
        for _ in 0..3 {
            opt.zero_grad();
            model.call(&x).cross_entropy(&y).backward()?;
            opt.step()?;
        }
        let f = compile(Spec::new(DType::F32, ("n", 5)), |x| {
            model.call(x).softmax(1)
        })?;
        assert_eq!(f.run(&x)?.device(), default_device());
        f.run(&x)?.to_vec()
    };
    let [there, here] = [gpu, Device::Cpu].map(|d| with_device(d, || with_seed(1, train)).unwrap());
    crate::assert_close(&there, &here);
}

#[test]
fn the_process_may_have_one() {
    const CHILD: &str = "KILN_TEST_DEFAULT_DEVICE";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", "default_device::the_process_may_have_one"]);
        let output = child.env(CHILD, "1").output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        return;
    }
    let gpu = gpu();
    set_default_device(gpu);
    assert_eq!(Tensor::from([1.0f32]).device(), gpu);
    let other = std::thread::spawn(|| Var::new(Tensor::zeros([2], DType::F32)).unwrap().device());
    assert_eq!(other.join().unwrap(), gpu);
    assert_eq!(cuda::current_device(), 0);
    assert_eq!(with_device(Device::Cpu, default_device), Device::Cpu);
}

#[test]
fn texts_name_devices() {
    let gpu = gpu();
    assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
    for text in ["cuda", "cuda:0"] {
        assert_eq!(text.parse::<Device>().unwrap(), gpu);
        assert_eq!(gpu.to_string().parse::<Device>().unwrap(), gpu);
    }
    for text in [
        "",
        "CPU",
        "cpu:0",
        "cuda:",
        "cuda0",
        "cuda:-1",
        "cuda:+0",
        "cuda: 0",
        "cuda:4294967296",
        "mps",
    ] {
        let e = text.parse::<Device>().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Value);
        let message = e.to_string();
        assert!(
            message.contains(&format!(
                "{text:?} is not a device: say cpu, cuda or cuda:N"
            )),
            "{message}"
        );
    }
    let e = "cuda:7".parse::<Device>().unwrap_err().to_string();
    assert!(e.contains("there is no cuda:7"), "{e}");
}

#[test]
fn a_gpu_is_described() {
    let gpu = gpu();
    assert!(cuda::is_available() && cuda::device_count() >= 1);
    assert_eq!(cuda::get_device_name(0).unwrap(), gpu.name());
    assert_eq!(
        Some(cuda::get_device_capability(0).unwrap()),
        gpu.capability()
    );
    assert_eq!(cuda::driver_version(), Some((13, 0)));
    let (free, total) = cuda::mem_get_info(0).unwrap();
    assert!(free <= total && total == gpu.gpu().unwrap().total_memory());
    let before = cuda::memory_allocated(0).unwrap();
    let held = Tensor::from(vec![0u8; 1 << 20]).to(gpu);
    assert!(cuda::memory_allocated(0).unwrap() >= before + (1 << 20));
    drop(held);
    cuda::synchronize(0).unwrap();
    assert!(
        cuda::get_device_name(99)
            .unwrap_err()
            .to_string()
            .contains("there is no cuda:99")
    );
    let (free, total) = Device::Cpu.mem_get_info().unwrap();
    assert!(0 < free && free <= total);
}
