//! Training that is interrupted and resumed in a fresh process ends with the same bits, also if the batch size
//! changes. The kernels that run follow from the program and the sizes, not from earlier runs.

use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{
    BatchNorm2d, Checkpoint, Conv2d, Forward, Linear, MaxPool2d, Module, ReLU, Sequential,
    sequential,
};
use kiln::{DType, Tensor, get_rng_state, set_rng_state, with_seed};
use std::path::Path;
use std::process::Command;

/// The last batch of an epoch is smaller.
const BATCHES: [usize; 3] = [16, 16, 10];
const STEPS: usize = 9;

struct Training {
    features: Sequential,
    head: Linear,
    optimizer: Optimizer,
}

impl Training {
    fn new() -> kiln::Result<Training> {
        let features = sequential![
            Conv2d::new(1, 6, 3),
            BatchNorm2d::new(6),
            ReLU::new(),
            MaxPool2d::new(2),
            Conv2d::new(6, 8, 3),
            BatchNorm2d::new(8)
        ]
        .unwrap();
        let head = Linear::new(8, 5)?;
        let parameters = [features.parameters(), head.parameters()].concat();
        let optimizer = Optimizer::new(&parameters, AdamW::new())?;
        Ok(Training {
            features,
            head,
            optimizer,
        })
    }

    fn logits(&self, x: &Tensor) -> Tensor {
        let h = self.features.call(x).relu();
        self.head.call(h.mean([2, 3]))
    }

    /// Trains on the batch of a step, and evaluates a loss on held out data.
    fn step(&mut self, step: usize) -> kiln::Result<()> {
        let batch = BATCHES[step % BATCHES.len()];
        let (x, y) = with_seed(step as u64, || {
            let x = Tensor::randn([batch, 1, 12, 12], DType::F32);
            (x, Tensor::randint(0, 5, [batch]))
        });
        self.optimizer.zero_grad();
        let loss = self.logits(&x).cross_entropy(&y);
        loss.backward()?;
        self.optimizer.step()
    }

    fn evaluate(&self) -> kiln::Result<Vec<f32>> {
        self.features.eval();
        let x = with_seed(77, || Tensor::randn([13, 1, 12, 12], DType::F32));
        let y = self.logits(&x).to_vec();
        self.features.train();
        y
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint::new()
            .module("features", &self.features)
            .module("head", &self.head)
            .optimizer("optimizer", &self.optimizer)
            .value("rng", &get_rng_state())
    }

    /// The bits of all weights and statistics, and of an evaluation.
    fn bits(&self) -> kiln::Result<Vec<u32>> {
        let states = [self.features.state_dict(), self.head.state_dict()];
        let mut bits = Vec::new();
        for (_, t) in states.iter().flat_map(|s| s.iter()) {
            let values: Vec<f32> = t.to_dtype(DType::F32).to_vec()?;
            bits.extend(values.iter().map(|v| v.to_bits()));
        }
        bits.extend(self.evaluate()?.iter().map(|v| v.to_bits()));
        Ok(bits)
    }
}

/// Runs the steps from `from` until `until`: loads the file of step `from` and writes that of `until`.
fn part(from: usize, until: usize, folder: &Path) -> kiln::Result<Vec<u32>> {
    let file = |step: usize| folder.join(format!("{step}.safetensors"));
    kiln::manual_seed(5);
    let mut training = Training::new()?;
    if from > 0 {
        let loaded = Checkpoint::load(file(from))?;
        let restore = loaded
            .restore()
            .module("features", &training.features)
            .module("head", &training.head)
            .optimizer("optimizer", &mut training.optimizer);
        restore.finish()?;
        set_rng_state(loaded.get("rng")?);
    }
    for step in from..until {
        training.step(step)?;
    }
    if until < STEPS {
        training.checkpoint().save(file(until))?;
    }
    training.bits()
}

#[test]
#[ignore = "run by the test below, each part in a process of its own"]
fn a_part_of_training() {
    let number = |name: &str| std::env::var(name).unwrap().parse().unwrap();
    let folder = std::env::var("KILN_FOLDER").unwrap();
    let folder = Path::new(&folder);
    let (from, until) = (number("KILN_FROM"), number("KILN_UNTIL"));
    let bits = part(from, until, folder).unwrap();
    let text: Vec<String> = bits.iter().map(|b| b.to_string()).collect();
    std::fs::write(folder.join("bits"), text.join(" ")).unwrap();
}

/// The bits after training in several processes, which begin at these steps.
fn bits(begins: &[usize]) -> String {
    let name = format!("kiln-resuming-{}-{}", std::process::id(), begins.len());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for (i, from) in begins.iter().enumerate() {
        let until = begins.get(i + 1).copied().unwrap_or(STEPS);
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["resuming::a_part_of_training", "--exact", "--ignored"])
            .env("KILN_FOLDER", &folder)
            .env("KILN_FROM", from.to_string())
            .env("KILN_UNTIL", until.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&status.stdout);
        assert!(status.status.success(), "{text}");
    }
    let bits = std::fs::read_to_string(folder.join("bits")).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    bits
}

#[test]
fn a_run_in_parts_ends_with_the_bits_of_a_whole_one() {
    let whole = bits(&[0]);
    assert!(whole.len() > 1000, "all weights");
    // A fresh process begins with a small batch, with a large one, and at every step.
    assert!(whole == bits(&[0, 2]), "in two parts");
    assert!(whole == bits(&[0, 4, 5]), "in three parts");
    let every: Vec<usize> = (0..STEPS).collect();
    assert!(whole == bits(&every), "in parts of one step");
}
