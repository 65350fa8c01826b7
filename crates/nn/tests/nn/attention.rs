//! Attention against plain loops in f64, and the layers built on it.

use crate::support::{assert_close, check_gradients, f64_module, held, names, random, values};
use kiln_nn::*;
use kiln_tensor::{DType, Spec, Tensor, compile};

/// Attention of one sample: query `[l, e]`, key and value `[s, e]`; results and weights by head. `score` applies a mask
/// to a score.
fn naive(
    m: &MultiheadAttention,
    [q, k, v]: [&[f64]; 3],
    (e, heads): (usize, usize),
    score: &dyn Fn(usize, usize, f64) -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let state = m.state_dict();
    let of = |name: &str| state.get(name).map(values);
    let (w, b) = (of("in_proj_weight").unwrap(), of("in_proj_bias").unwrap());
    let project = |x: &[f64], part: usize| -> Vec<Vec<f64>> {
        let row = |x: &[f64]| {
            (0..e)
                .map(|o| {
                    let o = part * e + o;
                    b[o] + (0..e).map(|i| w[o * e + i] * x[i]).sum::<f64>()
                })
                .collect()
        };
        x.chunks(e).map(row).collect()
    };
    let (q, k, v) = (project(q, 0), project(k, 1), project(v, 2));
    let size = e / heads;
    let mut joined = vec![vec![0.0; e]; q.len()];
    let mut all_weights = Vec::new();
    for h in 0..heads {
        for (i, q) in q.iter().enumerate() {
            let scores: Vec<f64> = k
                .iter()
                .enumerate()
                .map(|(j, k)| {
                    let product: f64 = (h * size..(h + 1) * size).map(|d| q[d] * k[d]).sum();
                    score(i, j, product / (size as f64).sqrt())
                })
                .collect();
            let total: f64 = scores.iter().map(|s| s.exp()).sum();
            for (j, s) in scores.iter().enumerate() {
                let weight = s.exp() / total;
                all_weights.push(weight);
                for d in h * size..(h + 1) * size {
                    joined[i][d] += weight * v[j][d];
                }
            }
        }
    }
    let (w, b) = (of("out_proj.weight").unwrap(), of("out_proj.bias").unwrap());
    let row = |x: &Vec<f64>| {
        (0..e)
            .map(|o| b[o] + (0..e).map(|i| w[o * e + i] * x[i]).sum::<f64>())
            .collect::<Vec<f64>>()
    };
    (joined.iter().flat_map(row).collect(), all_weights)
}

const E: usize = 6;
const HEADS: usize = 2;

fn attention() -> MultiheadAttention {
    let m = f64_module(|| MultiheadAttention::new(E, HEADS));
    m.in_proj_bias
        .as_ref()
        .unwrap()
        .assign(random([3 * E]))
        .unwrap();
    m.out_proj
        .bias
        .as_ref()
        .unwrap()
        .assign(random([E]))
        .unwrap();
    m
}

#[test]
fn attention_is_its_definition_with_every_mask() {
    let m = attention();
    let (q, k, v) = (random([4, E]), random([5, E]), random([5, E]));
    let (qs, ks, vs) = (values(&q), values(&k), values(&v));
    let never = f64::NEG_INFINITY;
    let bool_mask = Tensor::from_slice(&[false, true, false, false, true].repeat(4), [4, 5]);
    let float_mask = random([4, 5]);
    let added = values(&float_mask);
    let padding = Tensor::from_slice(&[false, false, false, true, true], [5]);
    type Score<'a> = Box<dyn Fn(usize, usize, f64) -> f64 + 'a>;
    let each = || AttentionMasks::new().average_attn_weights(false);
    let cases: Vec<(AttentionMasks, Score)> = vec![
        (each(), Box::new(|_, _, s| s)),
        (
            each().attn_mask(&bool_mask),
            Box::new(|_, j, s| if j == 1 || j == 4 { never } else { s }),
        ),
        (
            each().attn_mask(&float_mask),
            Box::new(|i, j, s| s + added[i * 5 + j]),
        ),
        (
            each().key_padding_mask(&padding),
            Box::new(|_, j, s| if j >= 3 { never } else { s }),
        ),
        (
            each().is_causal(true).key_padding_mask(&padding),
            Box::new(|i, j, s| if j > i || j >= 3 { never } else { s }),
        ),
    ];
    for (masks, score) in cases {
        let (y, weights) = m.call((&q, &k, &v, masks));
        let wanted = naive(&m, [&qs, &ks, &vs], (E, HEADS), &*score);
        assert_close(&values(&y), &wanted.0, 1e-10);
        assert_close(&values(&weights), &wanted.1, 1e-10);
        assert_eq!(weights.shape().unwrap(), [HEADS, 4, 5]);
    }
}

#[test]
fn batches_are_in_dim_1_or_first() {
    let m = attention();
    let (q, k) = (random([3, 2, E]), random([4, 2, E]));
    let each = || AttentionMasks::new().average_attn_weights(false);
    let (y, weights) = m.call((&q, &k, &k, each()));
    assert_eq!(weights.shape().unwrap(), [2, HEADS, 3, 4]);
    let (alone, _) = m.call((&q.select(1, 1), &k.select(1, 1), &k.select(1, 1)));
    assert_close(&values(&y.select(1, 1)), &values(&alone), 1e-12);
    let mask = Tensor::from_slice(&[false, true].repeat(24), [2 * HEADS, 3, 4]);
    let (_, weights) = m.call((&q, &k, &k, each().attn_mask(&mask)));
    let odd: Vec<f64> = values(&weights).into_iter().skip(1).step_by(2).collect();
    assert_eq!(odd, [0.0; 24]);
    let first = f64_module(|| {
        MultiheadAttention::with(E, HEADS, AttentionOptions::new().batch_first(true))
    });
    first.load_state_dict(&m.state_dict(), true).unwrap();
    let m = first;
    let (z, weights) = m.call((&q.transpose(0, 1), &k.transpose(0, 1), &k.transpose(0, 1)));
    assert_close(&values(&z.transpose(0, 1)), &values(&y), 1e-12);
    assert_close(&values(&weights.sum(2)), &[1.0; 6], 1e-12);
}

#[test]
fn attention_of_other_features_and_further_keys() {
    let m = f64_module(|| {
        MultiheadAttention::with(
            E,
            HEADS,
            AttentionOptions::new().kdim(3).vdim(5).add_bias_kv(true),
        )
    });
    let wanted = [
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
        "in_proj_bias",
        "bias_k",
        "bias_v",
        "out_proj.weight",
        "out_proj.bias",
    ];
    assert_eq!(names(&m), wanted);
    let (q, k, v) = (random([2, E]), random([4, 3]), random([4, 5]));
    let (y, weights) = m.call((&q, &k, &v));
    assert_eq!(
        (y.shape().unwrap(), weights.shape().unwrap()),
        (vec![2, E], vec![2, 5])
    );
    check_gradients(&m, &|| m.call((&q, &k, &v)).0);
    // Only the further key is left.
    let all = Tensor::full([4], true, DType::Bool);
    let masks = AttentionMasks::new().key_padding_mask(&all);
    let (_, weights) = m.call((&q, &k, &v, masks));
    assert_close(&values(&weights.select(1, 4)), &[1.0, 1.0], 1e-12);
    let whole = f64_module(|| MultiheadAttention::new(E, HEADS));
    assert_eq!(
        names(&whole),
        [
            "in_proj_weight",
            "in_proj_bias",
            "out_proj.weight",
            "out_proj.bias"
        ]
    );
    check_gradients(&whole, &|| whole.call((&q, &q, &q)).0);
}

/// A key of zeros equals a learnt further key whose numbers are zeros.
#[test]
fn a_key_of_zeros_may_follow() {
    let made =
        |options: AttentionOptions| f64_module(|| MultiheadAttention::with(E, HEADS, options));
    let zero = made(AttentionOptions::new().add_zero_attn(true));
    let learnt = made(AttentionOptions::new().add_bias_kv(true));
    for (name, to) in zero.named_parameters() {
        let all = learnt.named_parameters();
        let (_, from) = all.iter().find(|(other, _)| *other == name).unwrap();
        to.assign(from.get()).unwrap();
    }
    for further in [&learnt.bias_k, &learnt.bias_v] {
        let further = further.as_ref().unwrap();
        further.assign(further.get().zeros_like()).unwrap();
    }
    let (q, k) = (random([4, 2, E]), random([5, 2, E]));
    let padding = Tensor::from_slice(&[false, true].repeat(5), [2, 5]);
    let masks = || AttentionMasks::new();
    for masks in [
        masks(),
        masks().is_causal(true),
        masks().key_padding_mask(&padding),
    ] {
        let (a, b) = (
            zero.call((&q, &k, &k, &masks)),
            learnt.call((&q, &k, &k, &masks)),
        );
        assert_close(&values(&a.0), &values(&b.0), 1e-12);
        assert_close(&values(&a.1), &values(&b.1), 1e-12);
        assert_eq!(a.1.shape().unwrap(), [2, 4, 6]);
    }
}

#[test]
fn attention_names_what_does_not_fit() {
    let e = MultiheadAttention::new(7, 2).err().unwrap();
    assert!(
        e.message().contains("7 features") && e.message().contains("2 heads"),
        "{e}"
    );
    let m = MultiheadAttention::new(6, 2).unwrap();
    let (q, k) = (
        Tensor::zeros([3, 6], DType::F32),
        Tensor::zeros([3, 5], DType::F32),
    );
    let text = m.call((&q, &k, &k)).0.error().unwrap().to_string();
    assert!(
        text.contains("MultiheadAttention") && text.contains("f32[3, 5]"),
        "{text}"
    );
}

fn encoder_layer(norm_first: bool) -> TransformerEncoderLayer {
    let options = TransformerOptions::new().dim_feedforward(5).dropout(0.0);
    f64_module(|| TransformerEncoderLayer::with(E, HEADS, options.norm_first(norm_first)))
}

#[test]
fn encoder_layers_are_attention_and_feedforward_with_residuals() {
    let x = random([4, 2, E]);
    for norm_first in [false, true] {
        let l = encoder_layer(norm_first);
        let attend = |x: &Tensor| l.self_attn.call((x, x, x)).0;
        let feed = |x: &Tensor| l.linear2.call(l.linear1.call(x).relu());
        let wanted = if norm_first {
            let x = &x + &attend(&l.norm1.call(&x));
            &x + &feed(&l.norm2.call(&x))
        } else {
            let x = l.norm1.call(&(&x + &attend(&x)));
            l.norm2.call(&(&x + &feed(&x)))
        };
        assert_close(&values(&l.call(&x)), &values(&wanted), 1e-12);
    }
    let wanted = [
        "self_attn.in_proj_weight",
        "self_attn.in_proj_bias",
        "self_attn.out_proj.weight",
        "self_attn.out_proj.bias",
        "linear1.weight",
        "linear1.bias",
        "linear2.weight",
        "linear2.bias",
        "norm1.weight",
        "norm1.bias",
        "norm2.weight",
        "norm2.bias",
    ];
    assert_eq!(names(&encoder_layer(true)), wanted);
}

#[test]
fn an_encoder_starts_with_copies_of_its_layer() {
    let layer = encoder_layer(false);
    let encoder =
        TransformerEncoder::with_norm(&layer, 2, f64_module(|| LayerNorm::new(E))).unwrap();
    assert_eq!(encoder.num_parameters(), 2 * layer.num_parameters() + 2 * E);
    assert_eq!(
        held(&encoder.layers[1].linear1.weight),
        held(&layer.linear1.weight)
    );
    assert!(names(&encoder).contains(&"layers.1.self_attn.in_proj_weight".to_string()));
    let x = random([4, 2, E]);
    let wanted = encoder
        .norm
        .as_ref()
        .unwrap()
        .call(layer.call(layer.call(&x)));
    assert_close(&values(&encoder.call(&x)), &values(&wanted), 1e-12);
}

#[test]
fn a_causal_encoder_does_not_see_the_future() {
    let encoder = TransformerEncoder::new(&encoder_layer(true), 2).unwrap();
    let masks = AttentionMasks::new().is_causal(true);
    let x = random([4, 1, E]);
    let other = x.slice_scatter(random([1, 1, E]), 0, 3..4);
    let (a, b) = (encoder.call((&x, &masks)), encoder.call((&other, &masks)));
    assert_close(
        &values(&a.narrow(0, 0, 3)),
        &values(&b.narrow(0, 0, 3)),
        1e-12,
    );
    assert_ne!(values(&a.select(0, 3)), values(&b.select(0, 3)));
}

#[test]
fn decoders_attend_to_a_memory() {
    let options = TransformerOptions::new().dim_feedforward(5).dropout(0.0);
    let options = options.activation(TransformerActivation::Gelu);
    let layer = f64_module(|| TransformerDecoderLayer::with(E, HEADS, options));
    let decoder = TransformerDecoder::new(&layer, 2).unwrap();
    assert!(names(&decoder).contains(&"layers.1.multihead_attn.out_proj.bias".to_string()));
    let (tgt, memory) = (random([3, 2, E]), random([4, 2, E]));
    let l = &layer;
    let once = |x: &Tensor| {
        let x = l.norm1.call(&(x + &l.self_attn.call((x, x, x)).0));
        let x = l
            .norm2
            .call(&(&x + &l.multihead_attn.call((&x, &memory, &memory)).0));
        let y = l.linear2.call(l.linear1.call(&x).gelu());
        l.norm3.call(&(&x + &y))
    };
    let y = decoder.call((&tgt, &memory));
    assert_close(&values(&y), &values(&once(&once(&tgt))), 1e-12);
    check_gradients(&layer, &|| layer.call((&tgt, &memory)));
}

#[test]
fn transformers_compile_with_a_symbolic_batch() {
    let encoder = TransformerEncoder::new(&encoder_layer(false), 1).unwrap();
    let spec = Spec::new(DType::F64, (4, "batch", E));
    let compiled = compile(spec, |x| encoder.call(&x)).unwrap();
    let x = random([4, 3, E]);
    let y = compiled.run(&x).unwrap();
    assert_close(&values(&y), &values(&encoder.call(&x)), 1e-12);
}

/// The returned weights are those that made the result, including dropout.
#[test]
fn weights_are_given_as_dropout_left_them() {
    for average in [true, false] {
        let options = AttentionOptions::new().dropout(0.4).batch_first(true);
        let m = MultiheadAttention::with(6i64, 3i64, options).unwrap();
        let x = random([2, 7, 6]).to_dtype(DType::F32);
        let masks = AttentionMasks::new().average_attn_weights(average);
        let whole = |m: &MultiheadAttention| m.call((&x, &x, &x, &masks));
        let (y, weights) = whole(&m);
        m.eval();
        let (_, undropped) = whole(&m);
        if average {
            assert!(
                (&weights - &undropped)
                    .abs()
                    .amax(())
                    .item::<f32>()
                    .unwrap()
                    > 1e-3
            );
            continue;
        }
        let kept = weights.ne(0.0).to_dtype(DType::F32);
        let expected = &undropped * &kept * (1.0 / 0.6);
        assert!((&weights - expected).abs().amax(()).item::<f32>().unwrap() < 1e-5);
        let share = kept.mean(()).item::<f32>().unwrap();
        assert!((0.4..0.8).contains(&share), "{share}");
        // The result from the weights.
        let v = x.linear_with(
            m.in_proj_weight.as_ref().unwrap().get().narrow(0, 12, 6),
            m.in_proj_bias.as_ref().map(|b| b.get().narrow(0, 12, 6)),
        );
        let heads = weights.matmul(v.unflatten(2, [3, 2]).transpose(1, 2));
        let expected = m.out_proj.call(heads.transpose(1, 2).flatten((2, 3)));
        assert!((y - expected).abs().amax(()).item::<f32>().unwrap() < 1e-5);
    }
}
