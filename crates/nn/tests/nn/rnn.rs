//! Recurrent networks against plain loops in f64.

use crate::support::{assert_close, check_gradients, f64_module, names, random, values};
use kiln_nn::*;
use kiln_tensor::{DType, Spec, Tensor, compile};
use std::collections::BTreeMap;

type Weights = BTreeMap<String, Vec<f64>>;
/// The hidden state and the cell.
type State = (Vec<f64>, Vec<f64>);

fn weights(m: &dyn Module) -> Weights {
    m.state_dict()
        .iter()
        .map(|(n, t)| (n.to_string(), values(t)))
        .collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `w · x + b`; b is 0 if it is `None`.
fn affine(w: &[f64], b: Option<&Vec<f64>>, x: &[f64]) -> Vec<f64> {
    let rows = w.chunks(x.len()).enumerate();
    rows.map(|(i, row)| {
        let product: f64 = row.iter().zip(x).map(|(a, b)| a * b).sum();
        product + b.map_or(0.0, |b| b[i])
    })
    .collect()
}

/// One step of a sample: the new hidden state and cell.
fn step(kind: &str, gates_x: &[f64], gates_h: &[f64], h: &[f64], c: &[f64]) -> State {
    let n = h.len();
    let x = |g: usize, i: usize| gates_x[g * n + i];
    let u = |g: usize, i: usize| gates_h[g * n + i];
    let mut out = (Vec::new(), c.to_vec());
    for i in 0..n {
        let hidden = match kind {
            "tanh" => (x(0, i) + u(0, i)).tanh(),
            "relu" => (x(0, i) + u(0, i)).max(0.0),
            "lstm" => {
                let gate = |g| x(g, i) + u(g, i);
                out.1[i] = sigmoid(gate(1)) * c[i] + sigmoid(gate(0)) * gate(2).tanh();
                sigmoid(gate(3)) * out.1[i].tanh()
            }
            _ => {
                let r = sigmoid(x(0, i) + u(0, i));
                let z = sigmoid(x(1, i) + u(1, i));
                let new = (x(2, i) + r * u(2, i)).tanh();
                (1.0 - z) * new + z * h[i]
            }
        };
        out.0.push(hidden);
    }
    out
}

/// Outputs of the last layer by step, last hidden states and last cells, for one sample.
fn naive(
    kind: &str,
    w: &Weights,
    x: &[Vec<f64>],
    (layers, directions): (usize, usize),
    first: &[State],
) -> (Vec<Vec<f64>>, Vec<State>) {
    let mut x = x.to_vec();
    let mut last = Vec::new();
    for layer in 0..layers {
        let mut y = vec![Vec::new(); x.len()];
        for direction in 0..directions {
            let suffix = format!("_l{layer}{}", ["", "_reverse"][direction]);
            let of = |name: &str| w.get(&format!("{name}{suffix}"));
            let (mut h, mut c) = first[layer * directions + direction].clone();
            let mut order: Vec<usize> = (0..x.len()).collect();
            if direction == 1 {
                order.reverse();
            }
            for t in order {
                let gates_x = affine(of("weight_ih").unwrap(), of("bias_ih"), &x[t]);
                let gates_h = affine(of("weight_hh").unwrap(), of("bias_hh"), &h);
                (h, c) = step(kind, &gates_x, &gates_h, &h, &c);
                y[t].extend(&h);
            }
            last.push((h, c));
        }
        x = y;
    }
    (x, last)
}

const INPUT: usize = 3;
const HIDDEN: usize = 4;
const LENGTH: usize = 5;
const BATCH: usize = 2;

/// Runs the plain loop on every sample of `x` `[l, n, input]`; returns `[l, n, ..]`, and `[states, n, hidden]` twice.
fn naive_batch(
    kind: &str,
    m: &dyn Module,
    x: &Tensor,
    form: (usize, usize),
    states: Option<(&Tensor, &Tensor)>,
) -> [Vec<f64>; 3] {
    let (w, xs) = (weights(m), values(x));
    let count = form.0 * form.1;
    let given = states.map(|(h, c)| (values(h), values(c)));
    let mut samples = Vec::new();
    for b in 0..BATCH {
        let at = |t: usize| xs[(t * BATCH + b) * INPUT..][..INPUT].to_vec();
        let x: Vec<Vec<f64>> = (0..LENGTH).map(at).collect();
        let state = |s: usize| {
            let of = |v: &Vec<f64>| v[(s * BATCH + b) * HIDDEN..][..HIDDEN].to_vec();
            given
                .as_ref()
                .map_or((vec![0.0; HIDDEN], vec![0.0; HIDDEN]), |(h, c)| {
                    (of(h), of(c))
                })
        };
        let first: Vec<_> = (0..count).map(state).collect();
        samples.push(naive(kind, &w, &x, form, &first));
    }
    let mut out = [Vec::new(), Vec::new(), Vec::new()];
    for t in 0..LENGTH {
        samples.iter().for_each(|(y, _)| out[0].extend(&y[t]));
    }
    for s in 0..count {
        samples
            .iter()
            .for_each(|(_, last)| out[1].extend(&last[s].0));
        samples
            .iter()
            .for_each(|(_, last)| out[2].extend(&last[s].1));
    }
    out
}

#[test]
fn lstms_of_every_form_are_their_steps() {
    for (layers, directions, bias) in [(1, 1, true), (2, 1, false), (1, 2, true), (2, 2, true)] {
        let options = Recurrent::new()
            .num_layers(layers)
            .bidirectional(directions == 2);
        let m = f64_module(|| LSTM::with(INPUT, HIDDEN, options.bias(bias)));
        let x = random([LENGTH, BATCH, INPUT]);
        let (h0, c0) = (
            random([layers * directions, BATCH, HIDDEN]),
            random([layers * directions, BATCH, HIDDEN]),
        );
        for states in [None, Some((&h0, &c0))] {
            let (y, (h, c)) = m.call((&x, states));
            let wanted = naive_batch("lstm", &m, &x, (layers, directions), states);
            assert_close(&values(&y), &wanted[0], 1e-10);
            assert_close(&values(&h), &wanted[1], 1e-10);
            assert_close(&values(&c), &wanted[2], 1e-10);
            assert_eq!(y.shape().unwrap(), [LENGTH, BATCH, directions * HIDDEN]);
        }
    }
}

#[test]
fn gru_and_rnn_are_their_steps() {
    let x = random([LENGTH, BATCH, INPUT]);
    let gru = f64_module(|| {
        GRU::with(
            INPUT,
            HIDDEN,
            Recurrent::new().num_layers(2).bidirectional(true),
        )
    });
    let (y, h) = gru.call(&x);
    let wanted = naive_batch("gru", &gru, &x, (2, 2), None);
    assert_close(&values(&y), &wanted[0], 1e-10);
    assert_close(&values(&h), &wanted[1], 1e-10);

    let tanh = f64_module(|| RNN::new(INPUT, HIDDEN));
    let (y, _) = tanh.call(&x);
    assert_close(
        &values(&y),
        &naive_batch("tanh", &tanh, &x, (1, 1), None)[0],
        1e-10,
    );
    let options = Recurrent::new().nonlinearity(init::Nonlinearity::Relu);
    let relu = f64_module(|| RNN::with(INPUT, HIDDEN, options));
    relu.load_state_dict(&tanh.state_dict(), true).unwrap();
    let (y, _) = relu.call(&x);
    assert_close(
        &values(&y),
        &naive_batch("relu", &relu, &x, (1, 1), None)[0],
        1e-10,
    );
}

#[test]
fn batches_may_come_first_or_not_at_all() {
    let m = f64_module(|| GRU::with(INPUT, HIDDEN, Recurrent::new().bidirectional(true)));
    let x = random([LENGTH, BATCH, INPUT]);
    let (y, h) = m.call(&x);
    let first_sample = (values(&y.select(1, 0)), values(&h.select(1, 0)));
    let (one, last) = m.call(x.select(1, 0));
    assert_eq!((one.ndim(), last.shape().unwrap()), (2, vec![2, HIDDEN]));
    assert_close(&values(&one), &first_sample.0, 1e-12);
    assert_close(&values(&last), &first_sample.1, 1e-12);
    let wanted = values(&y.transpose(0, 1));
    let options = Recurrent::new().bidirectional(true).batch_first(true);
    let first = f64_module(|| GRU::with(INPUT, HIDDEN, options));
    first.load_state_dict(&m.state_dict(), true).unwrap();
    let m = first;
    let (y, swapped) = m.call(x.transpose(0, 1));
    assert_close(&values(&y), &wanted, 1e-12);
    assert_close(&values(&swapped), &values(&h), 1e-12);
}

#[test]
fn recurrent_parameters_have_pytorchs_names_and_shapes() {
    let options = Recurrent::new().num_layers(2).bidirectional(true);
    let m = LSTM::with(3, 4, options.batch_first(true).dropout(0.5)).unwrap();
    let wanted = [
        "weight_ih_l0",
        "weight_hh_l0",
        "bias_ih_l0",
        "bias_hh_l0",
        "weight_ih_l0_reverse",
        "weight_hh_l0_reverse",
        "bias_ih_l0_reverse",
        "bias_hh_l0_reverse",
        "weight_ih_l1",
        "weight_hh_l1",
        "bias_ih_l1",
        "bias_hh_l1",
        "weight_ih_l1_reverse",
        "weight_hh_l1_reverse",
        "bias_ih_l1_reverse",
        "bias_hh_l1_reverse",
    ];
    assert_eq!(names(&m), wanted);
    assert_eq!(
        m.get_parameter("weight_ih_l1").unwrap().shape().unwrap(),
        [16, 8]
    );
    assert_eq!(
        m.get_parameter("weight_hh_l0").unwrap().shape().unwrap(),
        [16, 4]
    );
    assert_eq!(
        m.to_string(),
        "LSTM(3, 4, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)"
    );
}

#[test]
fn dropout_between_layers_is_for_training() {
    let m = f64_module(|| RNN::with(INPUT, HIDDEN, Recurrent::new().num_layers(2).dropout(1.0)));
    let x = random([LENGTH, BATCH, INPUT]);
    let (dropped, _) = m.call(&x);
    let (other, _) = m.call(random([LENGTH, BATCH, INPUT]));
    assert_eq!(
        values(&dropped),
        values(&other),
        "nothing of the first layer is left"
    );
    m.eval();
    assert_ne!(values(&m.call(&x).0), values(&dropped));
}

#[test]
fn gradients_flow_through_time() {
    let m = f64_module(|| LSTM::with(2, 2, Recurrent::new().bidirectional(true)));
    let x = random([3, 1, 2]);
    check_gradients(&m, &|| m.call(&x).0);
    let m = f64_module(|| GRU::new(2, 2));
    check_gradients(&m, &|| m.call(&x).1);
}

#[test]
fn recurrence_compiles_with_a_symbolic_batch() {
    let m = f64_module(|| LSTM::new(INPUT, HIDDEN));
    let spec = Spec::new(DType::F64, (LENGTH, "batch", INPUT));
    let compiled = compile(spec, |x| m.call(&x).0).unwrap();
    let x = random([LENGTH, BATCH, INPUT]);
    let y = compiled.run(&x).unwrap();
    assert_close(&values(&y), &values(&m.call(&x).0), 1e-12);
}

/// Lengths of the sequences of a batch, in no order.
const LENGTHS: [i64; 3] = [2, 5, 1];

/// Checks that a packed batch gives what each of its sequences gives alone.
fn check_packed<S>(m: &impl Packed<S>, options: &str) {
    let n = LENGTHS.len();
    // The steps behind the end are not read.
    let x = random([LENGTH, n, INPUT]);
    let steps = Tensor::arange(0, LENGTH as i64, 1).unsqueeze(1);
    let ended = steps.ge(Tensor::from(LENGTHS).unsqueeze(0)).unsqueeze(-1);
    let x = x.masked_fill(&ended, f64::NAN).requires_grad_(true);
    let (y, states) = m.run(pack_padded_sequence(&x, Tensor::from(LENGTHS)));
    let (y, lengths) = pad_packed_sequence(&y);
    assert_eq!(lengths.to_vec::<i64>().unwrap(), LENGTHS);
    let mut loss = y.square().sum(());
    for s in &states {
        loss += s.square().sum(());
    }
    m.zero_grad();
    loss.backward().unwrap();
    let gradient = |m: &dyn Module| -> Vec<Vec<f64>> {
        m.parameters()
            .iter()
            .map(|p| values(&p.grad().unwrap()))
            .collect()
    };
    let (found, of_x) = (gradient(m), values(&x.grad().unwrap()));
    assert!(of_x.iter().all(|g| g.is_finite()), "{options}");
    m.zero_grad();
    let mut wanted = Tensor::scalar(0.0f64);
    for (i, length) in LENGTHS.into_iter().enumerate() {
        let alone = x.detach().narrow(1, i as i64, 1).narrow(0, 0, length);
        let (one, last) = m.run_alone(&alone);
        let of_batch = y.select(1, i as i64);
        assert_close(
            &values(&of_batch.narrow(0, 0, length)),
            &values(&one),
            1e-12,
        );
        let rest = values(&of_batch.narrow(0, length, LENGTH as i64 - length));
        assert!(rest.iter().all(|v| *v == 0.0), "{options}");
        for (s, last) in states.iter().zip(&last) {
            assert_close(&values(&s.narrow(1, i as i64, 1)), &values(last), 1e-12);
            wanted += last.square().sum(());
        }
        wanted += one.square().sum(());
    }
    wanted.backward().unwrap();
    for (found, wanted) in found.iter().zip(gradient(m)) {
        assert_close(found, &wanted, 1e-9);
    }
}

/// A recurrent network with its last states as a list.
trait Packed<S>: Module {
    fn run(&self, x: PackedSequence) -> (PackedSequence, Vec<Tensor>);
    fn run_alone(&self, x: &Tensor) -> (Tensor, Vec<Tensor>);
}

macro_rules! packed {
    ($($name:ident $states:ty: |$last:ident| $list:expr;)*) => {$(
        impl Packed<$states> for $name {
            fn run(&self, x: PackedSequence) -> (PackedSequence, Vec<Tensor>) {
                let (y, $last) = self.call(x);
                (y, $list)
            }

            fn run_alone(&self, x: &Tensor) -> (Tensor, Vec<Tensor>) {
                let (y, $last) = self.call(x);
                (y, $list)
            }
        }
    )*};
}
packed! {
    RNN Tensor: |h| vec![h];
    GRU Tensor: |h| vec![h];
    LSTM (Tensor, Tensor): |last| vec![last.0, last.1];
}

#[test]
fn packed_sequences_are_each_run_alone() {
    let options = || Recurrent::new().bidirectional(true);
    let lstm = f64_module(|| LSTM::with(INPUT, HIDDEN, options().num_layers(2)));
    check_packed(&lstm, "lstm");
    check_packed(&f64_module(|| GRU::with(INPUT, HIDDEN, options())), "gru");
    check_packed(&f64_module(|| RNN::new(INPUT, HIDDEN)), "rnn");
}

#[test]
fn packed_sequences_take_states_and_forms() {
    let m = f64_module(|| LSTM::with(INPUT, HIDDEN, Recurrent::new().batch_first(true)));
    let x = random([3, LENGTH, INPUT]);
    let (h0, c0) = (random([1, 3, HIDDEN]), random([1, 3, HIDDEN]));
    let first = PackPaddedSequence::new().batch_first(true);
    // All sequences whole: as a tensor.
    let whole = pack_padded_sequence_with(&x, Tensor::from([5i64; 3]), first.clone());
    let (y, (h, _)) = m.call((whole, (&h0, &c0)));
    let options = kiln_tensor::PadSequence::new().batch_first(true);
    let (y, _) = pad_packed_sequence_with(&y, options.clone());
    let (wanted, (last, _)) = m.call((&x, (&h0, &c0)));
    assert_close(&values(&y), &values(&wanted), 1e-12);
    assert_close(&values(&h), &values(&last), 1e-12);

    let packed = pack_padded_sequence_with(&x, Tensor::from(LENGTHS), first);
    let (padded, _) = pad_packed_sequence_with(&packed, options.padding_value(-7.0));
    assert_eq!(padded.i((0, 2..)).to_vec::<f64>().unwrap(), [-7.0; 9]);
    assert_eq!(values(&padded.i(1)), values(&x.i(1)));
    let parts = unpad_sequence(x.transpose(0, 1), Tensor::from(LENGTHS)).unwrap();
    let again = pack_sequence(&parts);
    assert_eq!(values(&again.data), values(&packed.data));
    assert_eq!(again.lengths.to_vec::<i64>().unwrap(), LENGTHS);
}

#[test]
fn packed_lengths_change_without_a_compilation() {
    let m = f64_module(|| GRU::with(INPUT, HIDDEN, Recurrent::new().bidirectional(true)));
    let spec = PackedSequence {
        data: Spec::new(DType::F64, ("l", "n", INPUT)),
        lengths: Spec::new(DType::I64, "n"),
    };
    let f = compile(spec, |x| {
        let x = pack_padded_sequence(&x.data, &x.lengths);
        let (y, h) = m.call(x);
        (pad_packed_sequence(&y).0, h)
    })
    .unwrap();
    for lengths in [vec![5i64, 1], vec![2, 3, 4]] {
        let (data, lengths) = (
            random([LENGTH, lengths.len(), INPUT]),
            Tensor::from(lengths),
        );
        let (y, h) = f
            .run(PackedSequence {
                data: &data,
                lengths: &lengths,
            })
            .unwrap();
        let (wanted, last) = m.call(pack_padded_sequence(&data, &lengths));
        assert_close(&values(&y), &values(&wanted.data), 1e-12);
        assert_close(&values(&h), &values(&last), 1e-12);
    }
}

#[test]
fn lengths_that_do_not_fit_are_named() {
    let x = random([LENGTH, 2, INPUT]);
    for wrong in [[0i64, 2], [6, 1], [-1, 1]] {
        let e = pack_padded_sequence(&x, Tensor::from(wrong))
            .data
            .to_vec::<f64>();
        let text = e.unwrap_err().to_string();
        assert!(
            text.contains("lengths are 1 to") && text.contains("rnn.rs"),
            "{text}"
        );
    }
    let m = f64_module(|| GRU::new(INPUT, HIDDEN));
    let packed = pack_padded_sequence(&x, Tensor::from([1i64, 2, 3]));
    let (y, h) = m.call(&packed);
    let text = y.data.error().unwrap().to_string();
    assert!(
        text.contains("f64[5, 2, 3] and i64[3]") && text.contains("rnn.rs"),
        "{text}"
    );
    assert!(h.error().is_some() && unpack_sequence(&packed).is_err());
    assert!(
        pack_padded_sequence(&x, Tensor::from([1.0, 2.0]))
            .data
            .error()
            .is_some()
    );
    assert!(pack_sequence(Vec::<Tensor>::new()).data.error().is_some());
}

#[test]
fn wrong_sequences_and_sizes_are_named() {
    let m = LSTM::new(3, 4).unwrap();
    let e = m
        .call(Tensor::zeros([5, 2, 7], DType::F32))
        .0
        .error()
        .cloned()
        .unwrap();
    let text = e.to_string();
    assert!(
        text.contains("LSTM(3, 4)") && text.contains("f32[5, 2, 7]"),
        "{text}"
    );
    let x = Tensor::zeros([5, 2, 3], DType::F32);
    let bad = Tensor::zeros([1, 3, 4], DType::F32);
    let (_, (h, _)) = m.call((&x, (&bad, &bad)));
    let text = h.error().unwrap().to_string();
    assert!(
        text.contains("f32[1, 2, 4]") && text.contains("f32[1, 3, 4]"),
        "{text}"
    );
    assert!(
        m.call(Tensor::zeros([0, 2, 3], DType::F32))
            .0
            .error()
            .is_some()
    );
    let e = GRU::with(3, 4, Recurrent::new().proj_size(2))
        .err()
        .unwrap();
    assert!(e.message().contains("proj_size"), "{e}");
    assert!(RNN::with(3, 4, Recurrent::new().num_layers(0)).is_err());
    assert!(RNN::new(0, 4).is_err());
}
