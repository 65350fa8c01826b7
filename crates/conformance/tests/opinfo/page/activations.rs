//! Normalisation, activations and attention.

use super::rows;
use kiln_tensor::{MultiHeadAttention, Result, Tensor, Var};

rows! {
    (x: &Tensor, y: &Tensor, z: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, mean: Option<&Var>, var: Option<&Var>, mask: Option<&Tensor>, slope: &Tensor, call: &MultiHeadAttention, dim: i64, training: bool, causal: bool);
    "torch.nn.functional.batch_norm" = { x.batch_norm(mean, var, weight, bias, training, 0.1, 1e-5) } "running statistics are `Var`s, which it assigns";
    "torch.nn.functional.instance_norm" = { x.instance_norm(mean, var, weight, bias, training, 0.1, 1e-5) };
    "torch.nn.functional.layer_norm" = { x.layer_norm([64], weight, bias, 1e-5) };
    "torch.nn.functional.rms_norm" = { x.rms_norm([64], weight, None) };
    "torch.nn.functional.group_norm" = { x.group_norm(4, weight, bias, 1e-5) };
    "torch.nn.functional.local_response_norm" = { x.local_response_norm(5, 1e-4, 0.75, 1.0) };
    "torch.nn.functional.normalize" = { x.normalize(2.0, dim, 1e-12) };
    "torch.renorm" = { x.renorm(2.0, dim, 1.0) };
    "torch.softmax", "torch.nn.functional.softmax", "torch.special.softmax" = { x.softmax(dim) } "`dtype=` is a `to_dtype` before it";
    "torch.log_softmax", "torch.nn.functional.log_softmax" = { x.log_softmax(dim) };
    "torch.nn.functional.softmin" = { x.softmin(dim) };
    "torch.relu", "torch.nn.functional.relu" = { x.relu() };
    "torch.nn.functional.relu6" = { x.relu6() };
    "torch.nn.functional.leaky_relu" = { x.leaky_relu(0.01) };
    "torch.nn.functional.prelu" = { x.prelu(slope) };
    "torch.nn.functional.elu" = { x.elu() };
    "torch.nn.functional.elu(alpha=)" = { x.elu_alpha(0.5) };
    "torch.nn.functional.selu" = { x.selu() };
    "torch.nn.functional.celu" = { x.celu(1.0) };
    "torch.nn.functional.gelu" = { x.gelu() };
    "torch.nn.functional.gelu(approximate=\"tanh\")" = { x.gelu_tanh() };
    "torch.nn.functional.silu" = { x.silu() };
    "torch.nn.functional.mish" = { x.mish() };
    "torch.nn.functional.softplus" = { x.softplus() };
    "torch.nn.functional.softplus(beta=, threshold=)" = { x.softplus_beta(2.0, 20.0) };
    "torch.nn.functional.softsign" = { x.softsign() };
    "torch.nn.functional.logsigmoid" = { x.logsigmoid() };
    "torch.nn.functional.hardsigmoid" = { x.hardsigmoid() };
    "torch.nn.functional.hardswish" = { x.hardswish() };
    "torch.nn.functional.hardtanh" = { x.hardtanh(-1, 1) };
    "torch.nn.functional.hardshrink" = { x.hardshrink(0.5) };
    "torch.nn.functional.softshrink" = { x.softshrink(0.5) };
    "torch.nn.functional.tanhshrink" = { x.tanhshrink() };
    "torch.nn.functional.threshold" = { x.threshold(0.1, 20) };
    "torch.nn.functional.glu" = { x.glu(dim) };
    "torch.nn.functional.dropout" = { x.dropout(0.5, training) };
    "torch.nn.functional.dropout1d" = { x.dropout1d(0.5, training) };
    "torch.nn.functional.dropout2d" = { x.dropout2d(0.5, training) } "three dims are `[n, c, l]`";
    "torch.nn.functional.dropout3d" = { x.dropout3d(0.5, training) };
    "torch.nn.functional.alpha_dropout" = { x.alpha_dropout(0.5, training) };
    "torch.nn.functional.feature_alpha_dropout" = { x.feature_alpha_dropout(0.5, training) };
    "torch.nn.functional.scaled_dot_product_attention" = { x.scaled_dot_product_attention(y, z, mask, 0.0, causal, None, false) } "`dropout_p`, `is_causal`, `scale`, `enable_gqa`";
    "torch.nn.functional.multi_head_attention_forward" = { x.multi_head_attention_forward(y, z, call) } "the options are fields of `MultiHeadAttention`; random weights of dropout can't be compared";
}
