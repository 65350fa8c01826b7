//! A small network with every kind of state that a package can keep, and reference values.

use kiln_export::Builder;
use kiln_nn::optim::{Adam, Optimizer};
use kiln_nn::{BatchNorm1d, Dropout, Forward, Linear, Module, Sequential, sequential};
use kiln_package::{Buffer, Package};
use kiln_tensor::{Compiled, DType, Spec, Tensor, Var, compile, with_seed};

pub type Step = Compiled<(Tensor, Tensor), (Tensor, Tensor)>;

/// A network, its optimiser, and functions compiled from both.
pub struct Trainee {
    pub network: Sequential,
    pub optimizer: Optimizer,
    pub forward: Compiled<Tensor, Tensor>,
    pub step: Step,
    /// A cell that only the step assigns.
    pub last: Var,
}

/// Makes a trainee with dropout, running statistics, moments, numbers that change, a loss that is kept without being
/// read, and a tensor that both functions capture.
pub fn trainee(seed: u64) -> Trainee {
    let network = with_seed(seed, || {
        let norm = BatchNorm1d::new(5);
        sequential![
            Linear::new(3, 5),
            norm,
            Dropout::new(0.25),
            Linear::new(5, 2)
        ]
        .unwrap()
    });
    let mut optimizer = Optimizer::new(network.parameters(), Adam::new()).unwrap();
    let last = Var::volatile(Tensor::zeros(2, DType::F32)).unwrap();
    last.set_name("last");
    let means = Tensor::from([0.5f32, -0.5, 0.25]);
    let rows = Spec::new(DType::F32, ("batch", 3));
    network.eval();
    let forward = compile(rows.clone(), |x| network.call(x - &means).softmax(1)).unwrap();
    network.train();
    let labels = Spec::new(DType::I64, "batch");
    let step = compile((rows, labels), |(x, y)| {
        optimizer.zero_grad();
        let loss = network.call(x - &means).cross_entropy(&y);
        loss.backward()?;
        optimizer.step()?;
        last.assign(loss.detach() + Tensor::zeros([2], DType::F32))?;
        kiln_tensor::Result::Ok((loss.detach(), y.sum(()) + 1))
    });
    Trainee {
        step: step.unwrap(),
        network,
        optimizer,
        forward,
        last,
    }
}

impl Trainee {
    /// Returns all kept cells, by their names in the package.
    pub fn kept(&self) -> Vec<(String, Var)> {
        let mut all = self.network.named_parameters();
        all.extend(self.network.named_buffers());
        let own = self.optimizer.named_state().into_iter();
        all.extend(own.map(|s| (format!("optimizer.{}", s.name), s.var)));
        all
    }

    pub fn builder(&self) -> Builder {
        Builder::new()
            .module("", &self.network)
            .optimizer("optimizer", &self.optimizer)
            .entry("forward", &self.forward)
            .inputs(["rows"])
            .outputs(["chances"])
            .entry("train_step", &self.step)
            .inputs(["rows", "labels"])
            .outputs(["loss", "ones"])
            .metadata("task", "a test")
            .asset("classes.txt", "no\nyes\n")
    }

    pub fn package(&self) -> Package {
        Package::from_bytes(&self.builder().to_bytes().unwrap()).unwrap()
    }
}

/// Rows and labels of a batch.
pub fn batch(seed: u64, n: usize) -> (Tensor, Tensor) {
    with_seed(seed, || {
        let (x, y) = (
            Tensor::randn([n, 3], DType::F32),
            Tensor::randint(0, 2, [n]),
        );
        x.realize().unwrap();
        y.realize().unwrap();
        (x, y)
    })
}

pub fn buffer(t: &Tensor) -> Buffer {
    let shape: Vec<i64> = t.shape().unwrap().iter().map(|n| *n as i64).collect();
    Buffer::from_bytes(t.dtype(), &shape, &t.to_bytes().unwrap()).unwrap()
}
