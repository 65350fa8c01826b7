//! Entries that run with nothing above the runtime linked: the one of the runtime's own tests, and a training step.

use crate::vector;
use kiln::nn::optim::{Adam, Optimizer};
use kiln::nn::{BatchNorm1d, Dropout, Forward, Linear, Module, sequential};
use kiln::{Conv, DType, KilnNest, Pool, RunningStats, Spec, Tensor, Var, compile, with_seed};
use kiln_plan::{Entry, Signature};
use kiln_runtime::{Buffer, Executable};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crates/runtime/tests/fixtures")
}

/// A convolution, batch norm, pooling and linear layer for any batch size.
fn entry() -> Vec<u8> {
    let var = |shape: &[usize]| Var::new(Tensor::ones(shape, DType::F32)).unwrap();
    let (conv, linear) = (var(&[4, 1, 3, 3]), var(&[4 * 3 * 3, 5]));
    let mean = Var::new(vector(&[0.0; 4])).unwrap();
    let variance = Var::new(vector(&[1.0; 4])).unwrap();
    let named = [(&conv, "conv.weight"), (&linear, "fc.weight")];
    named.into_iter().for_each(|(var, name)| var.set_name(name));
    let image = Spec::new(DType::F32, ("batch", 1, 6, 6));
    let f = compile(image, |x| {
        let y = x.conv2d_with(
            conv.get(),
            Conv::new().stride([1, 1]).padding([1, 1]).dilation([1, 1]),
        );
        let y = y.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance),
        );
        let y = y.relu().max_pool2d(
            Pool::new([2, 2])
                .stride([2, 2])
                .padding([0, 0])
                .dilation([1, 1]),
        );
        y.flatten(1).matmul(linear.get()).softmax(1)
    });
    f.unwrap().to_bytes()
}

/// The inputs that the runtime's test builds: element i of input k.
fn input(k: usize, shape: &[i64]) -> Buffer {
    let count: i64 = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 37 + k as i64 * 11) % 101) as f32 / 101.0)
        .collect();
    Buffer::from_slice(&values, shape).unwrap()
}

/// With `KILN_UPDATE_FIXTURES=1` writes the files; they must then be committed.
#[test]
fn the_fixture_is_what_the_compiler_makes() {
    let bytes = entry();
    let executable = Executable::new(Entry::from_bytes(&bytes).unwrap().plan).unwrap();
    let inputs = executable.plan().inputs.iter().enumerate();
    let mut inputs: Vec<Buffer> = inputs
        .map(|(k, i)| input(k, &i.shape.iter().map(|d| d.eval(&[3])).collect::<Vec<_>>()))
        .collect();
    let donate = vec![false; inputs.len()];
    let result = executable.run(&mut inputs, &donate).unwrap().remove(0);
    let result: Vec<u8> = result.bytes().unwrap().to_vec();
    if std::env::var_os("KILN_UPDATE_FIXTURES").is_some() {
        std::fs::create_dir_all(folder()).unwrap();
        std::fs::write(folder().join("small_cnn.entry"), &bytes).unwrap();
        std::fs::write(folder().join("small_cnn.f32"), &result).unwrap();
    }
    let wanted = std::fs::read(folder().join("small_cnn.entry")).unwrap();
    assert!(
        bytes == wanted,
        "the compiler makes another entry than the fixture; run this test with KILN_UPDATE_FIXTURES=1"
    );
    let wanted = std::fs::read(folder().join("small_cnn.f32")).unwrap();
    for (a, b) in result
        .as_chunks::<4>()
        .0
        .iter()
        .zip(wanted.as_chunks::<4>().0)
    {
        let (a, b) = (f32::from_le_bytes(*a), f32::from_le_bytes(*b));
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
}

#[derive(KilnNest)]
struct Batch<T = Tensor> {
    rows: T,
    labels: T,
}

#[derive(KilnNest)]
struct Progress {
    loss: Tensor,
    right: Tensor,
}

/// A process without the compiler, after it has read an entry and its values.
struct Shipped {
    executable: Executable,
    signature: Signature,
    captured: Vec<Buffer>,
    states: Vec<Buffer>,
    /// The seed, and the next offset.
    random: [i64; 2],
}

impl Shipped {
    fn run(&mut self, arguments: &[Buffer]) -> Vec<Buffer> {
        let (plan, signature) = (self.executable.plan(), &self.signature);
        let mut inputs: Vec<Option<Buffer>> = vec![None; plan.inputs.len()];
        let given = signature.arguments.iter().zip(arguments);
        for (named, value) in given.chain(signature.captured.iter().zip(&self.captured)) {
            inputs[named.at as usize] = Some(value.clone());
        }
        let size = |s: &kiln_plan::Symbol| arguments[s.input as usize].shape()[s.axis as usize];
        let sizes: Vec<i64> = plan.symbols.iter().map(size).collect();
        let next = self.random;
        let keys = signature.keys(&sizes, |count| {
            self.random[1] += count;
            next
        });
        for (draw, key) in signature.draws.iter().zip(keys.unwrap()) {
            if let Some(input) = draw.input {
                inputs[input as usize] = Some(Buffer::from_slice(&key, &[2]).unwrap());
            }
        }
        let mut donate = vec![false; inputs.len()];
        for (state, held) in signature.states.iter().zip(&mut self.states) {
            let Some(input) = state.input else { continue };
            let nothing = Buffer::from_slice::<f32>(&[], &[0]).unwrap();
            let value = match state.output {
                Some(_) => std::mem::replace(held, nothing),
                None => held.clone(),
            };
            inputs[input as usize] = Some(value);
            donate[input as usize] = state.output.is_some();
        }
        let mut inputs: Vec<Buffer> = inputs.into_iter().map(Option::unwrap).collect();
        let outputs = self.executable.run(&mut inputs, &donate).unwrap();
        for (state, held) in signature.states.iter().zip(&mut self.states) {
            if let Some(output) = state.output {
                *held = outputs[output as usize].clone();
            }
        }
        let results = signature.results.iter();
        results.map(|r| outputs[r.at as usize].clone()).collect()
    }
}

fn buffer(t: &Tensor) -> Buffer {
    let shape: Vec<i64> = t.shape().unwrap().iter().map(|n| *n as i64).collect();
    Buffer::from_bytes(t.dtype(), &shape, &t.to_bytes().unwrap()).unwrap()
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_bytes().unwrap()).collect()
}

/// Dropout, running statistics and moments; weights that exchange places, a loss that is kept without being read, and
/// means that the function captures.
#[test]
fn training_goes_on_without_the_compiler() {
    let net = with_seed(1, || {
        let norm = BatchNorm1d::new(16);
        sequential![
            Linear::new(6, 16),
            norm,
            Dropout::new(0.25),
            Linear::new(16, 3)
        ]
        .unwrap()
    });
    let mut optimizer = Optimizer::new(net.parameters(), Adam::new()).unwrap();
    let var = |value: f32| Var::volatile(vector(&[value; 2])).unwrap();
    let (last, turns, returns) = (var(0.0), var(1.0), var(2.0));
    last.set_name("last");
    turns.set_name("turns");
    let means = vector(&[0.5, -0.5, 0.0, 1.0, 0.25, 0.0]);
    let batch = Batch {
        rows: Spec::new(DType::F32, ("batch", 6)),
        labels: Spec::new(DType::I64, "batch"),
    };
    let step = compile((batch, Spec::new(DType::F32, ())), |(batch, noise)| {
        optimizer.zero_grad();
        let rows = &batch.rows - &means + batch.rows.rand_like() * noise;
        let logits = net.call(&rows);
        let loss = logits.cross_entropy(&batch.labels);
        loss.backward()?;
        optimizer.step()?;
        last.assign(loss.detach() + Tensor::zeros([2], DType::F32))?;
        let turned = turns.get();
        turns.assign(returns.get())?;
        returns.assign(turned)?;
        let right = logits
            .argmax(1)
            .eq(&batch.labels)
            .to_dtype(DType::I64)
            .sum(());
        Ok((
            Progress {
                loss: loss.detach(),
                right,
            },
            rows.detach(),
        ))
    });
    let step = step.unwrap();
    let Entry { signature, plan } = Entry::from_bytes(&step.to_bytes()).unwrap();
    let names = |list: &[kiln_plan::Named]| -> Vec<String> {
        list.iter().map(|n| n.name.clone()).collect()
    };
    assert_eq!(names(&signature.arguments), ["0.rows", "0.labels", "1"]);
    assert_eq!(names(&signature.captured), ["captured.0"]);
    assert_eq!(names(&signature.results), ["0.loss", "0.right", "1"]);
    insta::assert_snapshot!(told(&signature, &plan));

    let mut shipped = Shipped {
        executable: Executable::new(plan).unwrap(),
        signature,
        captured: step.captured().iter().map(buffer).collect(),
        states: step.states().iter().map(|v| buffer(&v.get())).collect(),
        random: [7, 0],
    };
    let batches: Vec<Batch> = with_seed(2, || {
        let batch = |n: usize| Batch {
            rows: Tensor::randn([n, 6], DType::F32),
            labels: Tensor::randint(0, 3, [n]),
        };
        [5, 9, 2, 5].map(batch).into()
    });
    let noise = Tensor::from(0.1f32);
    with_seed(7, || {
        for batch in &batches {
            let (Progress { loss, right }, rows) = step.run((batch, &noise)).unwrap();
            let given = [&batch.rows, &batch.labels, &noise].map(buffer);
            let found = shipped.run(&given);
            let found: Vec<Vec<u8>> = found.iter().map(|b| b.bytes().unwrap().to_vec()).collect();
            assert_eq!(found, bits(&[loss, right, rows]));
        }
    });
    let kept: Vec<Tensor> = step.states().iter().map(Var::get).collect();
    let found = shipped.states.iter().map(|b| b.bytes().unwrap().to_vec());
    assert_eq!(found.collect::<Vec<_>>(), bits(&kept));
    assert_eq!(turns.to_vec::<f32>().unwrap(), [1.0; 2]);
}

/// The description of an entry's states and draws in its signature and plan.
fn told(signature: &Signature, plan: &kiln_plan::Plan) -> String {
    let mut text = String::new();
    for s in &signature.states {
        let input = s.input.map(|i| &plan.inputs[i as usize]);
        let output = s.output.map(|o| &plan.outputs[o as usize]);
        let of = input.map(|i| (i.dtype, &i.shape));
        let (dtype, shape) = of.or(output.map(|o| (o.dtype, &o.shape))).unwrap();
        let options = match (input, output) {
            (_, None) => "read",
            (None, _) => "written",
            (_, Some(o)) if o.donor == s.input => "updated in place",
            (_, Some(_)) => "updated",
        };
        let shape: Vec<String> = shape.iter().map(|d| d.to_string()).collect();
        text += &format!("{}: {dtype}[{}], {options}\n", s.name, shape.join(", "));
    }
    for d in &signature.draws {
        text += &format!("draws {}\n", d.count);
    }
    text
}
