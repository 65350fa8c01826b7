//! Attention: all ways to call it agree where they overlap.

use kiln_tensor::{Attention, DType, InProjection, MultiHeadAttention, Tensor, cat};

fn numbers(seed: u64, shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let next = |i: usize| {
        let bits = (seed * 1000 + i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        bits as f64 / (1u64 << 23) as f64 - 1.0
    };
    Tensor::from_slice(&(0..n).map(next).collect::<Vec<f64>>(), shape)
}

fn same(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape().unwrap(), b.shape().unwrap());
    let (a, b) = (a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() < 1e-12, "{a:?} is not {b:?}");
    }
}

/// The definition, operation by operation.
fn plain(q: &Tensor, k: &Tensor, v: &Tensor, added: &Tensor, scale: f64) -> Tensor {
    let scores = q.matmul(k.transpose(-1, -2)).mul(scale).add(added);
    scores.softmax(-1).matmul(v)
}

#[test]
fn batches_and_masks_broadcast() {
    let (q, k, v) = (
        numbers(1, &[3, 1, 5, 4]),
        numbers(2, &[2, 7, 4]),
        numbers(3, &[7, 6]),
    );
    let added = numbers(4, &[3, 2, 5, 7]);
    let y =
        q.scaled_dot_product_attention_with(&k, &v, Attention::new().attn_mask(&added).scale(0.3));
    same(&y, &plain(&q, &k, &v, &added, 0.3));
    let row = numbers(5, &[7]);
    let y = q.scaled_dot_product_attention_with(&k, &v, Attention::new().attn_mask(&row));
    same(&y, &plain(&q, &k, &v, &row, 0.5));
    let triangle = Tensor::ones([5, 7], DType::F64).tril().ne(0);
    let masked = q.scaled_dot_product_attention_with(&k, &v, Attention::new().attn_mask(&triangle));
    let causal = q.scaled_dot_product_attention_with(&k, &v, Attention::new().is_causal(true));
    same(&masked, &causal);
    let both = q.scaled_dot_product_attention_with(
        &k,
        &v,
        Attention::new().attn_mask(&triangle).is_causal(true),
    );
    assert!(both.error().is_some());
    let blind = Tensor::zeros([5, 1], DType::Bool);
    let y = q.scaled_dot_product_attention_with(&k, &v, Attention::new().attn_mask(&blind));
    assert!(y.to_vec::<f64>().unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn grouped_queries_share_keys() {
    let (q, k, v) = (
        numbers(1, &[2, 6, 3, 4]),
        numbers(2, &[2, 3, 5, 4]),
        numbers(3, &[2, 3, 5, 4]),
    );
    let y = q.scaled_dot_product_attention_with(
        &k,
        &v,
        Attention::new().is_causal(true).enable_gqa(true),
    );
    let (k, v) = (k.repeat_interleave(2, -3), v.repeat_interleave(2, -3));
    same(
        &y,
        &q.scaled_dot_product_attention_with(&k, &v, Attention::new().is_causal(true)),
    );
    let odd = k.narrow(1, 0, 4);
    assert!(
        q.scaled_dot_product_attention_with(&odd, &odd, Attention::new().enable_gqa(true))
            .error()
            .is_some()
    );
}

#[test]
fn dropout_keeps_the_mean() {
    let x = numbers(1, &[64, 64, 8]);
    let ones = Tensor::ones([64, 64, 8], DType::F64);
    let y = x.scaled_dot_product_attention_with(&x, &ones, Attention::new().dropout_p(0.25));
    let values = y.to_vec::<f64>().unwrap();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!(values.iter().any(|v| (v - 1.0).abs() > 0.01));
    let none = x.scaled_dot_product_attention_with(&x, &ones, Attention::new().dropout_p(1.0));
    assert!(none.to_vec::<f64>().unwrap().iter().all(|v| *v == 0.0));
}

const L: usize = 3;
const N: usize = 2;
const E: usize = 4;

struct Parameters {
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    extra: [Tensor; 2],
}

impl Parameters {
    fn new() -> Parameters {
        Parameters {
            weight: numbers(1, &[3 * E, E]),
            bias: numbers(2, &[3 * E]),
            out: numbers(3, &[E, E]),
            extra: [numbers(4, &[1, 1, E]), numbers(5, &[1, 1, E])],
        }
    }

    fn call(&self) -> MultiHeadAttention<'_> {
        MultiHeadAttention {
            num_heads: 2,
            in_proj_weight: InProjection::Packed(&self.weight),
            in_proj_bias: Some(&self.bias),
            bias_kv: None,
            add_zero_attn: false,
            dropout_p: 0.5,
            out_proj_weight: &self.out,
            out_proj_bias: None,
            training: false,
            key_padding_mask: None,
            need_weights: true,
            attn_mask: None,
            is_causal: false,
            average_attn_weights: true,
            static_kv: [None, None],
        }
    }
}

#[test]
fn heads_with_and_without_weights_agree() {
    let p = Parameters::new();
    let (q, k) = (numbers(6, &[L, N, E]), numbers(7, &[5, N, E]));
    let triangle = Tensor::ones([L, 5], DType::F64)
        .triu_with(1)
        .to_dtype(DType::Bool);
    let padding = Tensor::from_slice(
        &[
            false, false, true, false, false, false, false, false, true, false,
        ],
        [N, 5],
    );
    let (square, deep) = (numbers(8, &[L, 5]), numbers(9, &[2 * N, L, 5]));
    for mask in [None, Some(&square), Some(&deep), Some(&triangle)] {
        for (bias_kv, zero) in [(None, false), (Some((&p.extra[0], &p.extra[1])), true)] {
            for key_padding_mask in [None, Some(&padding)] {
                let call = MultiHeadAttention {
                    attn_mask: mask,
                    bias_kv,
                    add_zero_attn: zero,
                    key_padding_mask,
                    ..p.call()
                };
                let (y, weights) = q.multi_head_attention_forward(&k, &k, &call);
                let weights = weights.unwrap();
                let keys = 5 + 2 * zero as usize;
                assert_eq!(weights.shape().unwrap(), [N, L, keys]);
                same(&weights.sum(-1), &Tensor::ones([N, L], DType::F64));
                if key_padding_mask.is_some() {
                    let hidden = weights.select(0, 0).select(1, 2).to_vec::<f64>().unwrap();
                    assert!(hidden.iter().all(|w| *w == 0.0));
                }
                let call = MultiHeadAttention {
                    need_weights: false,
                    ..call
                };
                let (z, none) = q.multi_head_attention_forward(&k, &k, &call);
                assert!(none.is_none());
                same(&y, &z);
                if mask.is_some_and(|mask| mask.dtype() == DType::Bool) {
                    for need_weights in [true, false] {
                        let call = MultiHeadAttention {
                            attn_mask: None,
                            is_causal: true,
                            need_weights,
                            ..call.clone()
                        };
                        same(&q.multi_head_attention_forward(&k, &k, &call).0, &y);
                    }
                }
            }
        }
    }
}

#[test]
fn one_head_is_plain_attention() {
    let p = Parameters::new();
    let x = numbers(6, &[L, E]);
    let eye = Tensor::eye(E as i64, DType::F64);
    let packed = cat(&[&eye, &eye, &eye], 0);
    let call = MultiHeadAttention {
        num_heads: 1,
        in_proj_weight: InProjection::Packed(&packed),
        in_proj_bias: None,
        out_proj_weight: &eye,
        ..p.call()
    };
    let (y, weights) = x.multi_head_attention_forward(&x, &x, &call);
    same(&y, &x.scaled_dot_product_attention(&x, &x));
    assert_eq!(weights.unwrap().shape().unwrap(), [L, L]);
    let separate = MultiHeadAttention {
        in_proj_weight: InProjection::Separate([&eye; 3]),
        ..call.clone()
    };
    same(&x.multi_head_attention_forward(&x, &x, &separate).0, &y);
    let three = MultiHeadAttention {
        num_heads: 3,
        ..call
    };
    let (bad, weights) = x.multi_head_attention_forward(&x, &x, &three);
    assert!(bad.error().unwrap().message().contains("3 heads"));
    assert!(weights.unwrap().error().is_some());
}
